//! The sessions.

use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tec_core::attest::{Attempt, Tee};
use tec_core::id::AttemptId;
use tec_core::time::Timestamp;

use super::Admission;
use super::budget::{Budget, Charge};
use super::session_id::SessionId;
use super::shared::Opened;
use super::table::Table;

/// Bytes of a session that proved nothing, including its entries in the tables.
pub(crate) const OPEN: usize = 512;
/// The part of all bytes that one client network may have, as a divisor.
pub(crate) const SHARE: usize = 2;

/// Bytes that the record of an attempt takes: about twice its JSON.
pub(crate) fn record_bytes(record: &Attempt) -> usize {
    serde_json::to_vec(record).map_or(usize::MAX, |json| json.len().saturating_mul(2))
}

/// Digest of a token. As good as the token only to someone who can invert SHA-256.
pub(crate) type TokenDigest = [u8; 32];

/// What is kept of a token.
#[derive(Clone, Debug)]
pub(super) enum Kept {
    /// All of it.
    Token(Arc<str>),
    /// The backend refused: the token obtains nothing, so only its digest is kept, to answer with the code of
    /// that refusal.
    Withheld(TokenDigest),
}

impl Kept {
    fn new(token: &Arc<str>, admission: &Admission) -> Self {
        match admission.refused {
            None => Self::Token(Arc::clone(token)),
            Some(_) => Self::Withheld(digest(token)),
        }
    }

    /// Whether it is exactly this token.
    pub(super) fn is(&self, token: &str) -> bool {
        match self {
            Self::Token(own) => **own == *token,
            Self::Withheld(own) => *own == digest(token),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Token(token) => token.len(),
            Self::Withheld(digest) => digest.len(),
        }
    }
}

pub(crate) fn digest(token: &str) -> TokenDigest {
    Sha256::digest(token).into()
}

/// What an attested session holds.
#[derive(Clone, Debug)]
pub(super) struct Passed {
    pub(super) token: Kept,
    pub(super) admission: Arc<Admission>,
}

#[derive(Debug)]
enum State {
    /// The nonce was issued.
    Authed,
    /// Evidence arrived, or the nonce was wrong: the nonce is spent. The session stays in the table until it
    /// expires, so that failing attempts count toward the bound.
    Spent,
    /// Done.
    Attested(Passed),
}

#[derive(Debug)]
struct Session {
    tee: Tee,
    nonce: String,
    state: State,
    charge: Charge,
}

/// How an attempt to use a session's nonce begins.
#[derive(Debug)]
pub(super) enum Begin {
    /// There is no such session, it expired, or its nonce is spent.
    Unknown,
    /// The session is already attested.
    Attested { passed: Passed, opened: Timestamp },
    /// The evidence is for another nonce. This session's nonce is now spent.
    WrongNonce,
    /// Continue; the nonce is now spent.
    Fresh { tee: Tee, opened: Timestamp },
}

/// All sessions; one lock, held for look-ups only.
#[derive(Debug)]
pub(super) struct Sessions {
    table: Mutex<Table<AttemptId, Session>>,
    ttl_seconds: i64,
    budget: Budget,
}

impl Sessions {
    /// At most `max` sessions, each for `ttl_seconds`, and at most `max_bytes` for all of them.
    pub(super) fn new(max: usize, ttl_seconds: i64, max_bytes: usize) -> Self {
        let table = Mutex::new(Table::new(max, ttl_seconds));
        Self { table, ttl_seconds, budget: Budget::new(max_bytes, SHARE) }
    }

    pub(super) fn len(&self) -> usize {
        self.table.lock().len()
    }

    /// Whether a session may still send or show something.
    pub(super) fn is_known(&self, id: SessionId, now: Timestamp) -> bool {
        self.table.lock().get(id, now).is_some()
    }

    /// When a session expires.
    pub(super) fn end(&self, opened: Timestamp) -> Timestamp {
        opened.plus_seconds(self.ttl_seconds)
    }

