//! The platforms of machines.

use std::fmt;

use async_trait::async_trait;

use super::{AuditEvent, PortError};
use crate::ak::Fingerprint;
use crate::digest::Sha256Digest;
use crate::id::MachineId;
use crate::platform::{Firmware, Judgement, Platform, PlatformChange, judge_approved};
use crate::time::Timestamp;

/// How a boot relates to the record of its machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlatformOutcome {
    /// The first boot; it is the baseline now.
    Recorded,
    /// It matches the baseline, which is unchanged.
    Matches,
    /// It matches, and is the first boot of its image: later boots of the image are held to it.
    NewImage,
    /// The change explains itself or was approved; the baseline moved to this boot.
    Moved,
    /// It does not match; the baseline is unchanged, and the boot is kept for an approval.
    Refused(Vec<PlatformChange>),
}

/// What is recorded about the platform of one attestation key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlatformRecord {
    /// Machine of the key.
    pub machine: MachineId,
    /// The platform that boots are compared with.
    pub baseline: Platform,
    /// The platform that the last boot showed.
    pub seen: Platform,
    /// When the last boot was refused; `None` if it was accepted.
    pub refused_at: Option<Timestamp>,
    /// Approved changes of this baseline.
    pub approved: Vec<Firmware>,
}

impl PlatformRecord {
    /// The record of a first boot.
    pub fn first(machine: MachineId, seen: &Platform) -> Self {
        let (baseline, seen) = (seen.clone(), seen.clone());
        Self { machine, baseline, seen, refused_at: None, approved: Vec::new() }
    }

    /// Compares a boot with the baseline and the approved changes.
    pub fn judge(&self, seen: &Platform) -> Judgement {
        judge_approved(&self.baseline, &self.approved, seen)
    }

    /// The record after this boot.
    #[must_use]
    pub fn after(mut self, seen: &Platform, at: Timestamp) -> (Self, PlatformOutcome) {
        let is_new = |boot| self.baseline.first_of(boot).is_none();
        let outcome = match self.judge(seen) {
            Judgement::Matches if seen.boots.iter().any(is_new) => PlatformOutcome::NewImage,
            Judgement::Matches => PlatformOutcome::Matches,
            Judgement::Updated => PlatformOutcome::Moved,
            Judgement::Refused(changes) => PlatformOutcome::Refused(changes),
        };
        if outcome == PlatformOutcome::Moved {
            let boots = std::mem::take(&mut self.baseline.boots);
            self.baseline = Platform { boots, ..seen.clone() };
            self.approved.clear();
        }
        self.refused_at = matches!(outcome, PlatformOutcome::Refused(_)).then_some(at);
        if self.refused_at.is_none() {
            self.baseline.learn(&seen.boots);
        }
        self.seen = seen.clone();
        (self, outcome)
    }

    /// The record once an admin approved the boot that was refused last, if that is what the admin has `seen`.
    /// The changed firmware is only accepted from now on; the boot of the image is the baseline at once.
    pub fn approved(mut self, seen: &Platform) -> Option<Self> {
        let is_seen = self.seen.firmware == seen.firmware && self.seen.boots == seen.boots;
        self.refused_at.filter(|_| is_seen)?;
        if self.has_other_firmware() {
            self.approved.push(self.seen.firmware.clone());
        }
        for boot in self.seen.boots.clone() {
            self.baseline.replace(boot);
        }
        Some(self.settled())
    }

    /// Whether the last boot showed another firmware than the baseline.
    pub fn has_other_firmware(&self) -> bool {
        self.seen.firmware != self.baseline.firmware
    }

    /// The record, whose last boot does not count as refused if it is accepted by now.
    #[must_use]
    pub fn settled(mut self) -> Self {
        if !matches!(self.judge(&self.seen), Judgement::Refused(_)) {
            self.refused_at = None;
        }
        self
    }
}

/// One line of a list of platforms.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlatformEntry {
    /// The machine.
    pub machine: MachineId,
    /// Its key.
    pub key: Fingerprint,
    /// [ID](Firmware::id) of the firmware of the baseline: equal for machines that share it.
    pub baseline: Sha256Digest,
    /// ID of the firmware that was seen last.
    pub seen: Sha256Digest,
    /// When the last boot was refused; `None` if it was accepted, or has been approved since.
    pub refused_at: Option<Timestamp>,
}

impl PlatformEntry {
    /// A line.
    pub fn new(
        (machine, key): (MachineId, Fingerprint),
        baseline: Sha256Digest,
        seen: Sha256Digest,
        refused_at: Option<Timestamp>,
    ) -> Self {
        Self { machine, key, baseline, seen, refused_at }
    }
}

/// Stores the platform baseline of each attestation key, and what its last boot showed.
///
/// *Contract*: `admit` is atomic, so that only one of two simultaneous first boots becomes the baseline. A new
/// key of a machine takes over the baseline of its last one, so that a new key does not hide another firmware.
/// Two platforms are kept per key, and removed with the machine. The baseline has the first boots of the images
/// that the machine booted last, for what these images leave open. Writes are durable when the call returns.
/// *Conformance suite*: [`testing::platform_log`](crate::testing::platform_log).
#[async_trait]
pub trait PlatformLog: fmt::Debug + Send + Sync {
    /// Compares a boot with what is recorded, and records it: as the baseline if it is the first of its machine,
    /// see [`PlatformRecord::after`].
    async fn admit(
        &self,
        key: &Fingerprint,
        machine: MachineId,
        seen: &Platform,
        at: Timestamp,
    ) -> Result<PlatformOutcome, PortError>;

    /// What is recorded for a key.
    async fn find(&self, key: &Fingerprint) -> Result<Option<PlatformRecord>, PortError>;

    /// All keys, in order of their machines.
    async fn list(&self) -> Result<Vec<PlatformEntry>, PortError>;

    /// Approves the change from the baseline of this key to the firmware that its last boot showed,
    /// for every key with the same baseline. Returns their machines. Each baseline moves with the
    /// next boot that shows the firmware; until then the present one is still accepted. What the boot showed of
    /// its image is approved for this machine alone, and is its baseline at once.
    ///
    /// # Errors
    /// `NotFound` if nothing is recorded for the key. `Conflict` if its last boot was not refused, or
    /// showed something other than `seen`. In both cases, no line is written.
    async fn approve(
        &self,
        key: &Fingerprint,
        seen: &Platform,
        line: &AuditEvent,
    ) -> Result<Vec<MachineId>, PortError>;
}
