//! The bounded table of sessions.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use tec_core::attest::Tee;
use tec_core::id::AttemptId;
use tec_core::port::Entropy;
use tec_core::time::Timestamp;

use super::Admission;

/// Id of a session: 32 lowercase hexadecimal digits, the simple form of a UUID (contract 1.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SessionId([u8; 16]);

impl SessionId {
    fn random(entropy: &dyn Entropy) -> Self {
        let mut bytes = [0_u8; 16];
        entropy.fill(&mut bytes);
        // Version 4, variant 1 (RFC 9562, section 5.4).
        bytes[6] = (bytes[6] & 0x0f) | 0x40;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        Self(bytes)
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let lower = text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
        let mut bytes = [0; 16];
        hex::decode_to_slice(text, &mut bytes).ok()?;
        lower.then_some(Self(bytes))
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// Session ids are as good as passwords: they do not print.
impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionId([redacted])")
    }
}

/// What an attested session holds.
#[derive(Clone, Debug)]
pub(super) struct Passed {
    pub(super) token: Arc<str>,
    pub(super) admission: Arc<Admission>,
}

#[derive(Debug)]
enum State {
    /// The nonce is out.
    Authed,
    /// Evidence came, or the nonce was wrong: the nonce is spent. Stays in the table until it
    /// expires, so that failing attempts count against the bound.
    Spent,
    /// Done.
    Attested(Passed),
}

#[derive(Debug)]
struct Session {
    tee: Tee,
    nonce: String,
    expires: Timestamp,
    state: State,
}

/// How an attempt to use a session's nonce begins.
#[derive(Debug)]
pub(super) enum Begin {
    /// There is no such session, it expired, or its nonce is spent.
    Unknown,
    /// It is attested already.
    Attested(Passed, Timestamp),
    /// The evidence is for another nonce. This session's nonce is spent now.
    WrongNonce,
    /// Go on; the nonce is spent now.
    Fresh(Tee, Timestamp),
}

#[derive(Debug, Default)]
struct Table {
    sessions: HashMap<SessionId, Session>,
    by_attempt: HashMap<AttemptId, SessionId>,
    /// In the order in which they were opened, which is that of their expiry.
    queue: VecDeque<SessionId>,
}

/// All sessions; one lock, held for look-ups only.
#[derive(Debug)]
pub(super) struct Sessions {
    table: Mutex<Table>,
    max: usize,
    ttl_seconds: i64,
}

