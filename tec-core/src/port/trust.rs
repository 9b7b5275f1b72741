//! Attestation, verification, and the records kept about both.

use std::fmt;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::PortError;
use crate::ak::{ClockFault, ClockReading, Fingerprint};
use crate::attest::{Attempt, Tee, VerifiedEvidence, VerifyError};
use crate::code::Code;
use crate::id::{AttemptId, MachineId};
use crate::time::Timestamp;

/// The evidence that an attester produces.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AttestationEvidence {
    /// Type of evidence.
    pub tee: Tee,
    /// The evidence as its type prescribes.
    pub evidence: serde_json::Value,
}

impl AttestationEvidence {
    /// Evidence of this type.
    pub fn new(tee: Tee, evidence: serde_json::Value) -> Self {
        Self { tee, evidence }
    }
}

/// The node's side: produces evidence over given report data.
///
/// *Implemented by* the TPM of `tec-tpm` (feature `tss`) and its software double.
#[async_trait]
pub trait Attester: fmt::Debug + Send + Sync {
    /// Type of the evidence that it produces.
    fn tee(&self) -> Tee;

    /// Produces evidence that binds the 48 bytes of `report_data`.
    async fn attest(&self, report_data: &[u8; 48]) -> Result<AttestationEvidence, PortError>;
}

/// Evidence as a verifier receives it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct EvidenceRequest<'a> {
    /// Announced type of the evidence.
    pub tee: Tee,
    /// The evidence.
    pub evidence: &'a serde_json::Value,
    /// SHA-384 that the evidence must bind.
    pub report_data: &'a [u8; 48],
    /// Digest of the init-data, if any was sent.
    pub init_data: Option<&'a [u8]>,
}

impl<'a> EvidenceRequest<'a> {
    /// Evidence without init-data.
    pub fn new(tee: Tee, evidence: &'a serde_json::Value, report_data: &'a [u8; 48]) -> Self {
        Self { tee, evidence, report_data, init_data: None }
    }

    /// Adds the digest of init-data.
    pub fn with_init_data(mut self, digest: &'a [u8]) -> Self {
        self.init_data = Some(digest);
        self
    }
}

/// The server's side: checks that a real TPM produced the evidence for this nonce. It decides
/// nothing about approval.
///
/// *Contract*: nothing in the evidence is trusted before its signature is verified. *Implemented
/// by* `tec_tpm::verifier`: for plain TPMs, for Azure vTPMs, and for either.
#[async_trait]
pub trait Verifier: fmt::Debug + Send + Sync {
    /// Checks evidence.
    async fn verify(&self, request: EvidenceRequest<'_>) -> Result<VerifiedEvidence, VerifyError>;
}

/// The subject of an audit event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum AuditAction {
    /// A machine was registered.
    MachineRegistered,
    /// A machine was revoked.
    MachineRevoked,
    /// A machine was quarantined until it is released.
    MachineQuarantined,
    /// The quarantine of a machine was lifted.
    MachineReleased,
    /// A machine was decommissioned.
    MachineRetired,
    /// A machine was removed, with its keys.
    MachineRemoved,
    /// An attestation key was submitted and waits for approval.
    AkSubmitted,
    /// An attestation key was bound to a machine.
    AkBound,
    /// An attestation key was refused.
    AkRejected,
    /// An attestation key was revoked.
    AkRevoked,
    /// A bound attestation key named the key that follows it. Earlier versions wrote this.
    AkSuccessorNamed,
    /// That key attested: it was bound, and its predecessor revoked. Earlier versions wrote this.
    AkSucceeded,
    /// A disk key was generated.
    KeyGenerated,
    /// A new disk key was generated, and waits until the machine's disk has a slot for it.
    RotationBegun,
    /// A machine's new disk key replaced the old one.
    RotationPromoted,
    /// A machine removed the slots of its old disk key, which was removed here too.
    RotationEnded,
    /// An admin canceled a rotation: the new disk key, or the old one if the new one was in use, was removed.
    RotationCanceled,
    /// A machine deposited a recovery key, sealed to an admin.
    RecoveryEscrowed,
    /// A disk key was released to an attested machine.
    KeyReleased,
    /// An attempt to obtain a key was refused.
    KeyRefused,
    /// An image was approved.
    ImageApproved,
    /// An image was revoked.
    ImageRevoked,
    /// A machine or an image was adopted from another trust anchor.
    TrustAdopted,
    /// Something that the other trust anchor no longer has was removed here as well.
    TrustPruned,
    /// The authority to approve was given up or taken.
    AuthorityMoved,
    /// The disk keys of a replaced anchor were removed.
    KeysShredded,
    /// The audit log of a replaced anchor was archived.
    LogKept,
    /// The oldest lines of this log were moved to a file.
    AuditArchived,
    /// The seal key of the store was replaced.
    SealKeyReplaced,
    /// The recorded clock of a machine's TPM was forgotten.
    TpmReadmitted,
    /// A change of firmware or Secure Boot policy was approved.
    PlatformApproved,
}

