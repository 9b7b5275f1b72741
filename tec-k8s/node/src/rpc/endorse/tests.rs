//! Proofs with a software TPM, over time that the test advances.

use std::fmt::Write as _;
use std::sync::Mutex;

use crate::lock::MarkerState;
use tec_core::testing::{ManualClock, SeededEntropy, sample};
use tec_tpm::ek::CredentialIssuer;
use tec_tpm::testing::SoftTpm;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::*;

const DISK: &str = "00000000-0000-0000-0000-0000000000aa";

#[derive(Debug)]
struct Policy {
    listed_ak: Fingerprint,
    issuer: Option<Arc<dyn TpmObjects>>,
}

impl EndorsementPolicy for Policy {
    fn is_demanded(&self, ak: &Fingerprint) -> bool {
        self.issuer.is_some() && *ak != self.listed_ak
    }

    fn issuer(&self) -> Option<Arc<dyn TpmObjects>> {
        self.issuer.clone()
    }
}

struct World {
    clock: Arc<ManualClock>,
    endorsements: Endorsements,
}

/// The attestation key of TPM 1 is listed, and so is the endorsement key of TPM 2.
fn world(is_configured: bool) -> World {
    let clock = Arc::new(ManualClock::new(sample::time(0)));
    let issuer = CredentialIssuer::new().with_listed([SoftTpm::p256(2).ek().public.fingerprint()]);
    let policy = Policy {
        listed_ak: SoftTpm::p256(1).public_key().fingerprint(),
        issuer: is_configured.then(|| Arc::new(issuer) as _),
    };
    let entropy = Arc::new(SeededEntropy::new(1));
    let endorsements = Endorsements::new(Arc::new(policy), Arc::clone(&clock) as _, entropy);
    World { clock, endorsements }
}

fn caller(tpm: &SoftTpm) -> Caller {
    Caller::dangerous_assume(tpm.public_key(), MarkerState::Unset)
}

fn disk() -> DiskId {
    DISK.parse().unwrap()
}

impl World {
    /// The proof of an honest node.
    fn proof(&self, tpm: &SoftTpm) -> Result<EndorsementProof, Status> {
        let request = ChallengeEndorsementKeyRequest {
            disk_uuid: DISK.to_owned(),
            endorsement_key: tpm.ek().public.as_der().to_vec(),
            certificate: Vec::new(),
            attestation_key: tpm.ak_public_area(),
        };
        let answer = self.endorsements.challenge(&caller(tpm), request)?;
        let credential = Credential::new(answer.id_object, answer.encrypted_secret);
        let secret = tpm.activate_credential(&credential).unwrap();
        let secret = secret.expose("test").to_vec();
        Ok(EndorsementProof { challenge: answer.challenge, secret })
    }

    fn proven(
        &self,
        tpm: &SoftTpm,
        disk: DiskId,
        proof: Option<EndorsementProof>,
    ) -> Result<Option<Fingerprint>, Option<Reason>> {
        self.endorsements.proven(&caller(tpm), disk, proof).map_err(|status| Reason::of(&status))
    }
}

#[test]
fn only_a_key_that_is_not_listed_needs_an_endorsement_key_and_only_where_some_are_taken() {
    let (listed, other) = (SoftTpm::p256(1), SoftTpm::p256(2));
    let world = world(true);
    assert_eq!(world.proven(&listed, disk(), None), Ok(None));
    let needed = Err(Some(Reason::NeedsEndorsementKey));
    assert_eq!(world.proven(&other, disk(), None), needed);
    let proof = world.proof(&other).unwrap();
    assert_eq!(
        world.proven(&other, disk(), Some(proof)),
        Ok(Some(other.ek().public.fingerprint()))
    );

    let world = self::world(false);
    assert_eq!(world.proven(&other, disk(), None), Ok(None));
    let refused = world.proof(&other).err().unwrap();
    assert_eq!(Reason::of(&refused), Some(Reason::EndorsementKey));
}

/// Lines of the log, with their fields.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl Visit for Log {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0.lock().unwrap(), "{field}={value:?} ").unwrap();
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn an_endorsement_key_that_is_not_listed_gets_no_challenge_and_both_sides_are_told_why() {
    let (log, node) = (Log::default(), SoftTpm::p256(3));
    let ask = || world(true).proof(&node).err().unwrap();
    let refused = tracing::subscriber::with_default(log.clone(), ask);
    assert_eq!(Reason::of(&refused), Some(Reason::EndorsementKey));
    let ek = node.ek().public.fingerprint().to_string();
    let log = log.0.lock().unwrap();
    for told in [refused.message(), &log] {
        for part in ["TEC-B407", "is not on the list", &ek] {
            assert!(told.contains(part), "{part}: {told}");
        }
    }
    assert!(log.contains(&node.public_key().fingerprint().to_string()), "{log}");
}

#[test]
fn an_answer_counts_for_one_node_one_disk_and_two_minutes() {
    let (node, other) = (SoftTpm::p256(2), SoftTpm::p256(4));
    let world = world(true);
    let proof = world.proof(&node).unwrap();
    let refused = Err(Some(Reason::EndorsementKey));
    let another: DiskId = DISK.replace("aa", "bb").parse().unwrap();
    assert_eq!(world.proven(&other, disk(), Some(proof.clone())), refused);
    assert_eq!(world.proven(&node, another, Some(proof.clone())), refused);
    let mut altered = proof.clone();
    altered.challenge[0] ^= 0x40;
    assert_eq!(world.proven(&node, disk(), Some(altered)), refused);
    world.clock.advance_seconds(119);
    assert!(world.proven(&node, disk(), Some(proof.clone())).is_ok());
    world.clock.advance_seconds(1);
    assert_eq!(world.proven(&node, disk(), Some(proof)), refused);
}
