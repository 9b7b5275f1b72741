//! What the programs report about themselves: metrics, Events, and the alerts based on the metrics.
//!
//! ```text
//! Metric::ALL ┬─ the programs count them
//!             ├─ Alert::ALL: expressions over them ─► PrometheusRule, a runbook page for each
//!             └─ dashboard, docs/reference/kubernetes/
//! Event::ALL ─┴─ reasons of Events
//! ```
//! One table for each, so that programs, alerts, dashboards and pages cannot drift apart.
//!
//! *What it is not*: a registry of counters; the programs have their own. No label names a machine, a key, a
//! path or an image, so the number of series does not grow with the fleet.

mod alert;
mod condition;
mod event;
mod metric;
#[cfg(test)]
mod tests;

pub use self::alert::{Alert, Severity};
pub use self::condition::{Aggregate, Comparison, Condition, Matcher, Selector};
pub use self::event::{Event, EventType};
pub use self::metric::{Metric, MetricKind};
