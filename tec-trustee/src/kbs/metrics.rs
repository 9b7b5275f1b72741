//! Counters in the Prometheus text format. The labels are the codes, so their number is bounded, however many
//! machines there are.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use tec_core::code::Code;

/// Counters of a key broker and a guard.
#[derive(Debug)]
pub(crate) struct Metrics {
    /// Prefix of the names.
    name: &'static str,
    opened: AtomicU64,
    passed: AtomicU64,
    by_code: Vec<AtomicU64>,
    released: AtomicU64,
    refused: AtomicU64,
}

impl Metrics {
    pub(crate) fn new(name: &'static str) -> Self {
        Self {
            name,
            opened: AtomicU64::new(0),
            passed: AtomicU64::new(0),
            by_code: Code::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
            released: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// A session began.
    pub(crate) fn opened(&self) {
        self.opened.fetch_add(1, Ordering::Relaxed);
    }

    /// An attempt ended: with a token, or with a code.
    pub(crate) fn attempted(&self, code: Option<Code>) {
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

    /// A resource was released.
    pub(crate) fn released(&self) {
        self.released.fetch_add(1, Ordering::Relaxed);
    }

    /// A request was refused here, with a code if it was an attempt.
    pub(crate) fn refused(&self, code: Option<Code>) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        if code.is_some() {
            self.attempted(code);
        }
    }

    pub(crate) fn render(&self, sessions: usize) -> String {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let name = self.name;
        let mut text = format!(
            "# HELP {name}_attempts_total Attempts to attest or to obtain a resource, by outcome.\n\
             # TYPE {name}_attempts_total counter\n\
             {name}_attempts_total{{code=\"ok\"}} {}\n",
            value(&self.passed)
        );
        for (code, counter) in Code::ALL.iter().zip(&self.by_code) {
            let count = value(counter);
            // Codes of attempts are there from the start: Prometheus sees no increase in a series that begins
            // above zero, and an alert may depend on the first refusal.
            if count > 0 || code.as_str().starts_with("TEC-A") {
                // Writing to a string does not fail.
                let _ = writeln!(text, "{name}_attempts_total{{code=\"{code}\"}} {count}");
            }
        }
        let sessions = u64::try_from(sessions).unwrap_or(u64::MAX);
        for (what, kind, help, value) in [
            ("opened_total", "counter", "Sessions that began.", value(&self.opened)),
            ("releases_total", "counter", "Resources released.", value(&self.released)),
            ("refusals_total", "counter", "Requests refused here.", value(&self.refused)),
            ("sessions", "gauge", "Sessions in the table.", sessions),
        ] {
            let _ = writeln!(
                text,
                "# HELP {name}_{what} {help}\n# TYPE {name}_{what} {kind}\n{name}_{what} {value}"
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
        let metrics = Metrics::new("tec_guard");
        let unseen = "tec_guard_attempts_total{code=\"TEC-A413\"} 0\n";
        assert!(metrics.render(0).contains(unseen), "its first increase would not be seen");
        metrics.attempted(None);
        metrics.attempted(Some(Code::SelectionWrong));
        metrics.refused(Some(Code::SelectionWrong));
        metrics.refused(None);
        let text = metrics.render(3);
        assert!(text.contains("tec_guard_attempts_total{code=\"ok\"} 1\n"));
        assert!(text.contains("tec_guard_attempts_total{code=\"TEC-A406\"} 2\n"));
        assert!(text.contains("tec_guard_refusals_total 2\n"));
        assert!(text.contains("tec_guard_sessions 3\n"));
    }
}
