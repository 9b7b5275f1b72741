//! Sessions that any replica can continue.
//!
//! Without a shared secret, the cookie is the ID of a session that only this process knows. With one
//! ([`KbsConfig::with_shared_sessions`](super::KbsConfig::with_shared_sessions)) the cookie and the token
//! carry what another replica needs, sealed by [`Seal`]:
//!
//! ```text
//! POST auth    A  cookie: id, tee, nonce, opened                            Carried::Opened
//! POST attest  B  adopts the session into its own table, spends the nonce there
//!                 cookie: id, opened, claims, admission                     Carried::Judged
//!                 token:  claim tec.session: opened, admission; bound to all other claims
//! GET resource C  admission from cookie or token ─► policy, registries ─► JWE
//! ```
//!
//! # Security
//! - *Replay*: a nonce is single-use at each replica, not across them. The same evidence at another replica
//!   yields another token, and keys only as JWEs for the session key, which the evidence binds: only the
//!   client that created the evidence can open them.
//! - *Revocation*: a blob says who attested, never what is released. Every replica decides that anew, from
//!   its registries and policies.
//! - *Age*: a blob is valid as long as the session: from the time it was opened, which the blob states, with
//!   [`SKEW_SECONDS`] for clocks that are behind.
//! - *Own knowledge first*: a replica that knows the result of a session reads no blob.
//! - *Swapping*: a blob names its session itself; one in a token is bound to every other claim, so that not
//!   even another trusted signer can use it elsewhere. A refusal is carried like a result.
//! - *Secrecy*: the holder of a blob learns its length in steps of 256 bytes.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tec_core::attest::{Attempt, Attested, AttestedSnapshot, Tee};
use tec_core::code::Code;
use tec_core::id::AttemptId;
use tec_core::port::Entropy;
use tec_core::secret::SecretArray;
use tec_core::time::Timestamp;

use super::Admission;
use super::seal::{MAX_COOKIE, Place, Seal};
use super::session_id::SessionId;

/// The claim of a token that holds its blob.
const CLAIM: &str = "tec.session";
/// How far ahead the clock of the replica that opened a session may be; the same as for tokens.
const SKEW_SECONDS: i64 = 60;

/// Seals and opens what replicas share.
#[derive(Debug)]
pub(super) struct Shared {
    seal: Seal,
    session_seconds: i64,
}

/// What a cookie holds.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Carried {
    /// The nonce was issued.
    Opened(Opened),
    /// Evidence was evaluated, with either outcome.
    Judged(Box<Judged>),
}

/// A session that has proved nothing yet.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Opened {
    pub(super) id: SessionId,
    pub(super) tee: Tee,
    pub(super) nonce: String,
    pub(super) since: Timestamp,
}

/// A session with its result.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Judged {
    pub(super) id: SessionId,
    /// The claims of the token, without [`CLAIM`].
    pub(super) claims: Value,
    ticket: Ticket,
}

/// What is known about the holder of a token in addition to its claims.
#[derive(Debug, Serialize, Deserialize)]
struct Ticket {
    opened: Timestamp,
    attempt: AttemptId,
    refused: Option<Code>,
    attested: Option<AttestedSnapshot>,
    record: Option<Attempt>,
}

impl Carried {
    pub(super) fn id(&self) -> SessionId {
        match self {
            Self::Opened(opened) => opened.id,
            Self::Judged(judged) => judged.id,
        }
    }

    fn opened(&self) -> Timestamp {
        match self {
            Self::Opened(opened) => opened.since,
            Self::Judged(judged) => judged.ticket.opened,
        }
    }
}

impl Ticket {
    fn new(opened: Timestamp, admission: &Admission) -> Self {
        Self {
            opened,
            attempt: admission.attempt,
            refused: admission.refused,
            attested: admission.attested.as_ref().map(Attested::snapshot),
            record: admission.record.clone(),
        }
    }

    fn admission(self) -> Option<Admission> {
        let mut admission = Admission::new(self.attempt);
        admission.refused = self.refused;
        // The caller opened this server's seal and checked the time.
        admission.attested = self.attested.map(Attested::dangerous_reopen).transpose().ok()?;
        admission.record = self.record;
        Some(admission)
    }
}

