//! The sessions.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use tec_core::attest::Tee;
use tec_core::id::AttemptId;
use tec_core::port::Entropy;
use tec_core::time::Timestamp;

use super::Admission;
use super::table::Table;

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
    Fresh {
        tee: Tee,
        opened: Timestamp,
        expires: Timestamp,
    },
}

#[derive(Debug)]
struct Known {
    table: Table<Session>,
    by_attempt: HashMap<AttemptId, SessionId>,
}

/// All sessions; one lock, held for look-ups only.
#[derive(Debug)]
pub(super) struct Sessions {
    known: Mutex<Known>,
    ttl_seconds: i64,
}

impl Sessions {
    pub(super) fn new(max: usize, ttl_seconds: i64) -> Self {
        let known = Known {
            table: Table::new(max, ttl_seconds),
            by_attempt: HashMap::new(),
        };
        Self {
            known: Mutex::new(known),
            ttl_seconds,
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn len(&self) -> usize {
        self.known().table.len()
    }

    /// Whether a session may still bring or show something.
    pub(super) fn is_known(&self, id: SessionId, now: Timestamp) -> bool {
        self.known().table.get(id, now).is_some()
    }

    /// Opens a session; `None` when there is no room for it.
    pub(super) fn open(
        &self,
        (tee, nonce): (Tee, &str),
        peer: Option<IpAddr>,
        now: Timestamp,
        entropy: &dyn Entropy,
    ) -> Option<(SessionId, Timestamp)> {
        let id = SessionId::random(entropy);
        let session = Session {
            tee,
            nonce: nonce.to_owned(),
            state: State::Authed,
        };
        let mut known = self.known();
        known.expire(now);
        let opened = known.table.insert(id, peer, now, session);
        opened.then(|| (id, now.plus_seconds(self.ttl_seconds)))
    }

    /// Spends the nonce of a session, if it is the right one.
    pub(super) fn begin(&self, id: SessionId, nonce: Option<&str>, now: Timestamp) -> Begin {
        let mut known = self.known();
        let Some(entry) = known.table.get_mut(id, now) else {
            return Begin::Unknown;
        };
        let opened = entry.opened;
        let expires = opened.plus_seconds(self.ttl_seconds);
        let session = &mut entry.value;
        match &session.state {
            State::Spent => Begin::Unknown,
            State::Attested(passed) => Begin::Attested(passed.clone(), expires),
            State::Authed => {
                session.state = State::Spent;
                if nonce == Some(session.nonce.as_str()) {
                    Begin::Fresh {
                        tee: session.tee,
                        opened,
                        expires,
                    }
                } else {
                    Begin::WrongNonce
                }
            }
        }
    }

    /// Keeps the result of an attempt that [`begin`](Self::begin) started.
    pub(super) fn finish(&self, id: SessionId, passed: Passed, now: Timestamp) {
        let mut known = self.known();
        let attempt = passed.admission.attempt;
        if let Some(entry) = known.table.get_mut(id, now) {
            entry.value.state = State::Attested(passed);
            known.by_attempt.insert(attempt, id);
        }
    }

    /// The result of a session.
    pub(super) fn passed(&self, id: SessionId, now: Timestamp) -> Option<Passed> {
        match &self.known().table.get(id, now)?.value.state {
            State::Attested(passed) => Some(passed.clone()),
            _ => None,
        }
    }

    /// The result of the session in which an attempt was made.
    pub(super) fn of_attempt(&self, attempt: AttemptId, now: Timestamp) -> Option<Passed> {
        let id = *self.known().by_attempt.get(&attempt)?;
        self.passed(id, now)
    }
}

impl Known {
    fn expire(&mut self, now: Timestamp) {
        while let Some(gone) = self.table.pop_expired(now) {
            if let State::Attested(passed) = gone.state {
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

    fn open(sessions: &Sessions, now: i64) -> Option<(SessionId, Timestamp)> {
        let entropy = SeededEntropy::new(sessions.len() as u64);
        sessions.open((Tee::Tpm, "n"), None, at(now), &entropy)
    }

    #[test]
    fn a_nonce_is_spent_by_its_first_use_good_or_bad() {
        let sessions = Sessions::new(9, 300);
        let (good, _) = open(&sessions, 0).unwrap();
        assert!(matches!(
            sessions.begin(good, Some("n"), at(1)),
            Begin::Fresh { tee: Tee::Tpm, .. }
        ));
        assert!(matches!(
            sessions.begin(good, Some("n"), at(1)),
            Begin::Unknown
        ));
        let (bad, _) = open(&sessions, 0).unwrap();
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
        let sessions = Sessions::new(9, 300);
        let (id, _) = open(&sessions, 0).unwrap();
        let admission = Arc::new(Admission::new(sample::attempt_id(1)));
        assert!(sessions.passed(id, at(1)).is_none());
        sessions.finish(
            id,
            Passed {
                token: "t".into(),
                admission,
            },
            at(1),
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
        open(&sessions, 301).unwrap();
        assert!(sessions.known().by_attempt.is_empty());
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
