//! Attestation: what a verifier found, and the appraisal that turns it into [`Attested`].
//!
//! ```text
//! evidence ─ Verifier ─► Result<VerifiedEvidence, VerifyError> ─ appraise ─► Ladder + Attested
//! ```
//! [`appraise`] is pure. It names the first gate that failed; only it creates an [`Attested`].
//! [`Attested::snapshot`] carries one to another replica of a server, where
//! [`Attested::dangerous_reopen`] reopens it.

mod bounded;
mod repeat;
mod snapshot;

use serde::{Deserialize, Serialize};

pub use self::repeat::Repeats;
pub use self::snapshot::AttestedSnapshot;
use crate::ak::{AkRecord, AkState, Fingerprint, TpmBoot, TpmClock};
use crate::boot::words;
use crate::boot::words::Phase;
use crate::boot::{BootState, BootStates, LiveImages, Pins, Unpinned, measured};
pub use crate::evidence::{
    LogEvidence, LoggedEvent, NoPinnedPcrError, PinnedPcrs, VerifiedEvidence, VerifyError,
};
use crate::explain::{Explained, Gate, Ladder, PcrMismatch, explain_pcrs};
use crate::id::{AttemptId, MachineId};
use crate::image::{ApprovedImage, ExpectedPcrs};
use crate::machine::{Machine, MachineState};
use crate::pcr::{PcrIndex, PcrValues};
use crate::platform::ImageBoot;
pub use crate::tee::Tee;
use crate::time::Timestamp;

/// The records that the registries have about the key that signed.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Known<'a> {
    /// Record of the key.
    pub ak: Option<&'a AkRecord>,
    /// Machine that the record belongs to.
    pub machine: Option<&'a Machine>,
    /// All images, live or not.
    pub images: &'a [ApprovedImage],
    /// Whether the platform of the machine is compared with its baseline afterwards.
    ///
    /// # Security
    /// Only a baseline can vouch for [programs](Appraisal::programs) of the firmware: without one, a boot that has
    /// any is refused.
    pub has_baseline: bool,
}

impl<'a> Known<'a> {
    /// Bundles what was found.
    pub fn new(
        ak: Option<&'a AkRecord>,
        machine: Option<&'a Machine>,
        images: &'a [ApprovedImage],
    ) -> Self {
        Self { ak, machine, images, has_baseline: false }
    }

    /// Drops what a store returned unasked: the record of another key, or a machine other than the
    /// record's.
    fn of(mut self, key: Option<&Fingerprint>) -> Self {
        let asked = |record: &&AkRecord| key.is_none_or(|key| record.fingerprint() == *key);
        self.ak = self.ak.filter(asked);
        let id = self.ak.map(|record| record.machine);
        self.machine = self.machine.filter(|machine| id == Some(machine.id));
        self
    }
}

/// Proof that a machine attested: its own key signed fresh evidence of an approved boot.
#[derive(Clone, Debug)]
pub struct Attested {
    machine: MachineId,
    ak: Fingerprint,
    booted: BootState,
    judged: PcrValues,
    pins: Pins,
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

    /// What the machine booted, in terms of the images approved at the time.
    pub fn booted(&self) -> &BootState {
        &self.booted
    }

    /// The values that were judged, to be checked again before a key is released: the quoted ones without what
    /// firmware and systemd measure around the boot chain.
    pub fn judged(&self) -> &PcrValues {
        &self.judged
    }

    /// Which registers must match.
    pub(crate) fn pins(&self) -> Pins {
        self.pins
    }

    /// The attempt in which the machine attested.
    pub fn attempt(&self) -> AttemptId {
        self.attempt
    }
}