impl Judged {
    /// Claims and admission; the claims of a refused session are worth nothing.
    pub(super) fn admission(self) -> Option<(Value, Admission)> {
        Some((self.claims, self.ticket.admission()?))
    }
}

impl Shared {
    pub(super) fn new(secret: SecretArray<32>, session_seconds: u32) -> Self {
        Self { seal: Seal::new(secret), session_seconds: session_seconds.into() }
    }

    /// The cookie of a session that was just opened.
    pub(super) fn opened(&self, session: Opened, entropy: &dyn Entropy) -> Option<String> {
        self.cookie(&Carried::Opened(session), entropy)
    }

    /// The cookie of a session with a result; `None` if that is too much for a cookie. Then only this
    /// replica, or the token, can speak for the session.
    pub(super) fn judged(
        &self,
        (id, opened): (SessionId, Timestamp),
        claims: &Value,
        admission: &Admission,
        entropy: &dyn Entropy,
    ) -> Option<String> {
        // After a refusal the claims obtain nothing, so they take no room.
        let claims = if admission.refused.is_none() { claims.clone() } else { Value::Null };
        let judged = Judged { id, claims, ticket: Ticket::new(opened, admission) };
        self.cookie(&Carried::Judged(Box::new(judged)), entropy)
    }

    fn cookie(&self, carried: &Carried, entropy: &dyn Entropy) -> Option<String> {
        let text = self.seal.seal(Place::Cookie, &[], carried, entropy)?;
        Some(text).filter(|text| text.len() <= MAX_COOKIE)
    }

    /// The content of a cookie, while the session lasts.
    pub(super) fn read(&self, cookie: &str, now: Timestamp) -> Option<Carried> {
        let cookie = Some(cookie).filter(|cookie| cookie.len() <= MAX_COOKIE)?;
        let carried: Carried = self.seal.open(Place::Cookie, &[], cookie)?;
        self.lasts(carried.opened(), now).then_some(carried)
    }

    /// Adds to the claims of a token what a replica needs if it does not know the session.
    pub(super) fn stamp(
        &self,
        claims: &mut Value,
        opened: Timestamp,
        admission: &Admission,
        entropy: &dyn Entropy,
    ) {
        let ticket = Ticket::new(opened, admission);
        let blob = bound_to(claims)
            .and_then(|claims| self.seal.seal(Place::Token, &claims, &ticket, entropy));
        if let (Some(blob), Some(claims)) = (blob, claims.as_object_mut()) {
            claims.insert(CLAIM.to_owned(), blob.into());
        }
    }

    /// The holder that a token speaks for, according to the blob that was [taken from](take_stamp) its
    /// claims.
    pub(super) fn redeem(&self, claims: &Value, blob: &str, now: Timestamp) -> Option<Admission> {
        let ticket: Ticket = self.seal.open(Place::Token, &bound_to(claims)?, blob)?;
        let ticket = Some(ticket).filter(|ticket| self.lasts(ticket.opened, now))?;
        ticket.admission()
    }

    fn lasts(&self, opened: Timestamp, now: Timestamp) -> bool {
        opened <= now.plus_seconds(SKEW_SECONDS) && now < opened.plus_seconds(self.session_seconds)
    }
}

/// Removes the blob from the claims of a token.
pub(super) fn take_stamp(claims: &mut Value) -> Option<String> {
    match claims.as_object_mut()?.remove(CLAIM)? {
        Value::String(blob) => Some(blob),
        _ => None,
    }
}

