//! Admission: checks evidence against the registries, and records the outcome.
//!
//! ```text
//! evidence ─ its key ─► AkRegistry (key and machine) ─┐
//!                        ImageRegistry ───────────────┴─► appraise ─► PlatformLog, ClockLog ─► AttemptLog, AuditSink
//! ```

use crate::ak::{AkRecord, AkState, Fingerprint};
use crate::attest::{
    Appraisal, Attempt, Known, PinnedPcrs, VerifiedEvidence, VerifyError, appraise,
};
use crate::boot::{BootStates, Pins, Unpinned, WholeImages, words};
use crate::code::Code;
use crate::explain::{Gate, Ladder};
use crate::id::{AttemptId, MachineId};
use crate::image::{ApprovedImage, ExpectedPcrs};
use crate::machine::{Machine, MachineState};
use crate::platform::{ImageBoot, Judgement, Platform};
use crate::port::{
    AkRegistry, AttemptLog, AuditEvent, AuditSink, Clock, ClockLog, ClockOutcome, ImageRegistry,
    PlatformLog, PlatformOutcome, PortError,
};

/// Ports for an admission.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AdmitPorts<'a> {
    /// The attestation keys and their machines.
    pub aks: &'a dyn AkRegistry,
    /// The approved boots; `None` if something else decides about the registers.
    pub boots: Option<Boots<'a>>,
    /// The last clock reading of each TPM.
    pub clocks: &'a dyn ClockLog,
    /// The platform of each machine; `None` leaves firmware and Secure Boot policy unchecked.
    pub platforms: Option<&'a dyn PlatformLog>,
    /// Where attempts are kept for `tec explain`.
    pub attempts: &'a dyn AttemptLog,
    /// Where refusals are recorded.
    pub audit: &'a dyn AuditSink,
    /// The clock.
    pub clock: &'a dyn Clock,
}

impl<'a> AdmitPorts<'a> {
    /// Bundles the ports. `boots` is `None` only if something else decides about the registers.
    pub fn new(
        aks: &'a dyn AkRegistry,
        boots: Option<Boots<'a>>,
        clocks: &'a dyn ClockLog,
        attempts: &'a dyn AttemptLog,
        audit: &'a dyn AuditSink,
        clock: &'a dyn Clock,
    ) -> Self {
        Self { aks, boots, clocks, platforms: None, attempts, audit, clock }
    }

    /// Also compares each machine's platform with its baseline, unless `platforms` is `None`.
    pub fn with_platforms(mut self, platforms: Option<&'a dyn PlatformLog>) -> Self {
        self.platforms = platforms;
        self
    }
}

/// Approved images, and what counts as a boot of them.
#[derive(Clone, Copy, Debug)]
pub struct Boots<'a> {
    /// The images.
    pub images: &'a dyn ImageRegistry,
    /// Which registers must match.
    pub pins: Pins,
    /// States that machines may be in.
    pub states: &'a dyn BootStates,
}

/// The records that the registries had, and the result of the appraisal.
#[derive(Debug)]
#[non_exhaustive]
pub struct Admission {
    /// The record, and the proof if there is one.
    pub appraisal: Appraisal,
    /// Record of the key that signed, or that the evidence names.
    pub ak: Option<AkRecord>,
    /// Machine of that record.
    pub machine: Option<Machine>,
    /// All images, live or not.
    pub images: Vec<ApprovedImage>,
}

/// Looks up who sent the evidence, valid or not, appraises it, and records the attempt.
///
/// Without [`Boots`] the register gate is skipped: there is no proof then, and only the ladder shows whether
/// a gate failed.
///
/// # Errors
/// A registry or a log failed; nothing is admitted in that case.
///
/// # Security
/// An attempt is recorded before anyone learns its outcome. The audit log contains only refusals of
/// evidence that a registered key signed, because strangers could fill it. Their attempts are in
/// the attempt log, which is bounded.
pub async fn admit(
    ports: AdmitPorts<'_>,
    id: AttemptId,
    evidence: &Result<VerifiedEvidence, VerifyError>,
) -> Result<Admission, PortError> {
    let admission = look(ports, id, evidence).await?;
    record(ports, &admission.appraisal.attempt, evidence.is_ok()).await?;
    Ok(admission)
}