/// One attempt to obtain a key, as stored for `tec explain`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Attempt {
    /// Its ID.
    pub id: AttemptId,
    /// When the evidence arrived.
    pub at: Timestamp,
    /// The machine, as far as known.
    pub machine: Option<MachineId>,
    /// The key that signed, or that the evidence names.
    pub ak: Option<Fingerprint>,
    /// What was booted, if the registers match approved images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub booted: Option<BootState>,
    /// The parts of this boot that neither a pinned register nor the first boot of the image on this machine
    /// covers: whatever they were, it was approved.
    #[serde(default, skip_serializing_if = "Unpinned::is_empty")]
    pub unpinned: Unpinned,
    /// Whether the evidence has no valid signature: anyone could have sent it, even in the name of
    /// a registered key.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsigned: bool,
    /// The boot in which the TPM signed, if the quote has a clock reading.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<TpmBoot>,
    /// The earlier attempts of the same boot that this one replaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<Repeats>,
    /// IDs of the last of those attempts, which nodes were told.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<AttemptId>,
    /// What a boot that no image explains measured, as far as its log replays: it can be approved as an image.
    /// Stores may keep it for the last attempt of a machine only.
    #[serde(default, skip_serializing_if = "ExpectedPcrs::is_empty")]
    pub measured: ExpectedPcrs,
    /// The word in PCR 11 by which it gets no disk key: its initramfs had ended, see [`crate::flow::release`]. In one
    /// word, because sessions carry it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<String>,
    /// How far the attempt got.
    pub ladder: Ladder,
}

impl Attempt {
    /// Records which state explains the registers, and what they do not cover, unless that is recorded.
    pub(crate) fn explained_by(&mut self, state: &BootState, unpinned: Unpinned) {
        if self.booted.as_ref() != Some(state) {
            self.unpinned = unpinned;
        }
        self.ladder.pass(Gate::Pcrs, state.sentence());
        self.booted = Some(state.clone());
    }
}

/// Result of an appraisal: the record, and the proof if every gate so far passed.
#[derive(Debug)]
#[non_exhaustive]
pub struct Appraisal {
    /// The record for the attempt log.
    pub attempt: Attempt,
    /// The proof; present only if no gate failed.
    pub attested: Option<Attested>,
    /// Programs in PCR 4 that are of no image, of a boot that is otherwise approved: the baseline of the machine must
    /// have them.
    pub programs: Vec<LoggedEvent>,
    /// What the image of an approved boot leaves open: the baseline of the machine must have the same. `None` if the
    /// registers that count are set for all images.
    pub boot: Option<ImageBoot>,
    /// Whether PCR 11 shows that the initramfs runs.
    pub in_initramfs: bool,
}

/// Runs the gates from "machine known" to "each PCR against approved images".
///
/// # Security
/// Stops at the first failing gate. There is no [`Attested`] unless one state of live images
/// matches all the registers that those images pin. A quarantined machine is appraised like any
/// other, and refused whatever it booted.
pub fn appraise(
    id: AttemptId,
    at: Timestamp,
    evidence: &Result<VerifiedEvidence, VerifyError>,
    known: Known<'_>,
    pins: Pins,
    states: &dyn BootStates,
) -> Appraisal {
    let key = match evidence {
        Ok(verified) => Some(verified.ak.fingerprint()),
        Err(error) => error.ak(),
    };
    let known = known.of(key.as_ref());
    let mut appraisal = climb(id, at, (key, evidence), known, pins, states);
    if known.machine.is_some_and(|machine| machine.state == MachineState::Quarantined) {
        appraisal.quarantine();
    }
    appraisal
}

