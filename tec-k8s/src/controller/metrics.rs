//! Counters and gauges of the table in [`signal`](crate::signal), in the Prometheus text format.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use parking_lot::Mutex;

use crate::signal::Metric;

/// Upper bounds of the histogram's buckets, in seconds.
const BUCKETS: [f64; 8] = [0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0];

/// Name of a metric and the values of its labels.
type Series = (&'static str, Vec<String>);

#[derive(Debug, Default)]
struct Histogram {
    buckets: [u64; BUCKETS.len()],
    sum: f64,
    count: u64,
}

#[derive(Debug, Default)]
struct State {
    numbers: BTreeMap<Series, f64>,
    histograms: BTreeMap<Series, Histogram>,
}

/// The counters and gauges. No label names an object, so that the number of series stays small.
#[derive(Debug, Default)]
pub struct Metrics(Mutex<State>);

impl Metrics {
    /// Increments a counter.
    pub(super) fn count(&self, metric: Metric, labels: &[&str]) {
        *self.0.lock().numbers.entry(series(metric, labels)).or_default() += 1.0;
    }

    /// Makes a counter visible before it counts: Prometheus sees no increase in a series that begins above
    /// zero.
    pub(super) fn begin(&self, metric: Metric, labels: &[&str]) {
        self.0.lock().numbers.entry(series(metric, labels)).or_default();
    }

    /// Drops the series of a metric whose first label has none of these values.
    pub(super) fn keep_only(&self, metric: Metric, first: &[&str]) {
        let is_kept = |series: &Series| {
            series.0 != metric.as_str()
                || series.1.first().is_some_and(|value| first.contains(&value.as_str()))
        };
        self.0.lock().numbers.retain(|series, _| is_kept(series));
    }

    /// Sets a gauge.
    pub(super) fn set(&self, metric: Metric, labels: &[&str], value: usize) {
        // Numbers of objects, and seconds since 1970 until 2106, are below 2^32.
        let value = f64::from(u32::try_from(value).unwrap_or(u32::MAX));
        self.0.lock().numbers.insert(series(metric, labels), value);
    }

    /// Records how long something took.
    pub(super) fn observe(&self, metric: Metric, labels: &[&str], took: Duration) {
        let seconds = took.as_secs_f64();
        let mut state = self.0.lock();
        let histogram = state.histograms.entry(series(metric, labels)).or_default();
        for (bound, count) in BUCKETS.iter().zip(&mut histogram.buckets) {
            *count += u64::from(seconds <= *bound);
        }
        histogram.sum += seconds;
        histogram.count += 1;
    }

    /// All metrics, in the text format 0.0.4.
    pub fn render(&self) -> String {
        let state = self.0.lock();
        let mut text = String::new();
        for metric in Metric::ALL {
            let name = metric.as_str();
            let of_metric = |series: &Series| series.0 == name;
            let mut lines = String::new();
            for (series, value) in state.numbers.iter().filter(|(series, _)| of_metric(series)) {
                let labels = labels(*metric, &series.1, None);
                // Writing to a String cannot fail.
                let _ = writeln!(lines, "{name}{labels} {value}");
            }
            for (series, histogram) in
                state.histograms.iter().filter(|(series, _)| of_metric(series))
            {
                histogram.render(*metric, &series.1, &mut lines);
            }
            if !lines.is_empty() {
                let (help, kind) = (metric.help(), metric.kind().as_str());
                let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{lines}");
            }
        }
        text
    }
}

impl Histogram {
    fn render(&self, metric: Metric, values: &[String], lines: &mut String) {
        let name = metric.as_str();
        for (bound, count) in BUCKETS.iter().zip(self.buckets) {
            let labels = labels(metric, values, Some(&bound.to_string()));
            let _ = writeln!(lines, "{name}_bucket{labels} {count}");
        }
        let all = labels(metric, values, Some("+Inf"));
        let own = labels(metric, values, None);
        let _ = writeln!(lines, "{name}_bucket{all} {}", self.count);
        let _ = writeln!(lines, "{name}_sum{own} {}", self.sum);
        let _ = writeln!(lines, "{name}_count{own} {}", self.count);
    }
}

fn series(metric: Metric, labels: &[&str]) -> Series {
    debug_assert_eq!(metric.labels().len(), labels.len(), "{}", metric.as_str());
    let values = labels.iter().map(|&value| value.to_owned()).collect();
    (metric.as_str(), values)
}

fn labels(metric: Metric, values: &[String], bound: Option<&str>) -> String {
    let escape =
        |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let mut pairs: Vec<String> = metric
        .labels()
        .iter()
        .zip(values)
        .map(|(name, value)| format!("{name}=\"{}\"", escape(value)))
        .collect();
    pairs.extend(bound.map(|bound| format!("le=\"{bound}\"")));
    if pairs.is_empty() { String::new() } else { format!("{{{}}}", pairs.join(",")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_has_no_series_and_others_keep_theirs() {
        let metrics = Metrics::default();
        for target in ["trustee", "other"] {
            metrics.set(Metric::TargetConverged, &[target], 0);
        }
        metrics.set(Metric::Leader, &[], 1);
        metrics.keep_only(Metric::TargetConverged, &["trustee"]);
        let text = metrics.render();
        assert!(text.contains("{target=\"trustee\"} 0\n") && !text.contains("other"), "{text}");
        assert!(text.contains("tec_operator_leader 1\n"), "{text}");
    }

    #[test]
    fn the_text_form_has_help_type_labels_and_buckets() {
        let metrics = Metrics::default();
        metrics.set(Metric::Leader, &[], 1);
        metrics.count(Metric::Reconciliations, &["machine", "ok"]);
        metrics.count(Metric::Reconciliations, &["machine", "ok"]);
        metrics.observe(Metric::ReconcileSeconds, &["machine"], Duration::from_millis(10));
        let text = metrics.render();
        for line in [
            "# TYPE tec_operator_leader gauge\ntec_operator_leader 1\n",
            "tec_operator_reconciliations_total{controller=\"machine\",outcome=\"ok\"} 2\n",
            "_bucket{controller=\"machine\",le=\"0.005\"} 0\n",
            "_bucket{controller=\"machine\",le=\"0.02\"} 1\n",
            "_bucket{controller=\"machine\",le=\"+Inf\"} 1\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
