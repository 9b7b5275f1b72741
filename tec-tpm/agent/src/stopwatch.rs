//! Measures how long a node waits for its TPM, as opposed to its servers.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tec_core::attest::Tee;
use tec_core::port::{AttestationEvidence, Attester, PortError};
use tokio::time::Instant;

/// An attester that is timed.
#[derive(Debug)]
pub(crate) struct Stopwatch<A> {
    attester: A,
    spent: Spent,
}

/// The time spent so far; clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spent(Arc<Mutex<Duration>>);

impl Spent {
    /// The total.
    pub(crate) fn total(&self) -> Duration {
        *self.0.lock()
    }

    fn add(&self, time: Duration) {
        *self.0.lock() += time;
    }
}

impl<A> Stopwatch<A> {
    /// Times this attester; the second value reads the time.
    pub(crate) fn new(attester: A) -> (Self, Spent) {
        let spent = Spent::default();
        let watched = Self { attester, spent: spent.clone() };
        (watched, spent)
    }
}

#[async_trait]
impl<A: Attester> Attester for Stopwatch<A> {
    fn tee(&self) -> Tee {
        self.attester.tee()
    }

    async fn attest(&self, report_data: &[u8; 48]) -> Result<AttestationEvidence, PortError> {
        let begin = Instant::now();
        let evidence = self.attester.attest(report_data).await;
        self.spent.add(begin.elapsed());
        evidence
    }
}

#[cfg(test)]
mod tests {
    use tec_core::port::PortErrorKind;

    use super::*;

    #[derive(Debug)]
    struct Slow;

    #[async_trait]
    impl Attester for Slow {
        fn tee(&self) -> Tee {
            Tee::Tpm
        }

        async fn attest(&self, _: &[u8; 48]) -> Result<AttestationEvidence, PortError> {
            tokio::time::sleep(Duration::from_secs(3)).await;
            Err(PortError::new(PortErrorKind::Unavailable, "quote"))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_of_every_try_counts() {
        let (watched, spent) = Stopwatch::new(Slow);
        for _ in 0..2 {
            assert!(watched.attest(&[0; 48]).await.is_err());
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(spent.total(), Duration::from_secs(6));
    }
}