/// Like [`admit`], but does not record the attempt; use [`record`] for that.
///
/// # Errors
/// A registry failed; nothing is admitted in that case.
///
/// # Cancel safety
/// The clock of the TPM may be stored although the caller gets no result. This is harmless: the next quote is
/// later anyway.
pub async fn look(
    ports: AdmitPorts<'_>,
    id: AttemptId,
    evidence: &Result<VerifiedEvidence, VerifyError>,
) -> Result<Admission, PortError> {
    let key = match evidence {
        Ok(verified) => Some(verified.ak.fingerprint()),
        Err(error) => error.ak(),
    };
    let found = match &key {
        Some(key) => ports.aks.find_with_machine(key).await?,
        None => None,
    };
    let (ak, machine) = found.map_or((None, None), |(ak, machine)| (Some(ak), machine));
    let images = match ports.boots {
        Some(boots) => boots.images.list().await?,
        None => Vec::new(),
    };
    let mut known = Known::new(ak.as_ref(), machine.as_ref(), &images);
    known.has_baseline = ports.platforms.is_some();
    let mut appraisal = decide(ports, id, evidence, known);
    if let Ok(verified) = evidence {
        let seen = platform_gate(ports.platforms, &mut appraisal, verified).await?;
        if appraisal.attempt.ladder.first_failure().is_some() {
            appraisal.attested = None;
        }
        history_gate(ports.clocks, &mut appraisal, verified).await?;
        keep_platform(ports.platforms, &mut appraisal, seen).await?;
    }
    Ok(Admission { appraisal, ak, machine, images })
}

/// Compares the platform with its baseline. Returns the platform if it must be recorded once the remaining
/// gates have passed: evidence that is refused for another reason must not become a baseline. A refused
/// platform is recorded immediately, so that it can be approved.
async fn platform_gate(
    platforms: Option<&dyn PlatformLog>,
    appraisal: &mut Appraisal,
    evidence: &VerifiedEvidence,
) -> Result<Option<Platform>, PortError> {
    let Some((key, machine)) = passed(&appraisal.attempt) else {
        return Ok(None);
    };
    let Some(platforms) = platforms else {
        appraisal.attempt.ladder.skip(Gate::Platform, "not recorded here");
        return Ok(None);
    };
    let seen =
        Platform::of(evidence).with_programs(&appraisal.programs).with_boot(appraisal.boot.clone());
    let Some(known) = platforms.find(&key).await? else {
        return Ok(Some(seen));
    };
    match known.judge(&seen) {
        // Nothing to write: most boots.
        Judgement::Matches if known.seen == seen && known.refused_at.is_none() => {
            note_platform(appraisal, machine, &PlatformOutcome::Matches);
            Ok(None)
        }
        Judgement::Matches | Judgement::Updated => Ok(Some(seen)),
        Judgement::Refused(_) => {
            let outcome = platforms.admit(&key, machine, &seen, appraisal.attempt.at).await?;
            note_platform(appraisal, machine, &outcome);
            Ok(None)
        }
    }
}

/// Records the platform of evidence that passed all gates.
async fn keep_platform(
    platforms: Option<&dyn PlatformLog>,
    appraisal: &mut Appraisal,
    seen: Option<Platform>,
) -> Result<(), PortError> {
    let Some((key, machine)) = passed(&appraisal.attempt) else {
        return Ok(());
    };
    let (Some(platforms), Some(seen)) = (platforms, seen) else {
        return Ok(());
    };
    let outcome = platforms.admit(&key, machine, &seen, appraisal.attempt.at).await?;
    note_platform(appraisal, machine, &outcome);
    if appraisal.attempt.ladder.first_failure().is_some() {
        appraisal.attested = None;
    }
    Ok(())
}

/// The key and the machine of an attempt that no gate refused so far.
fn passed(attempt: &Attempt) -> Option<(Fingerprint, MachineId)> {
    attempt.ladder.first_failure().is_none().then_some(())?;
    attempt.ak.zip(attempt.machine)
}

