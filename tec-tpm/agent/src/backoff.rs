//! Waits between tries: exponential, with jitter, so that a rack that powers on all at once does not retry
//! all at once.

use std::time::Duration;

use tec_core::ignition::NumRetries;
use tec_core::port::{Entropy, EntropyRng};
use tec_trustee::client::RetryPolicy;

/// Waits between tries at a server that does not answer: 1 s, doubled each time up to 30 s (the existing pin
/// waits 5 s each time).
const SHORT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Waits after a refusal: only an admin can change the outcome, and each try costs a server a full appraisal.
const LONG: (Duration, Duration) = (Duration::from_secs(20), Duration::from_mins(2));

/// An endless series of waits; the caller counts.
#[derive(Debug)]
pub(crate) struct Backoff<'a> {
    entropy: &'a dyn Entropy,
    policy: RetryPolicy,
    attempt: u32,
}

impl<'a> Backoff<'a> {
    /// Waits for a server that may come back at any moment.
    pub(crate) fn short(entropy: &'a dyn Entropy) -> Self {
        Self::new(entropy, SHORT)
    }

    /// Waits for a decision of an admin.
    pub(crate) fn long(entropy: &'a dyn Entropy) -> Self {
        Self::new(entropy, LONG)
    }

    fn new(entropy: &'a dyn Entropy, (base, cap): (Duration, Duration)) -> Self {
        Self {
            entropy,
            policy: RetryPolicy::from_config(Some(NumRetries::Infinity)).with_delays(base, cap),
            attempt: 0,
        }
    }

    /// The next wait: half of it fixed, half of it random.
    pub(crate) fn delay(&mut self) -> Duration {
        let mut rng = EntropyRng::new(self.entropy);
        let delay = self.policy.delay(self.attempt, &mut rng);
        self.attempt = self.attempt.saturating_add(1);
        delay.unwrap_or(self.policy.cap)
    }

    /// Waits. Dropping it loses nothing.
    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(self.delay()).await;
    }
}

#[cfg(test)]
mod tests {
    use tec_core::testing::SeededEntropy;

    use super::*;

    fn assert_waits(mut backoff: Backoff<'_>, whole: &[u64]) {
        for seconds in whole {
            let whole = Duration::from_secs(*seconds);
            let delay = backoff.delay();
            assert!(delay >= whole / 2 && delay <= whole, "{delay:?} of {whole:?}");
        }
    }

    #[test]
    fn waits_double_up_to_the_cap() {
        let entropy = SeededEntropy::new(1);
        assert_waits(Backoff::short(&entropy), &[1, 2, 4, 8, 16, 30, 30, 30]);
        assert_waits(Backoff::long(&entropy), &[20, 40, 80, 120, 120]);
    }
}
