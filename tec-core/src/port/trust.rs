//! Attesting, verifying, and the records that are kept of it.

use std::fmt;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::PortError;
use crate::ak::{ClockFault, ClockReading, Fingerprint};
use crate::attest::{Attempt, Tee, VerifiedEvidence, VerifyError};
use crate::code::Code;
use crate::id::{AttemptId, MachineId};
use crate::time::Timestamp;

/// What an attester produces.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AttestationEvidence {
    /// Sort of evidence.
    pub tee: Tee,
    /// The evidence as its type prescribes.
    pub evidence: serde_json::Value,
}

impl AttestationEvidence {
    /// Evidence of a sort.
    pub fn new(tee: Tee, evidence: serde_json::Value) -> Self {
        Self { tee, evidence }
    }
}

/// The node's side: makes evidence over given report data.
///
/// *Implemented by* the TPM of `tec-tpm` (feature `tss`) and its software double.
#[async_trait]
pub trait Attester: fmt::Debug + Send + Sync {
    /// Sort of evidence that it makes.
    fn tee(&self) -> Tee;

    /// Makes evidence that binds the 48 bytes of `report_data`.
    async fn attest(&self, report_data: &[u8; 48]) -> Result<AttestationEvidence, PortError>;
}

/// Evidence as a verifier gets it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct EvidenceRequest<'a> {
    /// Sort of evidence that was announced.
    pub tee: Tee,
    /// The evidence.
    pub evidence: &'a serde_json::Value,
    /// SHA-384 that the evidence must bind.
    pub report_data: &'a [u8; 48],
    /// Digest of the init-data text, where some was sent.
    pub init_data: Option<&'a [u8]>,
}

impl<'a> EvidenceRequest<'a> {
    /// Evidence without init-data.
    pub fn new(tee: Tee, evidence: &'a serde_json::Value, report_data: &'a [u8; 48]) -> Self {
        Self { tee, evidence, report_data, init_data: None }
    }

    /// Adds the digest of init-data.
    #[must_use]
    pub fn with_init_data(mut self, digest: &'a [u8]) -> Self {
        self.init_data = Some(digest);
        self
    }
}

/// The server's side: checks that evidence is what a real TPM said about this nonce. It decides
/// nothing about approval.
///
/// *Contract*: nothing of the evidence is believed before the signature over it is verified.
/// *Implemented by* `tec_tpm::verifier`: for plain TPMs, for Azure's vTPMs, and for either.
#[async_trait]
pub trait Verifier: fmt::Debug + Send + Sync {
    /// Checks evidence.
    async fn verify(&self, request: EvidenceRequest<'_>) -> Result<VerifiedEvidence, VerifyError>;
}

/// What an audit event tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum AuditAction {
    /// A machine was registered.
    MachineRegistered,
    /// A machine was revoked.
    MachineRevoked,
    /// A machine was set aside until it is released.
    MachineQuarantined,
    /// The quarantine of a machine was lifted.
    MachineReleased,
    /// A machine was decommissioned.
    MachineRetired,
    /// A machine was removed, with its keys.
    MachineRemoved,
    /// An attestation key was submitted and waits.
    AkSubmitted,
    /// An attestation key was bound to a machine.
    AkBound,
    /// An attestation key was refused.
    AkRejected,
    /// An attestation key was revoked.
    AkRevoked,
    /// A disk key was generated.
    KeyGenerated,
    /// A machine left a recovery key, sealed to an admin.
    RecoveryEscrowed,
    /// A disk key was handed to an attested machine.
    KeyReleased,
    /// An attempt to obtain a key was refused.
    KeyRefused,
    /// An image was approved.
    ImageApproved,
    /// An image was revoked.
    ImageRevoked,
    /// A machine or an image was taken over from another trust anchor.
    TrustAdopted,
    /// What another trust anchor no longer has was removed here, too.
    TrustPruned,
    /// The right to approve was given up or taken.
    AuthorityMoved,
    /// The disk keys of an anchor that was replaced were removed.
    KeysShredded,
    /// The audit log of an anchor that was replaced was put by.
    LogKept,
    /// What was known of the clock of a machine's TPM was forgotten.
    TpmReadmitted,
}

/// One line of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AuditEvent {
    /// When.
    pub at: Timestamp,
    /// What.
    pub action: AuditAction,
    /// Which machine, where one is concerned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineId>,
    /// Fingerprint, image name, path or code that it is about.
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

/// Whether a TPM goes on where it was.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "callers must handle every outcome")]
pub enum ClockOutcome {
    /// It does, or it was never read before; the reading is kept, durably.
    Follows,
    /// It does not; what was known stays.
    Refused(ClockFault),
}

/// Keeps the last clock of each TPM, by the key that it attests with.
///
/// *Contract*: `advance` is one step, so that of two copies of a TPM that attest at once one is told to
/// be the second; the same reading again follows itself. One small record per key, which goes with
/// its machine. Writes are durable when the call returns.
/// *Conformance suite*: [`testing::clock_log`](crate::testing::clock_log).
#[async_trait]
pub trait ClockLog: fmt::Debug + Send + Sync {
    /// Takes a reading of the TPM that holds `key`, if it is [after the last
    /// one](ClockReading::succeeding).
    async fn advance(
        &self,
        key: &Fingerprint,
        machine: MachineId,
        reading: &ClockReading,
    ) -> Result<ClockOutcome, PortError>;

    /// Forgets what is known of the keys of a machine, so that the next reading counts as the first.
    /// Fails with `NotFound`, without a line, when nothing is.
    async fn forget(&self, machine: &MachineId, line: &AuditEvent) -> Result<(), PortError>;
}

/// Keeps the latest attempts to attest, for `tec explain`.
///
/// *Contract*: keeps at least the last 16 attempts of each machine, and is bounded. Attempts without
/// a good signature, which anybody can make, push out none that has one.
/// *Conformance suite*: [`testing::attempt_log`](crate::testing::attempt_log).
#[async_trait]
pub trait AttemptLog: fmt::Debug + Send + Sync {
    /// Stores an attempt, or replaces the one of the same id.
    async fn record(&self, attempt: &Attempt) -> Result<(), PortError>;

    /// Looks an attempt up.
    async fn find(&self, id: &AttemptId) -> Result<Option<Attempt>, PortError>;

    /// The attempts of a machine, or of all, latest first, at most `limit`.
    async fn latest(
        &self,
        machine: Option<MachineId>,
        limit: usize,
    ) -> Result<Vec<Attempt>, PortError>;
}