    /// Opens a session, or leaves its state alone if it is known; `false` if there is no room.
    pub(super) fn open(&self, session: &Opened, peer: Option<IpAddr>, now: Timestamp) -> bool {
        let mut charge = self.budget.charge(peer);
        let mut table = self.table.lock();
        table.expire(now);
        if table.get(session.id, now).is_some() {
            return true;
        }
        if table.was_displaced(session.id, session.since)
            || !table.make_room(peer, &mut charge, OPEN)
        {
            return false;
        }
        let Opened { id, tee, nonce, since } = session.clone();
        let session = Session { tee, nonce, state: State::Authed, charge };
        table.insert(id, peer, since, session)
    }

    /// Spends the nonce of a session, if it is the right one.
    pub(super) fn begin(&self, id: SessionId, nonce: Option<&str>, now: Timestamp) -> Begin {
        let mut table = self.table.lock();
        let Some(entry) = table.get_mut(id, now) else {
            return Begin::Unknown;
        };
        let opened = entry.opened;
        let session = &mut entry.value;
        match &session.state {
            State::Spent => Begin::Unknown,
            State::Attested(passed) => Begin::Attested { passed: passed.clone(), opened },
            State::Authed => {
                session.state = State::Spent;
                if nonce == Some(session.nonce.as_str()) {
                    Begin::Fresh { tee: session.tee, opened }
                } else {
                    Begin::WrongNonce
                }
            }
        }
    }

    /// Keeps the result of an attempt that [`begin`](Self::begin) started; `false` if there is no room for
    /// it. A session that expired in the meantime keeps nothing.
    pub(super) fn finish(
        &self,
        id: SessionId,
        token: &Arc<str>,
        admission: &Arc<Admission>,
        now: Timestamp,
    ) -> bool {
        let token = Kept::new(token, admission);
        let record = admission.record.as_ref().map_or(0, record_bytes);
        let bytes = OPEN.saturating_add(token.bytes()).saturating_add(record);
        let mut table = self.table.lock();
        table.expire(now);
        let Some(entry) = table.get_mut(id, now) else {
            return true;
        };
        if !entry.value.charge.grow_to(bytes) {
            return false;
        }
        entry.value.state = State::Attested(Passed { token, admission: Arc::clone(admission) });
        table.set_key(id, admission.attempt);
        true
    }

    /// The result of a session.
    pub(super) fn passed(&self, id: SessionId, now: Timestamp) -> Option<Passed> {
        match &self.table.lock().get(id, now)?.value.state {
            State::Attested(passed) => Some(passed.clone()),
            _ => None,
        }
    }

    /// The result of the session in which an attempt was made.
    pub(super) fn of_attempt(&self, attempt: AttemptId, now: Timestamp) -> Option<Passed> {
        let id = self.table.lock().find(&attempt)?;
        self.passed(id, now)
    }
}

