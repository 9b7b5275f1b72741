//! Attestation: what a verifier found, and the appraisal that turns it into [`Attested`].
//!
//! ```text
//! evidence ─ Verifier ─► Result<VerifiedEvidence, VerifyError> ─ appraise ─► Ladder + Attested
//! ```
//! [`appraise`] is pure; it names the first gate that failed, and only it makes [`Attested`].

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ak::{AkRecord, AkState, ClockReading, Fingerprint, PublicKey, TpmClock};
use crate::boot::{BootState, BootStates};
use crate::digest::Sha256Digest;
use crate::explain::{Gate, Ladder, explain_pcrs};
use crate::id::{AttemptId, MachineId};
use crate::image::ApprovedImage;
use crate::machine::{Machine, MachineState};
use crate::pcr::{PcrIndex, PcrSet, PcrValues};
use crate::time::Timestamp;

/// Sort of evidence, by its name on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Tee {
    /// A TPM quote.
    Tpm,
    /// A TPM quote of an Azure virtual machine, vouched for by an AMD SNP report.
    #[serde(alias = "azsnpvtpm")]
    AzSnpVtpm,
    /// No hardware at all; for tests.
    Sample,
}

impl Tee {
    /// The name on the wire and in policies.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tpm => "tpm",
            Self::AzSnpVtpm => "az-snp-vtpm",
            Self::Sample => "sample",
        }
    }
}

impl fmt::Display for Tee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One event of a boot's log. Digest and register are proven once the log replays; `detail` is what
/// the log says about it, and proves nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LoggedEvent {
    /// Number of the event in the log, from 0.
    pub number: u32,
    /// Register.
    pub pcr: PcrIndex,
    /// SHA-256 that the register was extended by.
    pub digest: Sha256Digest,
    /// Name of the event type, `EV_…`.
    pub kind: String,
    /// For people only: a path or text from the event data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

impl LoggedEvent {
    /// An event.
    pub fn new(
        number: u32,
        pcr: PcrIndex,
        digest: Sha256Digest,
        kind: impl Into<String>,
        detail: Option<String>,
    ) -> Self {
        Self {
            number,
            pcr,
            digest,
            kind: kind.into(),
            detail,
        }
    }
}

/// The event log that came with evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogEvidence {
    /// None came; the PCR values alone decide, as always.
    Absent,
    /// It parses. The registers in `replayed` fold to the quoted values.
    Parsed {
        /// The events in order.
        events: Vec<LoggedEvent>,
        /// Registers whose events fold to the quoted value.
        replayed: PcrSet,
    },
    /// It does not parse.
    Broken {
        /// Why, with offset.
        reason: String,
    },
}

/// Evidence whose signature, nonce, selection and digest are verified. Made by a
/// [`Verifier`](crate::port::Verifier).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct VerifiedEvidence {
    /// Sort of evidence.
    pub tee: Tee,
    /// Key that signed; whether it is anybody's is not said.
    pub ak: PublicKey,
    /// Quoted values of the SHA-256 bank.
    pub pcrs: PcrValues,
    /// Clock of the TPM, where one signed.
    pub clock: Option<TpmClock>,
    /// When its challenge went out, where the server that took the evidence says so.
    pub asked_at: Option<Timestamp>,
    /// Event log.
    pub log: LogEvidence,
    /// Claims for policies: the object that stands under the name of the TEE.
    pub claims: serde_json::Map<String, serde_json::Value>,
    /// `report_data` claim: hexadecimal of the nonce that was bound.
    pub report_data: String,
    /// `init_data` claim.
    pub init_data: String,
}

impl VerifiedEvidence {
    /// Assembles what was verified.
    pub fn new(tee: Tee, ak: PublicKey, pcrs: PcrValues) -> Self {
        Self {
            tee,
            ak,
            pcrs,
            clock: None,
            asked_at: None,
            log: LogEvidence::Absent,
            claims: serde_json::Map::new(),
            report_data: String::new(),
            init_data: String::new(),
        }
    }

