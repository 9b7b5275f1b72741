//! Request metrics of a server, in the text format of Prometheus (0.0.4).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use parking_lot::Mutex;
use tec_core::code::Code;
use tokio::time::Instant;

/// Upper bounds of the histogram's buckets, in milliseconds: from a single write to a fast store up to the
/// longest time a client waits.
const BUCKETS: [u64; 12] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 10_000];

/// Requests by error code, and their duration. Nothing about the client is kept.
#[derive(Debug)]
pub struct RequestMetrics {
    counter: (&'static str, &'static str),
    histogram: (&'static str, &'static str),
    state: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    by_code: BTreeMap<&'static str, u64>,
    buckets: [u64; BUCKETS.len()],
    count: u64,
    total: Duration,
}

impl RequestMetrics {
    /// Metrics with these names and descriptions: a counter with the label `code`, and a histogram
    /// of seconds.
    pub fn new(
        counter: (&'static str, &'static str),
        histogram: (&'static str, &'static str),
    ) -> Arc<Self> {
        Arc::new(Self { counter, histogram, state: Mutex::default() })
    }

    /// Counts a request.
    pub fn observe(&self, code: Option<Code>, took: Duration) {
        let mut state = self.state.lock();
        *state.by_code.entry(code.map_or("ok", Code::as_str)).or_default() += 1;
        for (bound, bucket) in BUCKETS.iter().zip(&mut state.buckets) {
            if took <= Duration::from_millis(*bound) {
                *bucket += 1;
            }
        }
        state.count += 1;
        state.total += took;
    }

    /// All metrics, as text.
    pub fn render(&self) -> String {
        let state = self.state.lock();
        let mut text = String::new();
        // Writing to a string cannot fail.
        let (name, help) = self.counter;
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} counter\n");
        for (code, count) in &state.by_code {
            let _ = writeln!(text, "{name}{{code=\"{code}\"}} {count}");
        }
        let (name, help) = self.histogram;
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} histogram\n");
        for (bound, count) in BUCKETS.iter().zip(state.buckets) {
            let seconds = Duration::from_millis(*bound).as_secs_f64();
            let _ = writeln!(text, "{name}_bucket{{le=\"{seconds}\"}} {count}");
        }
        let count = state.count;
        let _ = writeln!(text, "{name}_bucket{{le=\"+Inf\"}} {count}");
        let _ = writeln!(text, "{name}_sum {}", state.total.as_secs_f64());
        let _ = writeln!(text, "{name}_count {count}");
        text
    }
}

/// The counting middleware. The error code arrives as an extension of the response.
pub async fn count(
    State(metrics): State<Arc<RequestMetrics>>,
    request: Request,
    next: Next,
) -> Response {
    let begin = Instant::now();
    let response = next.run(request).await;
    metrics.observe(response.extensions().get().copied(), begin.elapsed());
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_code_and_duration() {
        let metrics = RequestMetrics::new(("a_total", "Requests."), ("a_seconds", "Time."));
        metrics.observe(None, Duration::from_millis(3));
        metrics.observe(Some(Code::RegisterFull), Duration::from_mins(1));
        let text = metrics.render();
        for line in [
            "a_total{code=\"TEC-R430\"} 1",
            "a_total{code=\"ok\"} 1",
            "a_seconds_bucket{le=\"0.002\"} 0",
            "a_seconds_bucket{le=\"0.005\"} 1",
            "a_seconds_bucket{le=\"10\"} 1",
            "a_seconds_bucket{le=\"+Inf\"} 2",
            "a_seconds_sum 60.003",
            "a_seconds_count 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }
}