fn climb(
    id: AttemptId,
    at: Timestamp,
    (key, evidence): (Option<Fingerprint>, &Result<VerifiedEvidence, VerifyError>),
    known: Known<'_>,
    pins: Pins,
    states: &dyn BootStates,
) -> Appraisal {
    let mut attempt = Attempt {
        id,
        at,
        machine: known.ak.map(|record| record.machine),
        ak: key,
        booted: None,
        unpinned: Unpinned::default(),
        unsigned: evidence.is_err(),
        boot: evidence
            .as_ref()
            .ok()
            .and_then(|verified| verified.clock.as_ref())
            .map(TpmClock::boot),
        repeats: None,
        earlier: Vec::new(),
        measured: ExpectedPcrs::default(),
        late: None,
        ladder: Ladder::new(),
    };
    let ladder = &mut attempt.ladder;
    ladder.pass(Gate::ReachedServer, "evidence received");
    ladder.pass(Gate::Tls, "session established");
    let Some(verified) = gates_before_pcrs(ladder, evidence, known) else {
        return Appraisal::refused(attempt);
    };
    let live = LiveImages::at(known.images, at);
    let usable = log_gate(ladder, verified, pins.any(&live));
    let stated = || pins.values(states, &live, PcrIndex::KERNEL_BOOT);
    let phase = words::phase(verified, stated);
    if let Phase::Later(word) = phase {
        attempt.late = Some(word.to_owned());
    }
    let explained = match explain_pcrs(verified, known.images, pins, at, states) {
        Ok(explained) => explained,
        Err(mismatch) => {
            refuse_registers(ladder, mismatch, usable);
            attempt.measured = measured(verified);
            return Appraisal::refused(attempt);
        }
    };
    let Explained { booted, pinned, judged, programs } = explained;
    let boot = match pins {
        Pins::Predicted if booted.is_held(known.images) => {
            ImageBoot::of(verified, &judged, pinned, &booted)
        }
        _ => None,
    };
    attempt.explained_by(&booted, pins.unpinned_in(&booted, known.images));
    if let Some(program) = programs.first().filter(|_| !known.has_baseline) {
        attempt.ladder.fail(Gate::Platform, unvouched(program));
    }
    let attested = match (attempt.machine, attempt.ak) {
        (Some(machine), Some(ak)) if attempt.ladder.first_failure().is_none() => {
            Some(Attested { machine, ak, booted, judged, pins, attempt: id })
        }
        _ => None,
    };
    Appraisal { attempt, attested, programs, boot, in_initramfs: phase == Phase::Initramfs }
}

/// A firmware program, and no baseline that could vouch for it.
fn unvouched(program: &LoggedEvent) -> String {
    let digest = program.digest;
    format!(
        "PCR 4 has a program of no image, {digest}, and no baseline of the machine is kept here"
    )
}

/// Refuses a boot that no image explains. If its log is of no use, that comes first: with a log that replays, the
/// boot may be explained.
fn refuse_registers(ladder: &mut Ladder, mismatch: Box<PcrMismatch>, usable: Result<(), String>) {
    if let Err(why) = usable {
        ladder.fail(Gate::EventLog, why);
    }
    ladder.fail_pcrs(mismatch);
}

impl Appraisal {
    /// Withdraws the proof because a gate that needs more than this evidence failed.
    pub(crate) fn fail(&mut self, gate: Gate, detail: impl Into<String>) {
        self.attested = None;
        self.attempt.ladder.fail(gate, detail);
    }

    /// Refuses the machine because it is quarantined. The code names the quarantine unless a gate
    /// before the boot's failed: a caller that has not proven to be this machine learns nothing
    /// about the quarantine.
    fn quarantine(&mut self) {
        self.attested = None;
        let ladder = &mut self.attempt.ladder;
        let of_boot = [Gate::EventLog, Gate::Pcrs, Gate::Platform];
        if ladder.first_failure().is_none_or(|step| of_boot.contains(&step.gate)) {
            ladder.fail_quarantined();
        }
    }

    fn refused(attempt: Attempt) -> Self {
        Self { attempt, attested: None, programs: Vec::new(), boot: None, in_initramfs: false }
    }
}

