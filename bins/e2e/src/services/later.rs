//! A clock that a test sets forward.

use std::sync::atomic::{AtomicI64, Ordering};

use tec_core::port::Clock;
use tec_core::time::Timestamp;
use tec_support::SystemClock;

/// The real time, and what the test adds to it.
#[derive(Debug, Default)]
pub struct Later(AtomicI64);

impl Later {
    /// From now on, it is later by this many seconds.
    pub fn set(&self, seconds: i64) {
        self.0.store(seconds, Ordering::Relaxed);
    }

    /// It gets later by this many seconds.
    pub fn add(&self, seconds: i64) {
        self.0.fetch_add(seconds, Ordering::Relaxed);
    }
}

impl Clock for Later {
    fn now(&self) -> Timestamp {
        SystemClock.now().plus_seconds(self.0.load(Ordering::Relaxed))
    }
}
