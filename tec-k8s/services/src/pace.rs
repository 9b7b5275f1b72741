//! Spreads callers over time: between attempts, and between renewals. When a whole platform starts, or comes
//! back after an outage, its callers must not all call at the same time.

use std::time::Duration;

use tec_core::port::Entropy;

/// Maximum of the first wait; it doubles with each attempt.
const FIRST: Duration = Duration::from_millis(500);
/// Upper limit of every wait.
const LONGEST: Duration = Duration::from_secs(30);
/// A renewal happens early by up to its time divided by this number.
const EARLIER: u32 = 10;

/// How long to wait after this many attempts, counted from 0: a random time up to the maximum for
/// that attempt.
pub fn between_tries(tried: u32, entropy: &dyn Entropy) -> Duration {
    let most = FIRST.saturating_mul(2_u32.saturating_pow(tried));
    up_to(most.min(LONGEST), entropy)
}

/// When to renew something due after this time: up to a tenth of it earlier, never later.
pub fn renewal(due: Duration, entropy: &dyn Entropy) -> Duration {
    due.saturating_sub(up_to(due / EARLIER, entropy))
}

fn up_to(most: Duration, entropy: &dyn Entropy) -> Duration {
    let mut bytes = [0; 8];
    entropy.fill(&mut bytes);
    let nanos = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
    // A slight bias towards some times does no harm.
    let drawn = u64::from_le_bytes(bytes).checked_rem(nanos.saturating_add(1));
    Duration::from_nanos(drawn.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Fixed(u64);

    impl Entropy for Fixed {
        fn fill(&self, bytes: &mut [u8]) {
            bytes.copy_from_slice(&self.0.to_le_bytes());
        }
    }

    /// The maximum that can be drawn for this many seconds.
    fn most(seconds: u64) -> Fixed {
        Fixed(seconds * 1_000_000_000)
    }

    #[test]
    fn the_longest_wait_doubles_up_to_half_a_minute_and_any_shorter_one_may_be_drawn() {
        assert_eq!(between_tries(0, &Fixed(0)), Duration::ZERO);
        assert_eq!(between_tries(0, &Fixed(500_000_000)), FIRST);
        assert_eq!(between_tries(4, &most(8)), Duration::from_secs(8));
        for tried in [6, 40, u32::MAX] {
            assert_eq!(between_tries(tried, &most(30)), LONGEST);
            assert_eq!(between_tries(tried, &Fixed(7)), Duration::from_nanos(7));
        }
    }

    #[test]
    fn a_renewal_is_never_late() {
        let due = Duration::from_secs(100);
        assert_eq!(renewal(due, &Fixed(0)), due);
        assert_eq!(renewal(due, &most(10)), Duration::from_secs(90));
        assert_eq!(renewal(Duration::ZERO, &Fixed(9)), Duration::ZERO);
    }
}
