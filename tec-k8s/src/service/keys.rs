//! Public halves of the keys that sign for NATS, cached for a short time.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use tec_core::service::vault::call::PublicHalf;
use tec_core::time::Timestamp;

/// How long a key is cached, in seconds. The signer names the version that it knows, so a key that was
/// replaced in the meantime signs with its previous version, which servers still accept.
const SECONDS: i64 = 60;

/// The cache, by name of the key. Only names of the platform's own keys get here, of which there are few.
#[derive(Debug, Default)]
pub struct Keys(Mutex<BTreeMap<String, (PublicHalf, Timestamp)>>);

impl Keys {
    /// The key with this name, if it was seen recently.
    pub(super) fn seen(&self, name: &str, now: Timestamp) -> Option<PublicHalf> {
        let keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (key, seen) = keys.get(name)?;
        // A clock that goes backwards extends nothing.
        let age = now.unix_seconds().checked_sub(seen.unix_seconds())?;
        (0..SECONDS).contains(&age).then_some(*key)
    }

    pub(super) fn see(&self, name: &str, key: PublicHalf, now: Timestamp) {
        let mut keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        keys.insert(name.to_owned(), (key, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_remembered_for_a_minute_and_never_by_a_clock_that_went_backwards() {
        let at = |seconds: i64| Timestamp::from_unix_seconds(1_700_000_000 + seconds);
        let key = PublicHalf { version: 1, bytes: [7; 32] };
        let keys = Keys::default();
        assert_eq!(keys.seen("operator", at(0)), None);
        keys.see("operator", key, at(0));
        assert_eq!(keys.seen("operator", at(59)), Some(key));
        assert_eq!(keys.seen("operator", at(60)), None);
        assert_eq!(keys.seen("operator", at(-1)), None);
        assert_eq!(keys.seen("account-app", at(0)), None);
    }
}
