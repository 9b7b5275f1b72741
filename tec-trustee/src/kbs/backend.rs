//! What a KBS runs on.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use tec_core::attest::{Attempt, Attested, VerifiedEvidence, VerifyError};
use tec_core::code::Code;
use tec_core::digest::Sha256Digest;
use tec_core::flow::{NextBoot, ReleaseError};
use tec_core::id::{AttemptId, ResourcePath};
use tec_core::pcr::PcrIndex;
use tec_core::port::{KeyBroker, PortError};
use tec_core::rotation::{Confirmation, Confirmed, KeyMark, Keys};
use tec_core::secret::SecretBytes;

/// What a backend decides about evidence; the KBS keeps it with the session.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Admission {
    /// Number of the attempt.
    pub attempt: AttemptId,
    /// Why the backend refuses, if it does. The token is then never affirming.
    pub refused: Option<Code>,
    /// Proof of the machine, if the backend has machines.
    pub attested: Option<Attested>,
    /// The attempt as it was recorded, to be continued when the key is released.
    pub record: Option<Attempt>,
    /// Reference values that apply to this appraisal alone; they take precedence over all others.
    pub references: BTreeMap<String, Value>,
}

impl Admission {
    /// An admission that is neither refused nor bound to a machine.
    pub fn new(attempt: AttemptId) -> Self {
        Self { attempt, refused: None, attested: None, record: None, references: BTreeMap::new() }
    }

    /// Refused with a code.
    pub fn refused_with(mut self, code: Code) -> Self {
        self.refused = Some(code);
        self
    }
}

/// Decision of the resource policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyDecision {
    /// The policy allows the request.
    Allow,
    /// The policy does not allow the request, or there is no policy.
    Deny,
}

/// Policies, reference values, resources, and the gate in front of them.
///
/// *Contract*: `release` is called for every request of an attested session, even when the policy denies it,
/// so that the refusal can be recorded; it must not release anything on [`PolicyDecision::Deny`]. A policy
/// that is `None` denies. *Implemented by* [`MemoryBackend`](super::MemoryBackend) and
/// [`LiveBackend`](super::LiveBackend).
///
/// # Cancel safety
/// Any call may be dropped when a client hangs up.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync {
    /// The attestation policy `default_cpu`.
    async fn attestation_policy(&self) -> Result<Option<Arc<str>>, PortError>;

    /// The resource policy.
    async fn resource_policy(&self) -> Result<Option<Arc<str>>, PortError>;

    /// Examines evidence, good or bad, and records the attempt.
    async fn admit(
        &self,
        attempt: AttemptId,
        evidence: &Result<VerifiedEvidence, VerifyError>,
    ) -> Result<Admission, PortError>;

    /// A reference value; `None` if there is none.
    async fn reference_value(&self, name: &str) -> Result<Option<Value>, PortError>;

    /// Releases a resource. `shown` is the mark of a key that the client says to have.
    async fn release(
        &self,
        admission: &Admission,
        path: &ResourcePath,
        policy: PolicyDecision,
        shown: Option<KeyMark>,
    ) -> Result<SecretBytes, ReleaseError>;

    /// Keeps a recovery key that an attested machine deposits, sealed to an admin, and returns its number. A
    /// backend without machines refuses.
    async fn escrow(
        &self,
        admission: &Admission,
        sealed: &SecretBytes,
    ) -> Result<u32, ReleaseError>;

    /// The keys of an attested machine, by their marks. `None` if the machine has no disk key, or if the
    /// backend rotates none.
    async fn rotation(
        &self,
        _admission: &Admission,
    ) -> Result<Option<Keys<KeyMark>>, ReleaseError> {
        Ok(None)
    }

    /// Takes the confirmation of an attested machine. `None` if the backend rotates no keys.
    async fn confirm_rotation(
        &self,
        _admission: &Admission,
        _confirmation: Confirmation,
        _key: &KeyMark,
    ) -> Result<Option<Confirmed<KeyMark>>, ReleaseError> {
        Ok(None)
    }

    /// Whether a boot with these values would be accepted from an attested machine. `None` if the backend judges
    /// no boots in advance.
    async fn next_boot(
        &self,
        _admission: &Admission,
        _predicted: &BTreeMap<PcrIndex, Sha256Digest>,
    ) -> Result<Option<NextBoot>, ReleaseError> {
        Ok(None)
    }

    /// Where the admin API writes; `None` if everything is managed elsewhere.
    fn broker(&self) -> Option<&dyn KeyBroker>;
}

/// The code for evidence that a verifier refused.
pub(crate) fn code_of(error: &VerifyError) -> Code {
    match error {
        VerifyError::Quote { .. } | VerifyError::Hardware { .. } => Code::QuoteInvalid,
        VerifyError::Selection { .. } => Code::SelectionWrong,
        _ => Code::EvidenceMalformed,
    }
}
