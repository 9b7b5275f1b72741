//! Counters.

use std::fmt::Write as _;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use tec_core::code::Code;

/// What a guard counts. The labels are the codes, so their number is bounded.
#[derive(Debug)]
pub struct Metrics {
    passed: AtomicU64,
    by_code: Vec<AtomicU64>,
    released: AtomicU64,
    refused: AtomicU64,
}

impl Metrics {
    pub(super) fn new() -> Self {
        Self {
            passed: AtomicU64::new(0),
            by_code: Code::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
            released: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// An attempt ended: with a token, or with a code.
    pub(super) fn attempted(&self, code: Option<Code>) {
        let counter = match code {
            None => Some(&self.passed),
            Some(code) => Code::ALL
                .iter()
                .position(|known| *known == code)
                .and_then(|index| self.by_code.get(index)),
        };
        if let Some(counter) = counter {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A resource was handed out.
    pub(super) fn released(&self) {
        self.released.fetch_add(1, Ordering::Relaxed);
    }

    /// A request was answered by the guard itself.
    pub(super) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn render(&self, sessions: usize) -> String {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut text = String::from(
            "# HELP tec_guard_attempts_total Attempts to attest or to obtain a resource, by outcome.\n\
             # TYPE tec_guard_attempts_total counter\n",
        );
        let passed = value(&self.passed);
        // Writing to a string does not fail.
        let _ = writeln!(text, "tec_guard_attempts_total{{code=\"ok\"}} {passed}");
        for (code, counter) in Code::ALL.iter().zip(&self.by_code) {
            let count = value(counter);
            if count > 0 {
                let _ = writeln!(text, "tec_guard_attempts_total{{code=\"{code}\"}} {count}");
            }
        }
        for (name, kind, help, value) in [
            (
                "tec_guard_releases_total",
                "counter",
                "Resources handed out.",
                value(&self.released),
            ),
            (
                "tec_guard_refusals_total",
                "counter",
                "Requests that went no further than the guard.",
                value(&self.refused),
            ),
            (
                "tec_guard_sessions",
                "gauge",
                "Sessions in the table.",
                u64::try_from(sessions).unwrap_or(u64::MAX),
            ),
        ] {
            let _ = writeln!(
                text,
                "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}"
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_counted_by_code() {
        let metrics = Metrics::new();
        metrics.attempted(None);
        metrics.attempted(Some(Code::SelectionWrong));
        metrics.attempted(Some(Code::SelectionWrong));
        let text = metrics.render(3);
        assert!(text.contains("tec_guard_attempts_total{code=\"ok\"} 1\n"));
        assert!(text.contains("tec_guard_attempts_total{code=\"TEC-A406\"} 2\n"));
        assert!(text.contains("tec_guard_sessions 3\n"));
    }
}