impl Sessions {
    pub(super) fn new(max: usize, ttl_seconds: i64) -> Self {
        Self {
            table: Mutex::default(),
            max,
            ttl_seconds,
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a session; `None` when the table is full of sessions that are not expired.
    pub(super) fn open(
        &self,
        tee: Tee,
        nonce: &str,
        now: Timestamp,
        entropy: &dyn Entropy,
    ) -> Option<(SessionId, Timestamp)> {
        let id = SessionId::random(entropy);
        let expires = now.plus_seconds(self.ttl_seconds);
        let mut table = self.table();
        table.expire(now);
        if table.sessions.len() >= self.max || table.sessions.contains_key(&id) {
            return None;
        }
        table.queue.push_back(id);
        let session = Session {
            tee,
            nonce: nonce.to_owned(),
            expires,
            state: State::Authed,
        };
        table.sessions.insert(id, session);
        Some((id, expires))
    }

    /// Spends the nonce of a session, if it is the right one.
    pub(super) fn begin(&self, id: SessionId, nonce: Option<&str>, now: Timestamp) -> Begin {
        let mut table = self.table();
        let session = table.sessions.get_mut(&id);
        let Some(session) = session.filter(|session| session.expires > now) else {
            return Begin::Unknown;
        };
        match &session.state {
            State::Spent => Begin::Unknown,
            State::Attested(passed) => Begin::Attested(passed.clone(), session.expires),
            State::Authed => {
                session.state = State::Spent;
                if nonce == Some(session.nonce.as_str()) {
                    Begin::Fresh(session.tee, session.expires)
                } else {
                    Begin::WrongNonce
                }
            }
        }
    }

    /// Keeps the result of an attempt that [`begin`](Self::begin) started.
    pub(super) fn finish(&self, id: SessionId, passed: Passed) {
        let mut table = self.table();
        let attempt = passed.admission.attempt;
        if let Some(session) = table.sessions.get_mut(&id) {
            session.state = State::Attested(passed);
            table.by_attempt.insert(attempt, id);
        }
    }

    /// The result of a session.
    pub(super) fn passed(&self, id: SessionId, now: Timestamp) -> Option<Passed> {
        let table = self.table();
        let session = table.sessions.get(&id)?;
        match &session.state {
            State::Attested(passed) if session.expires > now => Some(passed.clone()),
            _ => None,
        }
    }

    /// The result of the session in which an attempt was made.
    pub(super) fn of_attempt(&self, attempt: AttemptId, now: Timestamp) -> Option<Passed> {
        let id = *self.table().by_attempt.get(&attempt)?;
        self.passed(id, now)
    }
}

impl Table {
    fn expire(&mut self, now: Timestamp) {
        while let Some(id) = self.queue.front().copied() {
            let expired = self
                .sessions
                .get(&id)
                .is_none_or(|session| session.expires <= now);
            if !expired {
                break;
            }
            self.queue.pop_front();
            if let Some(Session {
                state: State::Attested(passed),
                ..
            }) = self.sessions.remove(&id)
            {
                self.by_attempt.remove(&passed.admission.attempt);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tec_core::testing::SeededEntropy;
    use tec_core::testing::sample;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_unix_seconds(seconds)
    }

    #[test]
    fn the_table_is_bounded_and_expired_sessions_make_room() {
        let (sessions, entropy) = (Sessions::new(2, 300), SeededEntropy::new(1));
        let open = |now| sessions.open(Tee::Tpm, "n", at(now), &entropy);
        assert!(open(0).is_some() && open(10).is_some());
        assert!(open(299).is_none());
        assert!(open(300).is_some());
        assert!(open(301).is_none());
    }

    #[test]
    fn a_nonce_is_spent_by_its_first_use_good_or_bad() {
        let (sessions, entropy) = (Sessions::new(9, 300), SeededEntropy::new(1));
        let (good, _) = sessions.open(Tee::Tpm, "n", at(0), &entropy).unwrap();
        assert!(matches!(
            sessions.begin(good, Some("n"), at(1)),
            Begin::Fresh(Tee::Tpm, _)
        ));
        assert!(matches!(
            sessions.begin(good, Some("n"), at(1)),
            Begin::Unknown
        ));
        let (bad, _) = sessions.open(Tee::Tpm, "n", at(0), &entropy).unwrap();
        assert!(matches!(
            sessions.begin(bad, Some("old"), at(1)),
            Begin::WrongNonce
        ));
        assert!(matches!(
            sessions.begin(bad, Some("n"), at(1)),
            Begin::Unknown
        ));
    }

    #[test]
    fn results_are_found_until_they_expire() {
        let (sessions, entropy) = (Sessions::new(9, 300), SeededEntropy::new(1));
        let (id, _) = sessions.open(Tee::Tpm, "n", at(0), &entropy).unwrap();
        let admission = Arc::new(Admission::new(sample::attempt_id(1)));
        assert!(sessions.passed(id, at(1)).is_none());
        sessions.finish(
            id,
            Passed {
                token: "t".into(),
                admission,
            },
        );
        assert!(sessions.passed(id, at(299)).is_some());
        assert!(
            sessions
                .of_attempt(sample::attempt_id(1), at(299))
                .is_some()
        );
        assert!(sessions.passed(id, at(300)).is_none());
        assert!(matches!(
            sessions.begin(id, Some("n"), at(300)),
            Begin::Unknown
        ));
        sessions.open(Tee::Tpm, "n", at(301), &entropy).unwrap();
        assert!(sessions.table().by_attempt.is_empty());
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