/// One line of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AuditEvent {
    /// The time.
    pub at: Timestamp,
    /// The action.
    pub action: AuditAction,
    /// The machine, if the event is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineId>,
    /// Fingerprint, image name, path or code that the event is about.
    pub subject: String,
}

impl AuditEvent {
    /// An event.
    pub fn new(
        at: Timestamp,
        action: AuditAction,
        machine: Option<MachineId>,
        subject: impl Into<String>,
    ) -> Self {
        Self { at, action, machine, subject: subject.into() }
    }

    /// An attempt was refused with a code.
    pub fn key_refused(at: Timestamp, attempt: &Attempt, code: Code) -> Self {
        let subject = format!("{code} attempt {}", attempt.id);
        Self::new(at, AuditAction::KeyRefused, attempt.machine, subject)
    }
}

/// Receives audit events.
///
/// *Contract*: durable when the call returns, in order, append-only.
/// *Conformance suite*: [`testing::audit_sink`](crate::testing::audit_sink).
#[async_trait]
pub trait AuditSink: fmt::Debug + Send + Sync {
    /// Appends one event.
    async fn append(&self, event: &AuditEvent) -> Result<(), PortError>;
}

/// Whether the clock of a TPM advanced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClockOutcome {
    /// It advanced, or was never read before; the reading is stored durably.
    Follows,
    /// It did not advance; the stored reading is unchanged.
    Refused(ClockFault),
}

/// Stores the last clock of each TPM, by the key that it attests with.
///
/// *Contract*: `advance` is atomic, so that of two copies of a TPM that attest at the same time, the second
/// is detected; a repeated reading follows itself. One small record is kept per key, and removed with its
/// machine. Writes are durable when the call returns. *Conformance suite*:
/// [`testing::clock_log`](crate::testing::clock_log).
#[async_trait]
pub trait ClockLog: fmt::Debug + Send + Sync {
    /// Stores a reading of the TPM that holds `key`, if it [follows the last
    /// one](ClockReading::succeeding). The first one of a key follows those of [the machine's other
    /// keys](ClockReading::after_other_keys).
    async fn advance(
        &self,
        key: &Fingerprint,
        machine: MachineId,
        reading: &ClockReading,
    ) -> Result<ClockOutcome, PortError>;

    /// The last reading of the TPM that holds `key`.
    async fn last(&self, key: &Fingerprint) -> Result<Option<ClockReading>, PortError>;

    /// Forgets the clocks recorded for a machine's keys, so that the next reading counts as the
    /// first. Fails with `NotFound`, without a line, if there are none.
    async fn forget(&self, machine: &MachineId, line: &AuditEvent) -> Result<(), PortError>;
}

/// Stores the latest attestation attempts, for `tec explain`.
///
/// *Contract*: keeps at least the last 16 attempts of each machine, and is bounded. Attempts without a valid
/// signature, which anyone can make, never displace an attempt that has one. An attempt that
/// [repeats](Attempt::repeats) the machine's last one [takes its place](Attempt::in_place_of), so that
/// attesting often in one boot displaces no earlier boot. *Conformance suite*:
/// [`testing::attempt_log`](crate::testing::attempt_log).
#[async_trait]
pub trait AttemptLog: fmt::Debug + Send + Sync {
    /// Stores an attempt, or replaces the one with the same ID or the one that it repeats.
    async fn record(&self, attempt: &Attempt) -> Result<(), PortError>;

    /// Looks an attempt up by an ID that it [is known as](Attempt::is_known_as).
    async fn find(&self, id: &AttemptId) -> Result<Option<Attempt>, PortError>;

    /// The attempts of a machine, or all attempts, latest first, at most `limit`.
    async fn latest(
        &self,
        machine: Option<MachineId>,
        limit: usize,
    ) -> Result<Vec<Attempt>, PortError>;
}
