//! When an alert fires: metrics, label values and comparisons, from which the PromQL is generated.
//!
//! *What it is not*: an evaluator. Tests check each condition against the metrics that the programs actually
//! serve.

use std::fmt;

use super::Metric;

/// Series of a metric, selected by label values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selector {
    /// The metric.
    pub metric: Metric,
    /// Required label values.
    pub labels: &'static [Matcher],
}

/// A required label value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matcher {
    /// The label has this value.
    Is(&'static str, &'static str),
    /// The label has a different value.
    IsNot(&'static str, &'static str),
}

/// How the series of a selector become one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregate {
    /// The sum.
    Sum,
    /// The maximum.
    Max,
    /// The minimum for each value of a label.
    MinBy(&'static str),
}

/// A comparison with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Less than.
    Less(u32),
    /// Equal to.
    Equal(u32),
    /// More than.
    More(u32),
}

/// A condition of an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// No scrape target of these jobs answers. A job is the name of a Service for metrics.
    Down(&'static [&'static str]),
    /// The value of a gauge.
    Level(Aggregate, Selector, Comparison),
    /// A counter grows by more than this within this many minutes, per value of the label, if any. Prometheus
    /// sees no increase in a series that begins above zero.
    Grows(Option<&'static str>, Selector, u32, u32),
    /// Within this many minutes, the first counter grows by more than this percentage of the second.
    Share(Selector, Selector, u32, u32),
    /// A time in seconds since 1970 is less than this many days away.
    Within(Selector, u32),
    /// A time in seconds since 1970 is more than this many days ago.
    Since(Selector, u32),
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.metric.as_str())?;
        let pairs: Vec<String> = self.labels.iter().map(Matcher::to_string).collect();
        if pairs.is_empty() { Ok(()) } else { write!(f, "{{{}}}", pairs.join(",")) }
    }
}

impl fmt::Display for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Is(label, value) => write!(f, "{label}=\"{value}\""),
            Self::IsNot(label, value) => write!(f, "{label}!=\"{value}\""),
        }
    }
}

impl fmt::Display for Aggregate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sum => f.write_str("sum"),
            Self::Max => f.write_str("max"),
            Self::MinBy(label) => write!(f, "min by ({label}) "),
        }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Less(than) => write!(f, "< {than}"),
            Self::Equal(to) => write!(f, "== {to}"),
            Self::More(than) => write!(f, "> {than}"),
        }
    }
}

/// The condition in PromQL.
impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down(jobs) => {
                let is = if jobs.len() > 1 { "=~" } else { "=" };
                write!(f, "absent(up{{job{is}\"{}\"}} == 1)", jobs.join("|"))
            }
            Self::Level(how, of, comparison) => write!(f, "{how}({of}) {comparison}"),
            Self::Grows(by, of, than, minutes) => {
                let by = by.map(|label| format!(" by ({label}) ")).unwrap_or_default();
                write!(f, "sum{by}(increase({of}[{minutes}m])) > {than}")
            }
            Self::Share(of, all, percent, minutes) => write!(
                f,
                "100 * sum(rate({of}[{minutes}m])) > {percent} * sum(rate({all}[{minutes}m]))"
            ),
            Self::Since(of, days) => write!(f, "time() - max({of}) > {days} * 86400"),
            Self::Within(of, days) => write!(f, "min by (job) ({of}) - time() < {days} * 86400"),
        }
    }
}
