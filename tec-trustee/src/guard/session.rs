//! The sessions that began through the guard, bounded.

use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tec_core::attest::Tee;
use tec_core::time::Timestamp;

use super::Passage;
use crate::kbs::budget::{Budget, Charge};
use crate::kbs::session::{OPEN, SHARE, TokenDigest, digest, record_bytes};
use crate::kbs::session_id::SessionId;
use crate::kbs::table::Table;

/// Pieces of evidence that one session may send: the Trustee lets a client try again with its nonce.
const MAX_TRIES: u8 = 3;

/// How far a session has come.
enum State {
    /// Evidence may come.
    Open,
    /// Evidence is with the Trustee. The session stays in this state if the answer is never seen: whether the
    /// Trustee accepted the evidence is then unknown.
    Forwarding,
    /// The Trustee issued its one token, which finds the session.
    Passed(Arc<Passage>),
}

struct Session {
    tee: Tee,
    nonce: String,
    tries: u8,
    state: State,
    charge: Charge,
}

/// All sessions; one lock, held for look-ups only.
#[derive(derive_more::Debug)]
#[debug("Sessions {{ .. }}")]
pub(super) struct Sessions {
    table: Mutex<Table<TokenDigest, Session>>,
    session_seconds: i64,
    budget: Budget,
}

impl Sessions {
    /// A session is kept for both lifetimes, since its token may be issued just before the session expires.
    pub(super) fn new(
        max: usize,
        (session_seconds, token_seconds): (i64, i64),
        max_bytes: usize,
    ) -> Self {
        let table = Mutex::new(Table::new(max, session_seconds.saturating_add(token_seconds)));
        Self { table, session_seconds, budget: Budget::new(max_bytes, SHARE) }
    }

    pub(super) fn len(&self) -> usize {
        self.table.lock().len()
    }

    /// Whether there is room for one more session.
    pub(super) fn has_room(&self, peer: Option<IpAddr>, now: Timestamp) -> bool {
        let mut table = self.table.lock();
        table.expire(now);
        table.has_room(peer)
    }

    /// Keeps a session that the Trustee opened. `false` if there is no room for it, or if the Trustee used an
    /// ID twice.
    pub(super) fn open(
        &self,
        id: SessionId,
        (tee, nonce): (Tee, &str),
        peer: Option<IpAddr>,
        now: Timestamp,
    ) -> bool {
        let mut charge = self.budget.charge(peer);
        let bytes = OPEN.saturating_add(nonce.len());
        let mut table = self.table.lock();
        if !table.make_room(peer, &mut charge, bytes) {
            return false;
        }
        let session =
            Session { tee, nonce: nonce.to_owned(), tries: 0, state: State::Open, charge };
        table.insert(id, peer, now, session)
    }

    /// Requested type of evidence and nonce of a session that may still send evidence; counts the attempt.
    pub(super) fn begin(
        &self,
        id: SessionId,
        now: Timestamp,
    ) -> Option<((Tee, Timestamp), String)> {
        let mut table = self.table.lock();
        let entry = table.get_mut(id, now)?;
        let opened = entry.opened;
        let alive = opened.plus_seconds(self.session_seconds) > now;
        let session = &mut entry.value;
        if !alive || session.tries >= MAX_TRIES || matches!(session.state, State::Forwarding) {
            return None;
        }
        session.tries += 1;
        Some(((session.tee, opened), session.nonce.clone()))
    }

    /// Whether evidence that was found good may be forwarded now. Only one piece is forwarded at a time, so
    /// that the token that the Trustee keeps is the one that this table knows.
    pub(super) fn forward(&self, id: SessionId, now: Timestamp) -> bool {
        let mut table = self.table.lock();
        let Some(entry) = table.get_mut(id, now) else {
            return false;
        };
        match entry.value.state {
            State::Open => {
                entry.value.state = State::Forwarding;
                true
            }
            State::Forwarding => false,
            State::Passed(..) => true,
        }
    }

    /// The Trustee refused the evidence; the client may send other evidence.
    pub(super) fn reopen(&self, id: SessionId, now: Timestamp) {
        if let Some(entry) = self.table.lock().get_mut(id, now)
            && matches!(entry.value.state, State::Forwarding)
        {
            entry.value.state = State::Open;
        }
    }

    /// The Trustee answered with a token. `false` if it differs from the session's token, since a token stays
    /// with the evidence for which it was issued, or if there is no room.
    pub(super) fn finish(
        &self,
        id: SessionId,
        passage: Arc<Passage>,
        token: &str,
        now: Timestamp,
    ) -> bool {
        let digest = digest(token);
        let bytes = OPEN.saturating_add(record_bytes(passage.record()));
        let mut table = self.table.lock();
        let Some(entry) = table.get_mut(id, now) else {
            return false;
        };
        match &entry.value.state {
            State::Open => false,
            State::Passed(_) => entry.key == Some(digest),
            State::Forwarding if !entry.value.charge.grow_to(bytes) => false,
            State::Forwarding => {
                entry.value.state = State::Passed(passage);
                table.set_key(id, digest);
                true
            }
        }
    }

