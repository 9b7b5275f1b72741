//! The keys that sign for NATS: their public halves, cached for a short time, and what they sign next.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tec_core::time::Timestamp;

use crate::caller::Refusal;

use super::batch::Batch;

/// How long a key is cached, in seconds.
const SECONDS: i64 = 60;

/// The versions of a key.
pub(super) type Versions = BTreeMap<u32, [u8; 32]>;

/// Messages that a version of a key signs together.
pub(super) type Signing = Batch<Vec<u8>, Result<[u8; 64], Refusal>>;

/// By name of the key. Only names of the platform's own keys get here, of which there are few.
#[derive(Debug, Default)]
pub struct Keys {
    seen: Mutex<BTreeMap<String, (Versions, Timestamp)>>,
    signing: Mutex<BTreeMap<(String, u32), Arc<Signing>>>,
}

impl Keys {
    /// This version of the key with this name, if it was seen recently.
    pub(super) fn seen(&self, name: &str, version: u32, now: Timestamp) -> Option<[u8; 32]> {
        let keys = self.seen.lock();
        let (key, seen) = keys.get(name)?;
        // A clock that goes backwards extends nothing.
        let age = now.unix_seconds().checked_sub(seen.unix_seconds())?;
        key.get(&version).copied().filter(|_| (0..SECONDS).contains(&age))
    }

    pub(super) fn see(&self, name: &str, key: Versions, now: Timestamp) {
        let mut keys = self.seen.lock();
        keys.insert(name.to_owned(), (key, now));
    }

    /// What waits for a signature by this version of a key.
    pub(super) fn signing(&self, name: &str, version: u32) -> Arc<Signing> {
        let mut signing = self.signing.lock();
        Arc::clone(signing.entry((name.to_owned(), version)).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_remembered_for_a_minute_and_never_by_a_clock_that_went_backwards() {
        let at = |seconds: i64| Timestamp::from_unix_seconds(1_700_000_000 + seconds);
        let keys = Keys::default();
        assert_eq!(keys.seen("operator", 1, at(0)), None);
        keys.see("operator", Versions::from([(1, [7; 32])]), at(0));
        assert_eq!(keys.seen("operator", 1, at(59)), Some([7; 32]));
        assert_eq!(keys.seen("operator", 2, at(59)), None, "it is asked for again");
        assert_eq!(keys.seen("operator", 1, at(60)), None);
        assert_eq!(keys.seen("operator", 1, at(-1)), None);
        assert_eq!(keys.seen("account-app", 1, at(0)), None);
    }
}