/// What an image leaves open, in the first boot of it on a machine.
const FIRST: &str = "from this first boot of the image on";
/// The same in later boots.
const LATER: &str = "as in the first boot of this image";
/// Maximum number of changes that a refusal names; `tec platform diff` shows all.
const NAMED: usize = 8;

fn note_platform(appraisal: &mut Appraisal, machine: MachineId, outcome: &PlatformOutcome) {
    let Appraisal { attempt, programs, boot, .. } = appraisal;
    let ladder = &mut attempt.ladder;
    let of_image = |how: &str| {
        boot.as_ref().map_or_else(String::new, |boot| format!("; {} {how}", boot.names()))
    };
    match outcome {
        PlatformOutcome::Recorded => {
            let digests: Vec<_> = programs.iter().map(|one| one.digest.to_string()).collect();
            let with = if digests.is_empty() { "" } else { ", with programs of the firmware: " };
            let (digests, of_image) = (digests.join(", "), of_image(FIRST));
            let detail = format!("first boot, now the baseline{with}{digests}{of_image}");
            ladder.pass(Gate::Platform, detail);
        }
        PlatformOutcome::NewImage => {
            ladder.pass(Gate::Platform, format!("as in the baseline{}", of_image(FIRST)));
        }
        PlatformOutcome::Matches => {
            ladder.pass(Gate::Platform, format!("as in the baseline{}", of_image(LATER)));
            if boot.as_ref().is_some_and(ImageBoot::has_files) {
                attempt.unpinned = Unpinned::default();
            }
        }
        PlatformOutcome::Moved => {
            ladder.pass(Gate::Platform, "verified or approved update, now the baseline");
        }
        PlatformOutcome::Refused(changes) => {
            let named: Vec<_> = changes.iter().take(NAMED).map(ToString::to_string).collect();
            let more = match changes.len().saturating_sub(NAMED) {
                0 => String::new(),
                more => format!("; and {more} more"),
            };
            let fix = format!("to approve it: tec platform approve {machine}");
            ladder.fail(Gate::Platform, format!("{}{more}; {fix}", named.join("; ")));
        }
    }
}

/// The last gate before a release: only evidence that passed all others updates the TPM's clock, so
/// that evidence refused for another reason leaves no trace. One exception: a new key's platform is compared
/// with the baseline of the machine's last key only afterwards, when it is recorded.
async fn history_gate(
    clocks: &dyn ClockLog,
    appraisal: &mut Appraisal,
    evidence: &VerifiedEvidence,
) -> Result<(), PortError> {
    let attempt = &mut appraisal.attempt;
    let Some((key, machine)) = passed(attempt) else {
        return Ok(());
    };
    let Some(reading) = evidence.clock_reading(attempt.at) else {
        let ladder = &mut attempt.ladder;
        ladder.skip(Gate::TpmHistory, "the evidence has no clock");
        return Ok(());
    };
    let reading = reading.with_initramfs(appraisal.in_initramfs);
    if let ClockOutcome::Refused(fault) = clocks.advance(&key, machine, &reading).await? {
        appraisal.fail(Gate::TpmHistory, fault.to_string());
        return Ok(());
    }
    attempt.ladder.pass(Gate::TpmHistory, "its clock is after that of the last quote");
    // A machine is set up in its first boot, or in the running system before an initramfs asks.
    if attempt.late.is_some()
        && clocks.last(&key).await?.is_none_or(|last| !last.is_bound_to_initramfs())
    {
        attempt.late = None;
    }
    Ok(())
}

fn decide(
    ports: AdmitPorts<'_>,
    id: AttemptId,
    evidence: &Result<VerifiedEvidence, VerifyError>,
    known: Known<'_>,
) -> Appraisal {
    let now = ports.clock.now();
    if let Some(boots) = ports.boots {
        return appraise(id, now, evidence, known, boots.pins, boots.states);
    }
    let pins = Pins::Exactly(PinnedPcrs::boot_manager());
    let mut appraisal = appraise(id, now, evidence, known, pins, &WholeImages);
    leave_registers_out(&mut appraisal.attempt);
    appraisal
}

