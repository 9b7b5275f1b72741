//! A clock that stands still until a test moves it.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::port::Clock;
use crate::time::Timestamp;

/// A [`Clock`] that a test sets and advances.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// A clock that shows `now`.
    pub fn new(now: Timestamp) -> Self {
        Self(AtomicI64::new(now.unix_seconds()))
    }

    /// Sets the clock; it may go backwards.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.unix_seconds(), Ordering::SeqCst);
    }

    /// Moves the clock by `seconds`, which may be negative.
    pub fn advance_seconds(&self, seconds: i64) {
        self.0.fetch_add(seconds, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_unix_seconds(self.0.load(Ordering::SeqCst))
    }
}