    /// The clock of the TPM, for evidence that came at `at`.
    pub(crate) fn clock_reading(&self, at: Timestamp) -> Option<ClockReading> {
        let asked_at = self.asked_at.unwrap_or(at);
        Some(ClockReading::new(self.clock?, asked_at, at).with_tee(self.tee))
    }

    /// The logged events of a register, if they fold to its quoted value.
    pub fn logged(&self, pcr: PcrIndex) -> Option<Vec<&LoggedEvent>> {
        match &self.log {
            LogEvidence::Parsed { events, replayed } if replayed.contains(pcr) => {
                Some(events.iter().filter(|event| event.pcr == pcr).collect())
            }
            _ => None,
        }
    }
}

/// Evidence was refused by a verifier.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// It is not what its type prescribes.
    #[error("the evidence is malformed at {at}")]
    Malformed {
        /// Member or offset.
        at: String,
    },
    /// Signature, type, magic or nonce do not fit.
    #[error("the quote is not valid: {reason}")]
    Quote {
        /// What does not fit.
        reason: &'static str,
        /// The key that the evidence names; not proven.
        claimed_ak: Option<Fingerprint>,
    },
    /// The hardware under the TPM does not vouch for it.
    #[error("the hardware report is not accepted: {findings}")]
    Hardware {
        /// All that was found.
        findings: String,
        /// The key that the evidence names; not proven.
        claimed_ak: Fingerprint,
    },
    /// The quote covers other registers than the pinned ones, or other values than were sent.
    #[error("the PCR selection is not as pinned: {reason}")]
    Selection {
        /// What differs.
        reason: &'static str,
        /// The key that signed.
        ak: Fingerprint,
    },
    /// This verifier does not take evidence of this sort.
    #[error("evidence of the sort {tee} is not accepted")]
    Unsupported {
        /// What was offered.
        tee: Tee,
    },
}

impl VerifyError {
    /// The key that the evidence names, proven or not.
    pub fn ak(&self) -> Option<Fingerprint> {
        match self {
            Self::Quote { claimed_ak, .. } => *claimed_ak,
            Self::Hardware { claimed_ak, .. } => Some(*claimed_ak),
            Self::Selection { ak, .. } => Some(*ak),
            Self::Malformed { .. } | Self::Unsupported { .. } => None,
        }
    }
}

/// The registers that must be those of approved images; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinnedPcrs(PcrSet);

/// No register was pinned, so every boot would match.
#[derive(Debug, thiserror::Error)]
#[error("at least one PCR must be pinned")]
#[non_exhaustive]
pub struct NoPinnedPcrError;

impl PinnedPcrs {
    /// Checks that the set is not empty.
    pub fn new(set: PcrSet) -> Result<Self, NoPinnedPcrError> {
        if set.is_empty() {
            Err(NoPinnedPcrError)
        } else {
            Ok(Self(set))
        }
    }

    /// PCR 4 alone: the boot loader and kernel images.
    pub fn boot_manager() -> Self {
        Self::only(PcrIndex::BOOT_MANAGER)
    }

    /// One register.
    pub fn only(pcr: PcrIndex) -> Self {
        Self(PcrSet::default().with(pcr))
    }

    /// The registers in order.
    pub fn iter(self) -> impl Iterator<Item = PcrIndex> {
        self.0.iter()
    }
}

/// What the registries know about the key that signed.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Known<'a> {
    /// Record of the key.
    pub ak: Option<&'a AkRecord>,
    /// Machine of that record.
    pub machine: Option<&'a Machine>,
    /// All images, live or not.
    pub images: &'a [ApprovedImage],
}

impl<'a> Known<'a> {
    /// What was found.
    pub fn new(
        ak: Option<&'a AkRecord>,
        machine: Option<&'a Machine>,
        images: &'a [ApprovedImage],
    ) -> Self {
        Self {
            ak,
            machine,
            images,
        }
    }
}