fn gates_before_pcrs<'a>(
    ladder: &mut Ladder,
    evidence: &'a Result<VerifiedEvidence, VerifyError>,
    known: Known<'_>,
) -> Option<&'a VerifiedEvidence> {
    if let Err(error @ (VerifyError::Malformed(_) | VerifyError::Unsupported(_))) = evidence {
        ladder.fail_malformed(error.to_string());
        return None;
    }
    identity_gates(ladder, known)?;
    quote_gates(ladder, evidence)
}

fn identity_gates(ladder: &mut Ladder, known: Known<'_>) -> Option<()> {
    let Some(record) = known.ak else {
        ladder.skip(Gate::MachineKnown, "the evidence names no machine, only a key");
        ladder.fail(Gate::AkBound, "the key is not registered");
        return None;
    };
    let Some(machine) = known.machine else {
        ladder.fail(Gate::MachineKnown, format!("machine {} was removed", record.machine));
        return None;
    };
    if let Some(why) = out_of_service(machine.state) {
        ladder.fail(Gate::MachineKnown, format!("machine {} {why}", machine.id));
        return None;
    }
    ladder.pass(Gate::MachineKnown, format!("machine {}", machine.id));
    match record.state {
        AkState::Bound => {
            ladder.pass(Gate::AkBound, format!("key {}", record.fingerprint()));
            Some(())
        }
        AkState::Pending => {
            ladder.fail(Gate::AkBound, format!("key {} waits for approval", record.fingerprint()));
            None
        }
        AkState::Revoked => {
            ladder.fail(Gate::AkBound, format!("key {} was revoked", record.fingerprint()));
            None
        }
    }
}

/// Why a machine in this state may not attest; `None` if it may.
fn out_of_service(state: MachineState) -> Option<&'static str> {
    match state {
        // Unclaimed machines fail at the next gate, quarantined ones at the last.
        MachineState::Unclaimed | MachineState::Active | MachineState::Quarantined => None,
        MachineState::Revoked => Some("was revoked"),
        MachineState::Retired => Some("was retired"),
    }
}

fn quote_gates<'a>(
    ladder: &mut Ladder,
    evidence: &'a Result<VerifiedEvidence, VerifyError>,
) -> Option<&'a VerifiedEvidence> {
    let failed = match evidence {
        Ok(verified) => {
            ladder.pass(Gate::NonceAndSignature, "signed by the key, over this session's nonce");
            ladder.pass(Gate::PcrSelection, "sha256:0-23, once");
            return Some(verified);
        }
        Err(error) => error,
    };
    if matches!(failed, VerifyError::Selection { .. }) {
        ladder.pass(Gate::NonceAndSignature, "signed by the key, over this session's nonce");
        ladder.fail(Gate::PcrSelection, failed.to_string());
    } else {
        ladder.fail(Gate::NonceAndSignature, failed.to_string());
    }
    None
}

/// Whether the log explains the pinned registers. One that does not is as good as none: values decide then.
fn log_gate(
    ladder: &mut Ladder,
    verified: &VerifiedEvidence,
    pinned: PinnedPcrs,
) -> Result<(), String> {
    let why = match &verified.log {
        LogEvidence::Absent => {
            ladder.skip(Gate::EventLog, "no event log was sent; the PCR values alone decide");
            return Ok(());
        }
        LogEvidence::Broken { reason } => format!("the log does not parse: {reason}"),
        LogEvidence::Parsed { events, replayed, cut } => {
            let Some(pcr) = pinned.iter().find(|pcr| !replayed.contains(*pcr)) else {
                let words = words::said(events);
                let words =
                    if words.is_empty() { words } else { format!(", and systemd's {words}") };
                ladder.pass(Gate::EventLog, format!("{} events replay{words}", events.len()));
                return Ok(());
            };
            let cut = cut.as_ref().map(|cut| format!(", and it ends early: {cut}"));
            let cut = cut.unwrap_or_default();
            format!("the log does not replay to the quoted value of PCR {pcr}{cut}")
        }
    };
    ladder.skip(Gate::EventLog, format!("{why}; the PCR values alone decide"));
    Err(why)
}
