//! Waits for what another process does.

use std::time::{Duration, Instant};

/// Longest wait, on a machine that others use, too.
const LIMIT: Duration = Duration::from_mins(1);

#[expect(clippy::disallowed_methods, reason = "the one poll loop, with a deadline")]
pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "{what} did not happen in time");
        std::thread::sleep(Duration::from_millis(20));
    }
}