/// Proof that a machine attested: its own key signed fresh evidence of an approved boot.
#[derive(Clone, Debug)]
pub struct Attested {
    machine: MachineId,
    ak: Fingerprint,
    booted: BootState,
    quoted: PcrValues,
    pinned: PinnedPcrs,
    attempt: AttemptId,
}

impl Attested {
    /// The machine.
    pub fn machine(&self) -> MachineId {
        self.machine
    }

    /// Its key.
    pub fn ak(&self) -> Fingerprint {
        self.ak
    }

    /// What it booted, in terms of the images that were approved then.
    pub fn booted(&self) -> &BootState {
        &self.booted
    }

    /// The values that were quoted, to be looked at again before a key leaves.
    pub(crate) fn quoted(&self) -> &PcrValues {
        &self.quoted
    }

    /// The registers that counted.
    pub(crate) fn pinned(&self) -> PinnedPcrs {
        self.pinned
    }

    /// The attempt in which it attested.
    pub fn attempt(&self) -> AttemptId {
        self.attempt
    }
}

/// One attempt to obtain a key, as it is kept for `tec explain`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Attempt {
    /// Its id.
    pub id: AttemptId,
    /// When the evidence came.
    pub at: Timestamp,
    /// The machine, as far as it is known.
    pub machine: Option<MachineId>,
    /// The key that signed, or that the evidence names.
    pub ak: Option<Fingerprint>,
    /// What was booted, where the registers are those of approved images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub booted: Option<BootState>,
    /// Nobody signed the evidence, or not well: anybody could have sent it, also in the name of a key
    /// that is registered.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsigned: bool,
    /// How far it got.
    pub ladder: Ladder,
}

impl Attempt {
    /// Notes that the registers are explained, and by what.
    pub(crate) fn explained_by(&mut self, state: &BootState) {
        self.ladder.pass(Gate::Pcrs, state.sentence());
        self.booted = Some(state.clone());
    }
}

/// Result of an appraisal: the record, and the proof if all gates so far are passed.
#[derive(Debug)]
#[non_exhaustive]
pub struct Appraisal {
    /// For the attempt log.
    pub attempt: Attempt,
    /// Present exactly when no gate failed.
    pub attested: Option<Attested>,
}

/// Climbs the gates "machine known" to "each PCR against approved images".
///
/// # Security
/// The first failing gate ends it. Without a state of live images that has all pinned registers at
/// once there is no [`Attested`].
pub fn appraise(
    id: AttemptId,
    at: Timestamp,
    evidence: &Result<VerifiedEvidence, VerifyError>,
    known: Known<'_>,
    pinned: PinnedPcrs,
    states: &dyn BootStates,
) -> Appraisal {
    let mut attempt = Attempt {
        id,
        at,
        machine: known.ak.map(|record| record.machine),
        ak: match evidence {
            Ok(verified) => Some(verified.ak.fingerprint()),
            Err(error) => error.ak(),
        },
        booted: None,
        unsigned: evidence.is_err(),
        ladder: Ladder::new(),
    };
    let ladder = &mut attempt.ladder;
    ladder.pass(Gate::ReachedServer, "evidence received");
    ladder.pass(Gate::Tls, "session established");
    let Some(verified) = gates_before_pcrs(ladder, evidence, known, pinned) else {
        return Appraisal::refused(attempt);
    };
    let booted = match explain_pcrs(verified, known.images, pinned, at, states) {
        Ok(booted) => booted,
        Err(mismatch) => {
            ladder.fail_pcrs(mismatch);
            return Appraisal::refused(attempt);
        }
    };
    attempt.explained_by(&booted);
    let attested = match (attempt.machine, attempt.ak) {
        (Some(machine), Some(ak)) if attempt.ladder.first_failure().is_none() => Some(Attested {
            machine,
            ak,
            booted,
            quoted: verified.pcrs.clone(),
            pinned,
            attempt: id,
        }),
        _ => None,
    };
    Appraisal { attempt, attested }
}

