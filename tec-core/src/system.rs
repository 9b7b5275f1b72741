//! The host's clock and random number generator, as ports (feature `system`).

use std::time::{SystemTime, UNIX_EPOCH};

use crate::port::{Clock, Entropy};
use crate::time::Timestamp;

/// The real-time clock of the host.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
        let now = SystemTime::now();
        let seconds = match now.duration_since(UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            Err(before) => -i64::try_from(before.duration().as_secs()).unwrap_or(i64::MAX),
        };
        Timestamp::from_unix_seconds(seconds)
    }
}

/// The kernel's random number generator.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        // Without randomness no key may be generated, and continuing in any way would be unsafe.
        #[expect(clippy::expect_used, reason = "getrandom fails only on kernels without it")]
        getrandom::fill(bytes).expect("the kernel gives random numbers");
    }
}
