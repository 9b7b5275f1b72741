//! What a verifier found in evidence, and which registers must match.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ak::{ClockReading, PublicKey, TpmClock};
use crate::digest::Sha256Digest;
use crate::fingerprint::Fingerprint;
use crate::pcr::{PcrIndex, PcrSet, PcrValues};
use crate::tee::Tee;
use crate::time::Timestamp;
use crate::variable::LoggedVariable;

/// One event of a boot log. Digest and register are proven once the log replays; `detail` is what
/// the log claims about the event, and proves nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LoggedEvent {
    /// Number of the event in the log, from 0.
    pub number: u32,
    /// Register.
    pub pcr: PcrIndex,
    /// SHA-256 digest that the register was extended with.
    pub digest: Sha256Digest,
    /// Name of the event type, `EV_…`.
    pub kind: String,
    /// For humans only: a path or text from the event data.
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
        Self { number, pcr, digest, kind: kind.into(), detail }
    }
}

/// The event log that came with evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogEvidence {
    /// No log: only the PCR values decide.
    Absent,
    /// The log parses, as far as it goes. The registers in `replayed` match the quoted values.
    Parsed {
        /// The events in order, and then what systemd measured after the log ended.
        events: Vec<LoggedEvent>,
        /// Registers whose events fold to the quoted value.
        replayed: PcrSet,
        /// Why the rest of the log cannot be read, if there is more of it.
        cut: Option<String>,
    },
    /// The log does not parse: the PCR values decide.
    Broken {
        /// Why, with the offset.
        reason: String,
    },
}

/// Evidence whose signature, nonce, selection and digest have been verified. Created by a
/// [`Verifier`](crate::port::Verifier).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct VerifiedEvidence {
    /// Type of evidence.
    pub tee: Tee,
    /// The key that signed; it may be unregistered.
    pub ak: PublicKey,
    /// Quoted values of the SHA-256 bank.
    pub pcrs: PcrValues,
    /// Clock of the TPM, if the signed evidence contains it.
    pub clock: Option<TpmClock>,
    /// When the challenge was issued, if the server that received the evidence reports it.
    pub asked_at: Option<Timestamp>,
    /// Event log.
    pub log: LogEvidence,
    /// Variables of the Secure Boot policy that the data of the log's events proves.
    pub variables: Vec<LoggedVariable>,
    /// Claims for policies: the object under the name of the TEE.
    pub claims: serde_json::Map<String, serde_json::Value>,
    /// `report_data` claim: hexadecimal form of the bound nonce.
    pub report_data: String,
    /// `init_data` claim.
    pub init_data: String,
}

impl VerifiedEvidence {
    /// Assembles verified evidence.
    pub fn new(tee: Tee, ak: PublicKey, pcrs: PcrValues) -> Self {
        Self {
            tee,
            ak,
            pcrs,
            clock: None,
            asked_at: None,
            log: LogEvidence::Absent,
            variables: Vec::new(),
            claims: serde_json::Map::new(),
            report_data: String::new(),
            init_data: String::new(),
        }
    }

    /// The clock of the TPM, for evidence that arrived at `at`.
    pub(crate) fn clock_reading(&self, at: Timestamp) -> Option<ClockReading> {
        let asked_at = self.asked_at.unwrap_or(at);
        Some(ClockReading::new(self.clock?, asked_at, at).with_tee(self.tee))
    }

    /// The logged events of a register, if they fold to the quoted value.
    pub fn logged(&self, pcr: PcrIndex) -> Option<Vec<&LoggedEvent>> {
        match &self.log {
            LogEvidence::Parsed { events, replayed, .. } if replayed.contains(pcr) => {
                Some(events.iter().filter(|event| event.pcr == pcr).collect())
            }
            _ => None,
        }
    }
}

/// A verifier refused the evidence.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The evidence does not have the form that its type prescribes.
    #[error("the evidence is malformed at {0}")]
    Malformed(String),
    /// Signature, type, magic or nonce is invalid.
    #[error("invalid quote: {reason}")]
    Quote {
        /// What is invalid.
        reason: &'static str,
        /// The key that the evidence names; unproven.
        claimed_ak: Option<Fingerprint>,
    },
    /// The hardware under the TPM does not vouch for the TPM.
    #[error("the hardware report is not accepted: {findings}")]
    Hardware {
        /// All findings.
        findings: String,
        /// The key that the evidence names; unproven.
        claimed_ak: Fingerprint,
    },
    /// The quote covers registers other than the pinned ones, or values other than those sent.
    #[error("the PCR selection does not match the pinned registers: {reason}")]
    Selection {
        /// What differs.
        reason: &'static str,
        /// The key that signed.
        ak: Fingerprint,
    },
    /// This verifier does not accept evidence of this type.
    #[error("evidence of type {0} is not accepted")]
    Unsupported(Tee),
}

impl VerifyError {
    /// The key that the evidence names, proven or not.
    pub fn ak(&self) -> Option<Fingerprint> {
        match self {
            Self::Quote { claimed_ak, .. } => *claimed_ak,
            Self::Hardware { claimed_ak, .. } => Some(*claimed_ak),
            Self::Selection { ak, .. } => Some(*ak),
            Self::Malformed(_) | Self::Unsupported(_) => None,
        }
    }
}

/// The registers that must match approved images; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinnedPcrs(PcrSet);

/// No register is pinned, so every boot would match.
#[derive(Debug, thiserror::Error)]
#[error("at least one PCR must be pinned")]
#[non_exhaustive]
pub struct NoPinnedPcrError;

impl PinnedPcrs {
    /// Checks that the set is not empty.
    pub fn new(set: PcrSet) -> Result<Self, NoPinnedPcrError> {
        if set.is_empty() { Err(NoPinnedPcrError) } else { Ok(Self(set)) }
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

    /// Whether the register is one of them.
    pub fn contains(self, pcr: PcrIndex) -> bool {
        self.0.contains(pcr)
    }
}

/// `PCR 4`, `PCR 4, 14`.
impl fmt::Display for PinnedPcrs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let registers: Vec<_> = self.iter().map(|pcr| pcr.to_string()).collect();
        write!(f, "PCR {}", registers.join(", "))
    }
}
