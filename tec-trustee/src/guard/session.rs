//! The sessions that the guard saw begin, bounded.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use sha2::Digest as _;
use sha2::Sha256;
use tec_core::attest::Tee;
use tec_core::time::Timestamp;

use super::Passage;
use crate::kbs::session::SessionId;

/// Evidence that one session may bring: the Trustee lets a client try again with its nonce.
const MAX_TRIES: u8 = 3;

/// Digest of a token that passed. As good as the token only for who can invert SHA-256.
type TokenDigest = [u8; 32];

struct Session {
    tee: Tee,
    nonce: String,
    opened: Timestamp,
    tries: u8,
    passed: Option<(Arc<Passage>, TokenDigest)>,
}

#[derive(Default)]
struct Table {
    sessions: HashMap<SessionId, Session>,
    tokens: HashMap<TokenDigest, SessionId>,
    /// In the order in which they were opened, which is that of their expiry.
    queue: VecDeque<SessionId>,
}

/// All sessions; one lock, held for look-ups only.
pub(super) struct Sessions {
    table: Mutex<Table>,
    max: usize,
    session_seconds: i64,
    /// How long a session is kept: its token may be as young as the session is old.
    kept_seconds: i64,
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").finish_non_exhaustive()
    }
}

impl Sessions {
    pub(super) fn new(max: usize, (session_seconds, token_seconds): (i64, i64)) -> Self {
        Self {
            table: Mutex::default(),
            max,
            session_seconds,
            kept_seconds: session_seconds.saturating_add(token_seconds),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn len(&self) -> usize {
        self.table().sessions.len()
    }

    /// Whether one more session may be asked for.
    pub(super) fn has_room(&self, now: Timestamp) -> bool {
        let mut table = self.table();
        table.expire(now, self.kept_seconds);
        table.sessions.len() < self.max
    }

    /// Keeps a session that the Trustee opened. `false` when there is no room for it, or when the
    /// Trustee gave out an id twice.
    pub(super) fn open(&self, id: SessionId, tee: Tee, nonce: &str, now: Timestamp) -> bool {
        let mut table = self.table();
        if table.sessions.len() >= self.max || table.sessions.contains_key(&id) {
            return false;
        }
        table.queue.push_back(id);
        let session = Session {
            tee,
            nonce: nonce.to_owned(),
            opened: now,
            tries: 0,
            passed: None,
        };
        table.sessions.insert(id, session);
        true
    }

    /// Sort of evidence and nonce of a session that may still bring evidence; counts the try.
    pub(super) fn begin(&self, id: SessionId, now: Timestamp) -> Option<(Tee, String)> {
        let mut table = self.table();
        let session = table.sessions.get_mut(&id)?;
        let alive = session.opened.plus_seconds(self.session_seconds) > now;
        if !alive || session.tries >= MAX_TRIES {
            return None;
        }
        session.tries += 1;
        Some((session.tee, session.nonce.clone()))
    }

    /// The Trustee accepted the evidence and issued a token.
    pub(super) fn finish(&self, id: SessionId, passage: Arc<Passage>, token: &str) {
        let digest = digest(token);
        let mut table = self.table();
        let Some(session) = table.sessions.get_mut(&id) else {
            return;
        };
        let former = session.passed.replace((passage, digest));
        if let Some((_, former)) = former {
            table.tokens.remove(&former);
        }
        table.tokens.insert(digest, id);
    }

    /// Who a session is, once it attested.
    pub(super) fn passage(&self, id: SessionId, now: Timestamp) -> Option<Arc<Passage>> {
        let table = self.table();
        let session = table.sessions.get(&id)?;
        let kept = session.opened.plus_seconds(self.kept_seconds) > now;
        let (passage, _) = session.passed.as_ref().filter(|_| kept)?;
        Some(Arc::clone(passage))
    }

    /// Who a token was issued to, through this guard.
    pub(super) fn passage_of_token(&self, token: &str, now: Timestamp) -> Option<Arc<Passage>> {
        let id = *self.table().tokens.get(&digest(token))?;
        self.passage(id, now)
    }
}

fn digest(token: &str) -> TokenDigest {
    Sha256::digest(token).into()
}

impl Table {
    fn expire(&mut self, now: Timestamp, kept_seconds: i64) {
        while let Some(id) = self.queue.front().copied() {
            let expired = self
                .sessions
                .get(&id)
                .is_none_or(|session| session.opened.plus_seconds(kept_seconds) <= now);
            if !expired {
                break;
            }
            self.queue.pop_front();
            if let Some((_, token)) = self.sessions.remove(&id).and_then(|gone| gone.passed) {
                self.tokens.remove(&token);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tec_core::testing::sample;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_unix_seconds(seconds)
    }

    fn id(last: u8) -> SessionId {
        SessionId::parse(&format!("{last:032x}")).unwrap()
    }

    fn sessions() -> Sessions {
        Sessions::new(2, (300, 100))
    }

    #[test]
    fn the_table_is_bounded_and_old_sessions_make_room() {
        let sessions = sessions();
        assert!(sessions.open(id(1), Tee::Tpm, "n", at(0)));
        assert!(
            !sessions.open(id(1), Tee::Tpm, "n", at(0)),
            "an id counts once"
        );
        assert!(sessions.open(id(2), Tee::Tpm, "n", at(1)));
        assert!(!sessions.has_room(at(399)) && !sessions.open(id(3), Tee::Tpm, "n", at(399)));
        assert!(sessions.has_room(at(400)));
        assert!(sessions.open(id(3), Tee::Tpm, "n", at(400)));
    }

    #[test]
    fn a_session_may_try_a_few_times_and_not_for_ever() {
        let sessions = sessions();
        sessions.open(id(1), Tee::Tpm, "n", at(0));
        sessions.open(id(2), Tee::Tpm, "n", at(0));
        for _ in 0..MAX_TRIES {
            assert_eq!(
                sessions.begin(id(1), at(1)),
                Some((Tee::Tpm, "n".to_owned()))
            );
        }
        assert_eq!(sessions.begin(id(1), at(1)), None);
        assert_eq!(sessions.begin(id(2), at(300)), None);
        assert_eq!(sessions.begin(id(9), at(1)), None);
    }

    #[test]
    fn a_token_is_known_as_long_as_its_session_is_kept() {
        let sessions = sessions();
        sessions.open(id(1), Tee::Tpm, "n", at(0));
        let passage = Arc::new(Passage::of(sample::attempt(1, None)));
        assert!(sessions.passage(id(1), at(1)).is_none());
        sessions.finish(id(1), passage, "token");
        assert!(sessions.passage(id(1), at(399)).is_some());
        assert!(sessions.passage_of_token("token", at(399)).is_some());
        assert!(sessions.passage_of_token("other", at(1)).is_none());
        assert!(sessions.passage_of_token("token", at(400)).is_none());
        assert!(sessions.has_room(at(400)));
        assert!(sessions.table().tokens.is_empty());
    }
}
