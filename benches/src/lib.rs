//! Benchmarks as ratios to a baseline that is measured in the same run.
//!
//! *What it is*: the measuring code that the suites in `benches/` share, the inputs that they generate or
//! find, and the report that they write. Each suite compares one of our operations with the minimum that
//! could be done instead, such as hashing the same bytes once.
//!
//! *What it is not*: a gate. Nothing fails for being slow; the table shows which goals are missed.
//!
//! ```text
//! synthetic: seeded programs, logs, variables and fleets of any size ─┐
//! debian: real boots, if available ───────────────────────────────────┤
//!                                                                     ▼
//! Suite ─┬─ compare, ratio: rounds ours, baseline, ours, … ─► medians of pairs ─┐
//!        ├─ compare: criterion over the same closures ─► its own pages          │
//!        ├─ time: one closure ─► figure ────────────────────────────────────────┼─► Report ─► table
//!        └─ figure: one number, such as memory ─────────────────────────────────┘
//! ```
//! Absolute times differ between machines, and from minute to minute on one machine; the ratio of two
//! neighboring rounds hardly does. So the ratio is the median over pairs of rounds, not the quotient of two
//! means.

mod change;
pub mod debian;
pub mod load;
pub mod mutual;
mod report;
mod rounds;
mod suite;
pub mod synthetic;
mod unit;

pub use self::change::Change;
pub use self::report::{Figure, REPORT, Ratio, Report};
pub use self::suite::Suite;
pub use self::unit::Unit;
