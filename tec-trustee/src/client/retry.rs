//! Waiting between rounds.

use std::num::NonZeroU32;
use std::time::Duration;

use rand_core::CryptoRng;
use tec_core::ignition::NumRetries;
use tokio::time::Instant;

use super::RcarError;

/// Exponential back-off with jitter: a pure function from attempt number to delay.
///
/// The delay of attempt `n` lies between half and all of `base * 2^n`, at most `cap`, so that a rack of nodes
/// that lost power together does not come back in step.
///
/// ```
/// use std::time::Duration;
/// use tec_trustee::client::RetryPolicy;
/// # use rand_core::SeedableRng as _;
/// # let mut rng = rand_chacha::ChaCha20Rng::seed_from_u64(1);
/// let policy = RetryPolicy::default();
/// let first = policy.delay(0, &mut rng).unwrap();
/// assert!(first >= Duration::from_secs(1) && first <= Duration::from_secs(2));
/// assert_eq!(policy.delay(9, &mut rng), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryPolicy {
    /// Total number of rounds; `None` means no limit.
    pub rounds: Option<NonZeroU32>,
    /// Longest delay after the first round.
    pub base: Duration,
    /// Longest delay after any round.
    pub cap: Duration,
    /// No round begins later than this after the first one; `None` means no limit.
    pub deadline: Option<Duration>,
}

/// Rounds of the existing pin when the configuration sets none (clevis-pin-trustee).
const DEFAULT_ROUNDS: NonZeroU32 = NonZeroU32::MIN.saturating_add(9);

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            rounds: Some(DEFAULT_ROUNDS),
            base: Duration::from_secs(2),
            cap: Duration::from_mins(1),
            deadline: None,
        }
    }
}

impl RetryPolicy {
    /// The rounds of a pin's configuration, with the default delays.
    pub fn from_config(retries: Option<NumRetries>) -> Self {
        let rounds = match retries {
            Some(NumRetries::Rounds(rounds)) => NonZeroU32::new(rounds),
            Some(NumRetries::Infinity) => None,
            _ => Some(DEFAULT_ROUNDS),
        };
        Self { rounds, ..Self::default() }
    }

    /// Sets the delays.
    pub fn with_delays(mut self, base: Duration, cap: Duration) -> Self {
        self.base = base;
        self.cap = cap;
        self
    }

    /// Repeats rounds until one succeeds, another round cannot help, or the rounds or the time run out. A
    /// denial is final, since asking again costs a server a whole appraisal.
    ///
    /// # Cancel safety
    /// Nothing is kept between rounds.
    pub async fn rounds<T, A>(
        &self,
        rng: &mut (dyn CryptoRng + Send),
        mut ask: impl FnMut() -> A,
    ) -> Result<T, RcarError>
    where
        A: Future<Output = Result<T, RcarError>>,
    {
        let (begin, mut attempt) = (Instant::now(), 0);
        loop {
            let error = match ask().await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let delay = self.delay_within(attempt, begin.elapsed(), rng);
            let Some(delay) = delay.filter(|_| error.is_retryable()) else {
                return Err(error);
            };
            tokio::time::sleep(delay).await;
            attempt = attempt.saturating_add(1);
        }
    }

    /// Sets a deadline, counted from the beginning of the first round.
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// As [`delay`](Self::delay), but `None` also when the next round would begin after the
    /// deadline. `elapsed` is the time since the first round began.
    pub fn delay_within(
        &self,
        attempt: u32,
        elapsed: Duration,
        rng: &mut dyn CryptoRng,
    ) -> Option<Duration> {
        let delay = self.delay(attempt, rng)?;
        let is_late =
            self.deadline.is_some_and(|deadline| elapsed.saturating_add(delay) > deadline);
        (!is_late).then_some(delay)
    }

    /// How long to wait after round `attempt` (from 0) failed; `None` when it was the last.
    pub fn delay(&self, attempt: u32, rng: &mut dyn CryptoRng) -> Option<Duration> {
        let next = attempt.saturating_add(1);
        if self.rounds.is_some_and(|rounds| next >= rounds.get()) {
            return None;
        }
        let factor = 1_u32.checked_shl(attempt).unwrap_or(u32::MAX);
        let whole = self.base.saturating_mul(factor).min(self.cap);
        let half = whole / 2;
        let millis = u64::try_from(half.as_millis()).unwrap_or(u64::MAX);
        let jitter = rng.next_u64().checked_rem(millis.saturating_add(1));
        Some(half + Duration::from_millis(jitter.unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand_chacha::ChaCha20Rng;
    use rand_core::SeedableRng as _;

    use super::*;

    #[test]
    fn rounds_follow_the_configuration() {
        let rounds = |retries| RetryPolicy::from_config(retries).rounds.map(NonZeroU32::get);
        assert_eq!(rounds(None), Some(10));
        assert_eq!(rounds(Some(NumRetries::Rounds(3))), Some(3));
        assert_eq!(rounds(Some(NumRetries::Infinity)), None);
    }

    async fn rounds_of(policy: RetryPolicy, error: impl Fn() -> RcarError) -> (u32, Duration) {
        let (mut asked, begin) = (0, Instant::now());
        let mut rng = ChaCha20Rng::seed_from_u64(1);
        let result: Result<(), _> = policy
            .rounds(&mut rng, || {
                asked += 1;
                std::future::ready(Err(error()))
            })
            .await;
        assert!(result.is_err());
        (asked, begin.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_denial_is_asked_once_and_a_silent_server_until_the_deadline() {
        let server: tec_core::endpoint::BaseUrl = "http://a".parse().unwrap();
        let policy = RetryPolicy::default().with_deadline(Duration::from_secs(30));
        let denied = || RcarError::Denied {
            server: server.clone(),
            kind: crate::wire::ErrorKind::PolicyDeny,
            detail: String::new(),
            code: None,
            attempt: None,
            stage: super::super::Stage::Resource,
        };
        assert_eq!(rounds_of(policy, denied).await, (1, Duration::ZERO));
        let silent = || {
            RcarError::Call(super::super::CallError::Unavailable {
                server: server.clone(),
                status: 503,
            })
        };
        let (asked, waited) = rounds_of(policy, silent).await;
        assert!((4..=6).contains(&asked), "{asked}");
        assert!(waited <= Duration::from_secs(30));
    }

    #[test]
    fn no_round_begins_after_the_deadline() {
        let seconds = Duration::from_secs;
        let policy = RetryPolicy::from_config(Some(NumRetries::Infinity))
            .with_delays(seconds(2), seconds(8))
            .with_deadline(seconds(20));
        let mut rng = ChaCha20Rng::seed_from_u64(1);
        let (mut elapsed, mut rounds) = (Duration::ZERO, 1);
        while let Some(delay) = policy.delay_within(rounds - 1, elapsed, &mut rng) {
            elapsed += delay;
            rounds += 1;
        }
        assert!(elapsed <= seconds(20), "{elapsed:?}");
        assert!((4..=8).contains(&rounds), "{rounds}");
    }

    proptest! {
        #[test]
        fn delays_grow_stay_below_the_cap_and_differ(attempt in any::<u32>(), seed in any::<u64>()) {
            let policy = RetryPolicy::from_config(Some(NumRetries::Infinity));
            let mut rng = ChaCha20Rng::seed_from_u64(seed);
            let delay = policy.delay(attempt, &mut rng).unwrap();
            prop_assert!(delay <= policy.cap);
            let whole = policy.base.saturating_mul(1_u32.checked_shl(attempt).unwrap_or(u32::MAX));
            prop_assert!(delay >= whole.min(policy.cap) / 2);
        }
    }
}