impl Appraisal {
    /// Takes the proof back: a gate failed that needs more than this evidence.
    pub(crate) fn fail(&mut self, gate: Gate, detail: impl Into<String>) {
        self.attested = None;
        self.attempt.ladder.fail(gate, detail);
    }

    fn refused(attempt: Attempt) -> Self {
        Self {
            attempt,
            attested: None,
        }
    }
}

fn gates_before_pcrs<'a>(
    ladder: &mut Ladder,
    evidence: &'a Result<VerifiedEvidence, VerifyError>,
    known: Known<'_>,
    pinned: PinnedPcrs,
) -> Option<&'a VerifiedEvidence> {
    if let Err(error @ (VerifyError::Malformed { .. } | VerifyError::Unsupported { .. })) = evidence
    {
        ladder.fail_malformed(error.to_string());
        return None;
    }
    identity_gates(ladder, known)?;
    let verified = quote_gates(ladder, evidence)?;
    log_gate(ladder, verified, pinned)?;
    Some(verified)
}

fn identity_gates(ladder: &mut Ladder, known: Known<'_>) -> Option<()> {
    let Some(record) = known.ak else {
        ladder.skip(
            Gate::MachineKnown,
            "the evidence names no machine, only a key",
        );
        ladder.fail(Gate::AkBound, "the key is not registered");
        return None;
    };
    match known.machine {
        Some(machine) if machine.state == MachineState::Revoked => {
            ladder.fail(
                Gate::MachineKnown,
                format!("machine {} was revoked", machine.id),
            );
            return None;
        }
        Some(machine) => ladder.pass(Gate::MachineKnown, format!("machine {}", machine.id)),
        None => {
            ladder.fail(
                Gate::MachineKnown,
                format!("machine {} was removed", record.machine),
            );
            return None;
        }
    }
    match record.state {
        AkState::Bound => {
            ladder.pass(Gate::AkBound, format!("key {}", record.fingerprint()));
            Some(())
        }
        AkState::Pending => {
            ladder.fail(
                Gate::AkBound,
                format!("key {} waits for approval", record.fingerprint()),
            );
            None
        }
        AkState::Revoked => {
            ladder.fail(
                Gate::AkBound,
                format!("key {} was revoked", record.fingerprint()),
            );
            None
        }
    }
}

fn quote_gates<'a>(
    ladder: &mut Ladder,
    evidence: &'a Result<VerifiedEvidence, VerifyError>,
) -> Option<&'a VerifiedEvidence> {
    let failed = match evidence {
        Ok(verified) => {
            ladder.pass(
                Gate::NonceAndSignature,
                "signed by the key, over this session's nonce",
            );
            ladder.pass(Gate::PcrSelection, "sha256:0-23, once");
            return Some(verified);
        }
        Err(error) => error,
    };
    if matches!(failed, VerifyError::Selection { .. }) {
        ladder.pass(
            Gate::NonceAndSignature,
            "signed by the key, over this session's nonce",
        );
        ladder.fail(Gate::PcrSelection, failed.to_string());
    } else {
        ladder.fail(Gate::NonceAndSignature, failed.to_string());
    }
    None
}

fn log_gate(ladder: &mut Ladder, verified: &VerifiedEvidence, pinned: PinnedPcrs) -> Option<()> {
    match &verified.log {
        LogEvidence::Absent => {
            ladder.skip(
                Gate::EventLog,
                "no event log was sent; the PCR values alone decide",
            );
            Some(())
        }
        LogEvidence::Broken { reason } => {
            ladder.fail(Gate::EventLog, format!("the log does not parse: {reason}"));
            None
        }
        LogEvidence::Parsed { events, replayed } => {
            if let Some(pcr) = pinned.iter().find(|pcr| !replayed.contains(*pcr)) {
                ladder.fail(
                    Gate::EventLog,
                    format!("the log's events do not fold to the quoted value of PCR {pcr}"),
                );
                return None;
            }
            ladder.pass(Gate::EventLog, format!("{} events replay", events.len()));
            Some(())
        }
    }
}
