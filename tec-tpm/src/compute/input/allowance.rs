//! How much all packed streams of one image together may unpack to.
//!
//! ```text
//! what came out <= FREE + RATIO * what went in
//! ```
//! The sum is limited, not each stream, so that many small bombs count as one large one. A stream within a
//! stream, such as a layer of a packed layout, adds only to the output: it is output itself.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::unpack_error::UnpackError;

/// Bytes that any image may unpack to: a small image of zeros is not an attack.
const FREE: u64 = 128 << 20;
/// Highest ratio beyond that. The ratio of images is below 10, that of gzip at most 1032.
const RATIO: u64 = 100;
/// Maximum number of bytes in any case; images of operating systems have some 10 GiB.
const MAX_UNPACKED: u64 = 64 << 30;

/// The allowance of an image, which its streams share.
#[derive(Clone, Default)]
pub(super) struct Allowance {
    used: Arc<Used>,
    depth: Depth,
}

/// Whether a stream is stored in the image as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Depth {
    #[default]
    Outer,
    Inner,
}

#[derive(Default)]
struct Used {
    packed: AtomicU64,
    unpacked: AtomicU64,
}

impl fmt::Debug for Allowance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allowance").field("depth", &self.depth).finish_non_exhaustive()
    }
}

impl Allowance {
    /// The allowance for streams inside streams of this one.
    pub(super) fn within(&self) -> Self {
        Self { used: Arc::clone(&self.used), depth: Depth::Inner }
    }

    /// The meter of a stream that may be read several times.
    pub(super) fn meter(&self) -> Arc<Meter> {
        Arc::new(Meter {
            allowance: self.clone(),
            packed: AtomicU64::new(0),
            unpacked: AtomicU64::new(0),
        })
    }

    fn add(&self, packed: u64, unpacked: u64) -> Result<(), UnpackError> {
        let used = &self.used;
        let packed = match self.depth {
            Depth::Outer => used.packed.fetch_add(packed, Ordering::Relaxed) + packed,
            Depth::Inner => used.packed.load(Ordering::Relaxed),
        };
        let unpacked = used.unpacked.fetch_add(unpacked, Ordering::Relaxed) + unpacked;
        if unpacked > MAX_UNPACKED {
            return Err(UnpackError::TooLarge(MAX_UNPACKED));
        }
        if unpacked > FREE.saturating_add(packed.saturating_mul(RATIO)) {
            return Err(UnpackError::Ratio { packed, unpacked });
        }
        Ok(())
    }
}

/// The furthest that a stream has been read: reading it again costs nothing.
#[derive(Debug)]
pub(super) struct Meter {
    allowance: Allowance,
    packed: AtomicU64,
    unpacked: AtomicU64,
}

impl Meter {
    /// Counts what went in and came out of the stream since it was opened.
    pub(super) fn note(&self, packed: u64, unpacked: u64) -> Result<(), UnpackError> {
        let more = |known: &AtomicU64, now: u64| {
            now.saturating_sub(known.fetch_max(now, Ordering::Relaxed))
        };
        let (packed, unpacked) = (more(&self.packed, packed), more(&self.unpacked, unpacked));
        self.allowance.add(packed, unpacked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_again_is_not_counted_again() {
        let meter = Allowance::default().meter();
        for _ in 0..2 {
            assert!(meter.note(1, FREE / 2).is_ok());
            assert!(meter.note(1, FREE + RATIO).is_ok());
        }
        let beyond = meter.note(1, FREE + RATIO + 1);
        assert!(matches!(beyond, Err(UnpackError::Ratio { packed: 1, .. })));
    }

    #[test]
    fn what_comes_out_of_a_stream_gives_no_allowance_to_streams_within() {
        let outer = Allowance::default();
        assert!(outer.meter().note(10, FREE).is_ok());
        let inner = outer.within().meter();
        assert!(inner.note(FREE, 10 * RATIO).is_ok());
        assert!(inner.note(FREE, 10 * RATIO + 1).is_err());
    }

    #[test]
    fn nothing_unpacks_to_more_than_the_limit() {
        let meter = Allowance::default().meter();
        assert!(meter.note(MAX_UNPACKED, MAX_UNPACKED).is_ok());
        let beyond = meter.note(MAX_UNPACKED, MAX_UNPACKED + 1);
        assert!(matches!(beyond, Err(UnpackError::TooLarge(_))));
    }
}