    /// What is known about a session once it has attested.
    pub(super) fn passage(&self, id: SessionId, now: Timestamp) -> Option<Arc<Passage>> {
        match &self.table.lock().get(id, now)?.value.state {
            State::Passed(passage) => Some(Arc::clone(passage)),
            _ => None,
        }
    }

    /// The session for which a token was issued through this guard.
    pub(super) fn of_token(&self, token: &str) -> Option<SessionId> {
        self.table.lock().find(&digest(token))
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

    /// Two sessions that began at second 0.
    fn sessions() -> Sessions {
        let sessions = Sessions::new(2, (300, 100), 1 << 20);
        assert!(open(&sessions, 1, 0) && open(&sessions, 2, 0));
        sessions
    }

    fn open(sessions: &Sessions, number: u8, now: i64) -> bool {
        sessions.open(id(number), (Tee::Tpm, "n"), None, at(now))
    }

    fn passage(number: u64) -> Arc<Passage> {
        Arc::new(Passage::of(sample::attempt(number, None)))
    }

    /// Evidence is forwarded and answered with a token.
    fn finish(sessions: &Sessions, number: u8, attempt: u64, token: &str) -> bool {
        sessions.forward(id(number), at(1))
            && sessions.finish(id(number), passage(attempt), token, at(1))
    }

    #[test]
    fn old_sessions_make_room() {
        let sessions = sessions();
        assert!(!sessions.has_room(None, at(399)) && !open(&sessions, 3, 399));
        assert!(sessions.has_room(None, at(400)) && open(&sessions, 3, 400));
    }

    #[test]
    fn a_flood_from_a_few_networks_shuts_no_other_out() {
        let sessions = Sessions::new(8, (300, 100), 1 << 20);
        let open = |number, from| {
            let peer = Some(IpAddr::from([192, 0, 2, from]));
            let session = (Tee::Tpm, "n");
            sessions.has_room(peer, at(0)) && sessions.open(id(number), session, peer, at(0))
        };
        assert_eq!((0..100).filter(|number| open(*number, number % 4)).count(), 8);
        assert!(open(100, 9), "the network that has the most makes room");
        assert!(sessions.begin(id(100), at(1)).is_some());
    }

    #[test]
    fn a_session_may_try_a_few_times_and_not_for_ever() {
        let sessions = sessions();
        for _ in 0..MAX_TRIES {
            let begun = sessions.begin(id(1), at(1));
            assert_eq!(begun, Some(((Tee::Tpm, at(0)), "n".to_owned())));
            assert!(sessions.forward(id(1), at(1)));
            sessions.reopen(id(1), at(1));
        }
        assert_eq!(sessions.begin(id(1), at(1)), None);
        assert_eq!(sessions.begin(id(2), at(300)), None);
        assert_eq!(sessions.begin(id(9), at(1)), None);
    }

    #[test]
    fn one_evidence_of_a_session_is_on_its_way_at_a_time() {
        let sessions = sessions();
        assert!(sessions.forward(id(1), at(1)) && !sessions.forward(id(1), at(1)));
        assert_eq!(sessions.begin(id(1), at(1)), None);
        assert!(!sessions.finish(id(2), passage(1), "token", at(1)));
    }

    #[test]
    fn a_token_stays_with_the_evidence_for_which_it_was_issued() {
        let sessions = sessions();
        assert!(finish(&sessions, 1, 1, "token"));
        assert!(finish(&sessions, 1, 2, "token"));
        assert!(!finish(&sessions, 1, 2, "another"));
        let passage = sessions.passage(id(1), at(1)).unwrap();
        assert_eq!(passage.attempt(), sample::attempt_id(1));
        assert_eq!(sessions.of_token("another"), None);
    }

    #[test]
    fn a_token_is_known_as_long_as_its_session_is_kept() {
        let sessions = sessions();
        assert!(sessions.passage(id(1), at(1)).is_none());
        assert!(finish(&sessions, 1, 1, "token"));
        assert!(sessions.passage(id(1), at(399)).is_some());
        assert_eq!(sessions.of_token("token"), Some(id(1)));
        assert_eq!(sessions.of_token("other"), None);
        assert!(sessions.passage(id(1), at(400)).is_none());
        assert!(sessions.has_room(None, at(400)));
        assert!(sessions.of_token("token").is_none());
    }
}
