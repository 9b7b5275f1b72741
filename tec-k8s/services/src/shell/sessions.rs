//! Logins of components, kept for a short time: a component asks for its credentials and at once for a
//! signature, and a login costs the vault as much as the answer.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tec_core::digest::Sha256Digest;
use tec_core::secret::SecretBytes;
use tec_core::time::Timestamp;

/// How long a login is kept, in seconds. An API server itself keeps a token's review for 10 s, so a removed
/// account is known half as long again; a certificate that it obtained before is valid for hours.
const SECONDS: i64 = 5;
/// Maximum number of logins that are kept; beyond it, callers log in each time.
const MOST: usize = 1024;

/// The logins, by the digest of the token that the vault accepted. A login holds a token of the vault, so each
/// call removes all that are too old.
#[derive(Debug)]
pub(super) struct Sessions<T>(Mutex<HashMap<Sha256Digest, (Arc<T>, Timestamp)>>);

impl<T> Default for Sessions<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Sessions<T> {
    /// The login with exactly this token, if it is recent.
    pub(super) fn seen(&self, token: &SecretBytes, now: Timestamp) -> Option<Arc<T>> {
        let sessions = self.recent(now);
        sessions.get(&key(token)).map(|(login, _)| Arc::clone(login))
    }

    pub(super) fn see(&self, token: &SecretBytes, login: Arc<T>, now: Timestamp) {
        let mut sessions = self.recent(now);
        if sessions.len() < MOST {
            sessions.insert(key(token), (login, now));
        }
    }

    /// The next call with this token logs in again.
    pub(super) fn forget(&self, token: &SecretBytes) {
        self.0.lock().remove(&key(token));
    }

    /// The logins that still count.
    fn recent(&self, now: Timestamp) -> MutexGuard<'_, HashMap<Sha256Digest, (Arc<T>, Timestamp)>> {
        let mut sessions = self.0.lock();
        sessions.retain(|_, (_, at)| is_recent(*at, now));
        sessions
    }
}

fn key(token: &SecretBytes) -> Sha256Digest {
    Sha256Digest::of(token.expose("to find its login"))
}

/// A clock that goes backwards extends nothing.
fn is_recent(at: Timestamp, now: Timestamp) -> bool {
    let age = now.unix_seconds().checked_sub(at.unix_seconds());
    age.is_some_and(|age| (0..SECONDS).contains(&age))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_unix_seconds(1_700_000_000 + seconds)
    }

    fn token(text: &str) -> SecretBytes {
        SecretBytes::new(text.as_bytes().to_vec())
    }

    #[test]
    fn a_login_is_kept_for_five_seconds_for_its_own_token_only() {
        let sessions = Sessions::default();
        let (one, other) = (token("one"), token("other"));
        assert_eq!(sessions.seen(&one, at(0)), None);
        sessions.see(&one, Arc::new("one"), at(0));
        assert_eq!(sessions.seen(&one, at(4)).as_deref(), Some(&"one"));
        assert_eq!(sessions.seen(&one, at(5)), None);
        sessions.see(&one, Arc::new("one"), at(0));
        assert_eq!(sessions.seen(&one, at(-1)), None, "the clock went backwards");
        sessions.see(&one, Arc::new("one"), at(0));
        assert_eq!(sessions.seen(&other, at(0)), None);
        sessions.forget(&other);
        assert!(sessions.seen(&one, at(0)).is_some());
        sessions.forget(&one);
        assert_eq!(sessions.seen(&one, at(0)), None);
    }

    #[test]
    fn an_old_login_is_gone_from_memory_after_the_next_call_of_anyone() {
        let sessions = Sessions::default();
        let kept = [0, 1].map(|_| Arc::new("a token of the vault"));
        let is_kept = |number: usize| Arc::strong_count(&kept[number]) > 1;
        sessions.see(&token("one"), Arc::clone(&kept[0]), at(0));
        sessions.see(&token("other"), Arc::clone(&kept[1]), at(4));
        assert!(is_kept(0) && is_kept(1));
        sessions.see(&token("third"), Arc::new("third"), at(5));
        assert!(!is_kept(0) && is_kept(1));
        sessions.seen(&token("unknown"), at(9));
        assert!(!is_kept(1));
    }

    #[test]
    fn the_number_of_kept_logins_is_limited_and_old_ones_make_room() {
        let sessions = Sessions::default();
        let of = |number: usize| token(&number.to_string());
        for number in 0..=MOST {
            sessions.see(&of(number), Arc::new(number), at(0));
        }
        assert!(sessions.seen(&of(MOST - 1), at(0)).is_some());
        assert_eq!(sessions.seen(&of(MOST), at(0)), None, "there is no room");
        sessions.see(&of(MOST), Arc::new(MOST), at(5));
        assert!(sessions.seen(&of(MOST), at(5)).is_some());
    }
}
