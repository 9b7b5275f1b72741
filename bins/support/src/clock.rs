//! The system's clock.

use std::time::{SystemTime, UNIX_EPOCH};

use tec_core::port::Clock;
use tec_core::time::Timestamp;

/// The real-time clock of the host.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "there is nothing to configure")]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        #[expect(
            clippy::disallowed_methods,
            reason = "this is the one place that reads the clock"
        )]
        let now = SystemTime::now();
        let seconds = match now.duration_since(UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            Err(before) => -i64::try_from(before.duration().as_secs()).unwrap_or(i64::MAX),
        };
        Timestamp::from_unix_seconds(seconds)
    }
}