/// Marks the register gate as not applicable: without images, the policies of the key broker decide.
fn leave_registers_out(attempt: &mut Attempt) {
    // It was compared with no image, so that nobody refused it.
    attempt.measured = ExpectedPcrs::default();
    let ladder = &mut attempt.ladder;
    let failed = ladder.first_failure().map(|step| step.gate);
    if let Some(Gate::Pcrs | Gate::EventLog) = failed {
        // Another code means that more than the registers was refused.
        let of_registers = [Gate::Pcrs.code(), Gate::EventLog.code()];
        ladder.code = ladder.code.filter(|code| !of_registers.contains(code));
        ladder.mismatch = None;
        if failed == Some(Gate::EventLog) {
            ladder.skip(Gate::EventLog, "left to the policies of the key broker");
        }
        ladder.skip(Gate::Pcrs, "left to the policies of the key broker");
    }
}

/// Records an attempt; its evidence may or may not be signed by a TPM, see [`admit`].
pub async fn record(
    ports: AdmitPorts<'_>,
    attempt: &Attempt,
    is_signed: bool,
) -> Result<(), PortError> {
    ports.attempts.record(attempt).await?;
    match attempt.ladder.code {
        Some(code) if is_signed && attempt.machine.is_some() => {
            let line = AuditEvent::key_refused(ports.clock.now(), attempt, code);
            ports.audit.append(&line).await
        }
        _ => Ok(()),
    }
}

/// A gate that closed after the machine attested.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Closed {
    /// The gate.
    pub gate: Gate,
    /// Code of the refusal.
    pub code: Code,
    /// What was observed; shown to admins, never to the node.
    pub why: String,
}

impl Closed {
    /// A gate, with the code of its failures.
    pub fn new(gate: Gate, why: impl Into<String>) -> Self {
        Self { gate, code: gate.code(), why: why.into() }
    }

    /// The gate of an attempt whose initramfs had ended.
    pub fn after_initramfs(attempt: &Attempt) -> Option<Self> {
        let why = match attempt.late.as_deref()? {
            words::UNEXPLAINED => "no log and no image explains the value of PCR 11".to_owned(),
            word => format!("the initramfs had ended: PCR 11 has {word}"),
        };
        Some(Self { code: Code::InitramfsEnded, ..Self::new(Gate::ReleasePolicy, why) })
    }

    /// Marks the gate as failed.
    pub fn note(self, ladder: &mut Ladder) {
        ladder.code.get_or_insert(self.code);
        ladder.fail(self.gate, self.why);
    }
}

/// Whether a machine that attested, or its key, has since been revoked or quarantined.
pub async fn taken_back(
    aks: &dyn AkRegistry,
    machine: MachineId,
    ak: &Fingerprint,
) -> Result<Option<Closed>, PortError> {
    let Some((found, owner)) = aks.find_with_machine(ak).await? else {
        // A revoked key stays known as long as its machine does.
        let why = format!("machine {machine} or its key was removed");
        return Ok(Some(Closed::new(Gate::MachineKnown, why)));
    };
    let owner = owner.filter(|owner| owner.id == machine);
    match owner.map(|owner| owner.state) {
        Some(MachineState::Active) => {}
        Some(MachineState::Quarantined) => {
            let why = format!("machine {machine} is quarantined");
            let code = Code::MachineQuarantined;
            return Ok(Some(Closed { code, ..Closed::new(Gate::ReleasePolicy, why) }));
        }
        None | Some(MachineState::Unclaimed | MachineState::Revoked | MachineState::Retired) => {
            let why = format!("machine {machine} was revoked or retired");
            return Ok(Some(Closed::new(Gate::MachineKnown, why)));
        }
    }
    let holds =
        found.state == AkState::Bound && found.machine == machine && found.fingerprint() == *ak;
    Ok((!holds).then(|| Closed::new(Gate::AkBound, format!("key {ak} was revoked"))))
}