#[cfg(test)]
mod tests {
    use tec_core::code::Code;
    use tec_core::testing::{SeededEntropy, sample};

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_unix_seconds(seconds)
    }

    fn open(sessions: &Sessions, now: i64) -> Option<SessionId> {
        let id = SessionId::random(&SeededEntropy::new(sessions.len() as u64));
        let session = Opened { id, tee: Tee::Tpm, nonce: "n".to_owned(), since: at(now) };
        sessions.open(&session, None, at(now)).then_some(id)
    }

    #[test]
    fn a_nonce_is_spent_by_its_first_use_good_or_bad() {
        let sessions = Sessions::new(9, 300, 1 << 20);
        let good = open(&sessions, 0).unwrap();
        assert!(matches!(
            sessions.begin(good, Some("n"), at(1)),
            Begin::Fresh { tee: Tee::Tpm, .. }
        ));
        assert!(matches!(sessions.begin(good, Some("n"), at(1)), Begin::Unknown));
        let bad = open(&sessions, 0).unwrap();
        assert!(matches!(sessions.begin(bad, Some("old"), at(1)), Begin::WrongNonce));
        assert!(matches!(sessions.begin(bad, Some("n"), at(1)), Begin::Unknown));
    }

    #[test]
    fn results_are_found_until_they_expire() {
        let sessions = Sessions::new(9, 300, 1 << 20);
        let id = open(&sessions, 0).unwrap();
        let admission = Arc::new(Admission::new(sample::attempt_id(1)));
        assert!(sessions.passed(id, at(1)).is_none());
        assert!(sessions.finish(id, &"t".into(), &admission, at(1)));
        assert!(sessions.passed(id, at(299)).is_some());
        assert!(sessions.of_attempt(sample::attempt_id(1), at(299)).is_some());
        assert!(sessions.passed(id, at(300)).is_none());
        assert!(matches!(sessions.begin(id, Some("n"), at(300)), Begin::Unknown));
        open(&sessions, 301).unwrap();
        assert!(sessions.table.lock().find(&sample::attempt_id(1)).is_none());
    }

    #[test]
    fn bytes_of_all_sessions_are_bounded() {
        let sessions = Sessions::new(9, 300, 4 * OPEN);
        let admission = Arc::new(Admission::new(sample::attempt_id(1)));
        let id = open(&sessions, 0).unwrap();
        let large: Arc<str> = "t".repeat(4 * OPEN).into();
        assert!(!sessions.finish(id, &large, &admission, at(1)));
        assert!(sessions.passed(id, at(1)).is_none());
        for _ in 0..3 {
            open(&sessions, 0).unwrap();
        }
        assert!(open(&sessions, 0).is_none());
        assert!(open(&sessions, 300).is_some(), "expired ones give theirs back");
    }

    #[test]
    fn a_flood_from_a_few_networks_shuts_no_other_out() {
        let peer = |last| Some(IpAddr::from([192, 0, 2, last]));
        for (max, bytes) in [(64, 1 << 20), (1 << 20, 64 * OPEN)] {
            let sessions = Sessions::new(max, 300, bytes);
            let open = |number: u64, from: u8| {
                let id = SessionId::random(&SeededEntropy::new(number));
                let nonce = number.to_string();
                let session = Opened { id, tee: Tee::Tpm, nonce, since: at(0) };
                sessions.open(&session, peer(from), at(0)).then_some(id)
            };
            for flooded in 0..1000 {
                open(flooded, u8::try_from(flooded % 4).unwrap());
            }
            let id = open(1000, 9).unwrap();
            for flooded in 1001..1050 {
                open(flooded, 1);
            }
            assert!(matches!(sessions.begin(id, Some("1000"), at(1)), Begin::Fresh { .. }));
        }
    }

    #[test]
    fn of_a_withheld_admission_no_token_is_kept() {
        let sessions = Sessions::new(9, 300, 4 * OPEN);
        let id = open(&sessions, 0).unwrap();
        let refused = Admission::new(sample::attempt_id(1)).refused_with(Code::AkNotBound);
        let large: Arc<str> = "t".repeat(4 * OPEN).into();
        assert!(sessions.finish(id, &large, &Arc::new(refused), at(1)));
        let passed = sessions.passed(id, at(1)).unwrap();
        assert!(matches!(passed.token, Kept::Withheld(_)));
        assert!(passed.token.is(&large) && !passed.token.is("t"));
        assert_eq!(passed.admission.refused, Some(Code::AkNotBound));
    }

    #[test]
    fn only_the_lowercase_simple_form_is_an_id() {
        let id = SessionId::random(&SeededEntropy::new(1)).to_string();
        assert!(SessionId::parse(&id).is_some());
        assert_eq!(id.as_bytes()[12], b'4');
        for bad in ["", &id[1..], &id.to_uppercase(), "zz"] {
            assert!(SessionId::parse(bad).is_none());
        }
    }
}
