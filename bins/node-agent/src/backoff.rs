//! Waiting between tries: exponential, with jitter, so that a rack that powers on at once does not
//! come back at once.

use std::time::Duration;

use tec_core::port::Entropy;

/// Waits before tries at a server that did not answer: 1 s, then twice as long each time up to
/// 30 s (the existing pin waits 5 s each time).
const SHORT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Waits after a refusal: only an admin can change the outcome, and each try costs a server a whole
/// appraisal.
const LONG: (Duration, Duration) = (Duration::from_secs(20), Duration::from_mins(2));

/// A series of waits.
#[derive(Debug)]
pub struct Backoff<'a> {
    entropy: &'a dyn Entropy,
    next: Duration,
    cap: Duration,
}

impl<'a> Backoff<'a> {
    /// Waits for a server that may come back any moment.
    pub fn short(entropy: &'a dyn Entropy) -> Self {
        Self::new(entropy, SHORT)
    }

    /// Waits for a person.
    pub fn long(entropy: &'a dyn Entropy) -> Self {
        Self::new(entropy, LONG)
    }

    fn new(entropy: &'a dyn Entropy, (next, cap): (Duration, Duration)) -> Self {
        Self { entropy, next, cap }
    }

    /// The next wait: half of it fixed, half of it random.
    pub fn delay(&mut self) -> Duration {
        let whole = self.next.min(self.cap);
        self.next = whole.saturating_mul(2);
        let mut random = [0; 4];
        self.entropy.fill(&mut random);
        let half = whole / 2;
        half + half.mul_f64(f64::from(u32::from_le_bytes(random)) / f64::from(u32::MAX))
    }

    /// Waits. Nothing is lost when it is dropped.
    pub async fn wait(&mut self) {
        tokio::time::sleep(self.delay()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Fixed(u8);

    impl Entropy for Fixed {
        fn fill(&self, bytes: &mut [u8]) {
            bytes.fill(self.0);
        }
    }

    fn seconds(mut backoff: Backoff<'_>, count: usize) -> Vec<f64> {
        (0..count).map(|_| backoff.delay().as_secs_f64()).collect()
    }

    #[test]
    fn waits_double_up_to_the_cap_and_jitter_never_exceeds_them() {
        assert_eq!(
            seconds(Backoff::short(&Fixed(0xff)), 7),
            [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
        );
        assert_eq!(
            seconds(Backoff::short(&Fixed(0)), 3),
            [0.5, 1.0, 2.0],
            "half of a wait is certain"
        );
        assert_eq!(
            seconds(Backoff::long(&Fixed(0xff)), 4),
            [20.0, 40.0, 80.0, 120.0]
        );
    }
}
