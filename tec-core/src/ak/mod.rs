//! Attestation keys: parsing, and the decision whether one may be bound to a machine.

mod clock;
mod matcher;
mod public;
mod share;
mod source;
mod tpm;

use serde::{Deserialize, Serialize};

pub use self::clock::{ClockFault, ClockReading, TpmBoot, TpmClock};
#[cfg(any(test, feature = "test-util"))]
pub use self::matcher::MockAkMatcher;
pub use self::matcher::{
    AkCandidate, AkDecision, AkMatcher, AkReason, AllOf, ByAdmin, EkBoundMatcher, ManualMatcher,
    TofuMatcher,
};
pub use self::public::{KeyKind, ParsePublicKeyError, PublicKey};
pub use self::share::{MAX_WAITING, Shares, fair_limit, may_wait};
pub use self::source::{ParseSourceNetworkError, SourceNetwork};
pub use self::tpm::{Credential, EkOffer, TpmObjectError, TpmObjects};
pub use crate::fingerprint::{Fingerprint, ParseFingerprintError};

use crate::id::MachineId;
use crate::time::Timestamp;

/// State of an attestation key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum AkState {
    /// Submitted; waits for an admin or for a proof.
    Pending,
    /// Bound to its machine.
    Bound,
    /// Revoked; never bound again.
    Revoked,
}

/// One attestation key as stored in the registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AkRecord {
    /// The public key.
    pub public: PublicKey,
    /// The machine it was submitted for.
    pub machine: MachineId,
    /// Its state.
    pub state: AkState,
    /// Endorsement key proven to be in the same TPM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ek: Option<Fingerprint>,
    /// When it was first submitted.
    pub submitted_at: Timestamp,
    /// Network that the key was submitted from; set for waiting keys and for keys bound by trust on
    /// first use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<SourceNetwork>,
}

impl AkRecord {
    /// A newly submitted key.
    pub fn pending(
        public: PublicKey,
        machine: MachineId,
        ek: Option<Fingerprint>,
        submitted_at: Timestamp,
    ) -> Self {
        Self { public, machine, state: AkState::Pending, ek, submitted_at, source: None }
    }

    /// SHA-256 of the key's DER form, which identifies the key everywhere.
    pub fn fingerprint(&self) -> Fingerprint {
        self.public.fingerprint()
    }
}

/// Proof that a key passed [`AkMatcher::decide`]; only [`flow::approve`](crate::flow::approve)
/// creates one, and only [`AkRegistry::bind`](crate::port::AkRegistry::bind) accepts it.
#[derive(Clone, Debug)]
pub struct ApprovedAk(AkRecord);

impl ApprovedAk {
    /// Builds the proof from a decision; `None` unless the decision is to approve.
    pub(crate) fn from_decision(decision: AkDecision, record: AkRecord) -> Option<Self> {
        matches!(decision, AkDecision::Approve(_))
            .then_some(Self(AkRecord { state: AkState::Bound, ..record }))
    }

    /// The record to store, in state [`AkState::Bound`].
    pub fn record(&self) -> &AkRecord {
        &self.0
    }

    /// Skips the decision, for tests of registries.
    #[cfg(any(test, feature = "test-util"))]
    pub fn dangerous_assume_approved(record: AkRecord) -> Self {
        Self(AkRecord { state: AkState::Bound, ..record })
    }
}