/// Not computed over a canonical form: a replica reads the exact bytes that another one signed, so the order
/// of the members is the same on both sides.
fn bound_to(claims: &Value) -> Option<[u8; 32]> {
    let text = serde_json::to_vec(claims).ok()?;
    Some(Sha256::digest(text).into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tec_core::digest::Sha256Digest;
    use tec_core::explain::Gate;
    use tec_core::testing::{SeededEntropy, sample};

    use super::*;

    fn digest(number: u8) -> String {
        Sha256Digest::of([number]).to_string()
    }

    fn noise(bytes: usize) -> String {
        use base64::Engine as _;
        let mut noise = vec![0; bytes];
        SeededEntropy::new(9).fill(&mut noise);
        base64::engine::general_purpose::STANDARD.encode(noise)
    }

    /// The claims for a machine with a different value in each register, RSA keys everywhere, and a report of
    /// the processor.
    fn claims() -> Value {
        let registers = (0..24).map(|n| (format!("pcr{n:02}"), digest(n).into()));
        let mut tpm: serde_json::Map<_, _> = registers.collect();
        tpm.insert("ak_public".to_owned(), noise(294).into());
        let evidence = json!({
            "azsnpvtpm": {
                "tpm": tpm, "measurement": noise(48), "policy_abi_major": "0",
                "policy_abi_minor": "31", "policy_smt_allowed": "true",
                "policy_migrate_ma": "false", "policy_debug_allowed": "false",
                "policy_single_socket": "false", "reported_tcb_bootloader": "4",
                "reported_tcb_tee": "0", "reported_tcb_snp": "24", "platform_tsme_enabled": "true",
                "reported_tcb_microcode": "219", "platform_smt_enabled": "true",
            },
            "report_data": digest(100),
            "runtime_data_claims": {
                "tee-pubkey": {"kty": "RSA", "alg": "RSA-OAEP-256", "n": noise(384), "e": "AQAB"},
                "nonce": noise(32), "additional-evidence": "",
            },
            "init_data": null,
            "init_data_claims": null,
        });
        let mut verdict = crate::policy::Verdict::default();
        for claim in ["hardware", "executables", "configuration", "instance-identity"] {
            verdict.claims.insert(claim.to_owned(), 3);
        }
        let machine = sample::machine_id(1).to_string();
        verdict.extensions.insert("tec.machine".to_owned(), machine.into());
        let id = sample::attempt_id(1);
        crate::token::ear_claims(id, sample::time(0), 300, &verdict, &evidence)
    }

    /// The record of a machine in the middle of an update.
    fn admission() -> Admission {
        let mut record = sample::attempt(1, Some(1));
        for gate in Gate::ALL {
            let detail = format!("{}, told in one sentence of its own", gate.label());
            record.ladder.pass(gate, detail);
        }
        record.late = Some("leave-initrd".to_owned());
        let quoted = [4, 7, 8, 9, 11, 12, 14].map(|n| (n.to_string(), digest(n).into()));
        let quoted: serde_json::Map<_, Value> = quoted.into_iter().collect();
        let snapshot = json!({
            "machine": sample::machine_id(1), "ak": sample::public_key(1).fingerprint(),
            "booted": {"parts": [
                {"components": ["bootloader"], "pcrs": [4, 7, 14], "images": [sample::image_name(1)]},
                {"components": ["kernel", "initrd"], "pcrs": [4, 9], "images": [sample::image_name(2)]},
            ]},
            "quoted": quoted,
            "predicted": true,
            "attempt": sample::attempt_id(1),
        });
        let snapshot = serde_json::from_value(snapshot).unwrap();
        let mut admission = Admission::new(sample::attempt_id(1));
        admission.attested = Some(Attested::dangerous_reopen(snapshot).unwrap());
        admission.record = Some(record);
        admission
    }

    fn shared() -> Shared {
        Shared::new(SecretArray::new([1; 32]), 300)
    }

    fn judged(shared: &Shared, claims: &Value, admission: &Admission) -> Option<String> {
        let id = SessionId::random(&SeededEntropy::new(1));
        shared.judged((id, sample::time(0)), claims, admission, &SeededEntropy::new(2))
    }

    #[test]
    fn the_largest_evidence_of_a_machine_fits_in_a_cookie() {
        let cookie = judged(&shared(), &claims(), &admission()).unwrap();
        assert!(cookie.len() <= MAX_COOKIE, "{}", cookie.len());
    }

    #[test]
    fn claims_and_admission_come_back_as_they_were() {
        let shared = shared();
        let cookie = judged(&shared, &claims(), &admission()).unwrap();
        let Some(Carried::Judged(judged)) = shared.read(&cookie, sample::time(1)) else {
            panic!("the session lasts");
        };
        let (carried, after) = judged.admission().unwrap();
        let before = admission();
        assert_eq!((carried, &after.record), (claims(), &before.record));
        let content = |admission: &Admission| admission.attested.as_ref().map(Attested::snapshot);
        assert_eq!(content(&after), content(&before));
        assert_eq!(after.attested.unwrap().booted().images().count(), 2);
    }
}
