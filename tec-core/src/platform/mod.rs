//! What a machine is below the operating system: its firmware, its option ROMs and its Secure Boot
//! policy, and what may change between two boots without an approval.
//!
//! *What it is*: types and a pure comparison. *What it is not*: a judgment of firmware. The first accepted
//! boot of a machine becomes its baseline, just as its first attestation key becomes its key.
//!
//! | register | what it holds | rule |
//! |---|---|---|
//! | 0 | code of the firmware | enforced: whoever changes it controls everything that is measured later |
//! | 2 | option ROMs | enforced: they run before the operating system, with its privileges |
//! | 4 | programs of the firmware, before those of an image | enforced: the rest of the register is the image's |
//! | 7 | Secure Boot policy | enforced, except for what [`judge`] explains |
//! | 8, 9, 12, 13, 14 | what the booted image does not state of them | enforced for each image, from its first accepted boot on: see [`ImageBoot`] |
//! | 1, 3, 5, 6 | configuration, partition table, vendor events | recorded: boot order and grown partitions change in normal use |
//!
//! The separator of systemd, which an update of the initramfs brings, is no change in any of them.
//!
//! (TCG PC Client Platform Firmware Profile 1.06, 3.3.4, for what each register holds.)

mod change;
mod image;
mod judge;
mod policy;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use self::change::{ChangeEffect, PlatformChange, changes};
pub use self::image::ImageBoot;
pub use self::judge::{Judgement, judge, judge_approved};
use crate::boot::{is_separator, words};
use crate::digest::Sha256Digest;
use crate::evidence::{LogEvidence, LoggedEvent, VerifiedEvidence};
use crate::pcr::PcrIndex;
pub use crate::variable::{KeyDatabase, LoggedVariable, PolicyVariable, SecureBootState};

/// Registers whose value is enforced as a whole.
const CODE: [u8; 2] = [0, 2];
/// Registers that are recorded. PCR 7 is among them, because its value also depends on what was booted; its
/// policy is enforced separately.
const RECORDED: [u8; 5] = [1, 3, 5, 6, 7];
/// Maximum number of events kept for one register. Real registers have less than half as many; a register
/// with more counts as unexplained.
const MAX_EVENTS: usize = 256;
/// Maximum number of entries kept for one variable; revocation lists have a few hundred.
const MAX_ENTRIES: usize = 4096;
/// Longest JSON form of firmware and what is recorded; one that is longer counts as unexplained. Those of machines
/// with long revocation lists have less than a fifth.
const MAX_FIRMWARE: usize = 256 * 1024;
/// Longest JSON form of a platform. Two of them fit into an object of etcd (1.5 MiB).
pub const MAX_PLATFORM: usize = MAX_FIRMWARE + image::MAX_ALL + 1024;

/// One event of a register. The log claims type and detail; they prove nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PlatformEvent {
    /// Name of the type.
    pub kind: String,
    /// Detail for humans.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Digest.
    pub digest: Sha256Digest,
}

/// An event of PCR 7, with the variable that its data proves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PolicyEvent {
    /// The event.
    #[serde(flatten)]
    pub event: PlatformEvent,
    /// The variable, if the log holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proven: Option<PolicyVariable>,
}

/// A register: its quoted value and, if the log replays, the events that extend to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Register {
    /// Quoted value.
    pub value: Sha256Digest,
    /// The events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<Vec<PlatformEvent>>,
}

/// What PCR 7 says about the Secure Boot policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// The events of the policy, in order, without the authorities that a boot used.
    Events(Vec<PolicyEvent>),
    /// The log does not replay, so only the value of the register counts.
    Value(Sha256Digest),
}

/// The part of a platform that machines of one model, version and policy share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Firmware {
    /// PCR 0 and 2.
    pub code: BTreeMap<PcrIndex, Register>,
    /// PCR 7.
    pub policy: Policy,
    /// Programs in PCR 4 that the firmware starts before the operating system, such as a setup screen or an
    /// agent of the vendor. Empty for most machines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<PlatformEvent>,
}

/// What one boot showed of a machine's platform.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Platform {
    /// The enforced part.
    pub firmware: Firmware,
    /// The part that is only recorded.
    pub recorded: BTreeMap<PcrIndex, Register>,
    /// What images leave open: in a boot, that of its image; in a baseline, the first ones of the images that the
    /// machine booted last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub boots: Vec<ImageBoot>,
}

impl Firmware {
    /// Digest of its JSON form: equal for machines that share it.
    ///
    /// # Errors
    /// The value has no JSON form, which cannot happen for this type.
    pub fn id(&self) -> Result<Sha256Digest, serde_json::Error> {
        serde_json::to_vec(self).map(Sha256Digest::of)
    }
}

impl Platform {
    /// A platform from its parts.
    pub fn new(firmware: Firmware, recorded: BTreeMap<PcrIndex, Register>) -> Self {
        Self { firmware, recorded, boots: Vec::new() }
    }

    /// The platform that verified evidence shows.
    pub fn of(evidence: &VerifiedEvidence) -> Self {
        let register = |pcr| (pcr, Register::of(evidence, pcr));
        let platform = Self {
            firmware: Firmware {
                code: indices(&CODE).map(register).collect(),
                policy: Policy::of(evidence),
                programs: Vec::new(),
            },
            recorded: indices(&RECORDED).map(register).collect(),
            boots: Vec::new(),
        };
        let size = serde_json::to_string(&platform).map_or(usize::MAX, |text| text.len());
        if size > MAX_FIRMWARE {
            // The values alone.
            return Self::of(&VerifiedEvidence { log: LogEvidence::Absent, ..evidence.clone() });
        }
        platform
    }

    /// With these programs of the firmware in PCR 4.
    pub fn with_programs(mut self, programs: &[LoggedEvent]) -> Self {
        self.firmware.programs = programs.iter().map(PlatformEvent::of).collect();
        self
    }

    /// All registers in order.
    pub fn registers(&self) -> BTreeMap<PcrIndex, &Register> {
        let all = self.firmware.code.iter().chain(&self.recorded);
        all.map(|(pcr, register)| (*pcr, register)).collect()
    }

    /// PCR 7 as a whole.
    fn policy_register(&self) -> Option<&Register> {
        self.recorded.get(&PcrIndex::SECURE_BOOT)
    }
}

impl Register {
    fn of(evidence: &VerifiedEvidence, pcr: PcrIndex) -> Self {
        let events = evidence.logged(pcr).filter(|events| events.len() <= MAX_EVENTS);
        let events = events.map(|events| events.into_iter().map(PlatformEvent::of).collect());
        Self { value: *evidence.pcrs.value(pcr), events }
    }

    /// Whether the values are the same, or differ by the separator of systemd: either initramfs may have had it.
    fn is_same(&self, pcr: PcrIndex, other: &Self) -> bool {
        let (one, other) = (&self.value, &other.value);
        one == other || words::follows(pcr, one, other) || words::follows(pcr, other, one)
    }
}

impl PlatformEvent {
    fn of(event: &LoggedEvent) -> Self {
        Self { kind: event.kind.clone(), detail: event.detail.clone(), digest: event.digest }
    }
}

impl Policy {
    /// # Security
    /// The type of an event is not measured, so whoever sends the log chooses it. An authority is
    /// therefore recognized by its proven data, and by its place: the firmware measures its policy
    /// before the separator, and what it verifies with only after it (PC Client Platform Firmware
    /// Profile 1.06, 3.3.4.8).
    fn of(evidence: &VerifiedEvidence) -> Self {
        let pcr = PcrIndex::SECURE_BOOT;
        let value = || Self::Value(*evidence.pcrs.value(pcr));
        let Some(logged) = evidence.logged(pcr).filter(|events| events.len() <= MAX_EVENTS) else {
            return value();
        };
        let mut is_separated = false;
        let mut events = Vec::new();
        for event in logged {
            // Behind it there is no policy, only what anybody on the machine may measure.
            let is_policy =
                |variable: &PolicyVariable| !is_separated || *variable == PolicyVariable::Authority;
            let proven = proven(evidence, event.number).filter(is_policy);
            let is_authority = is_separated && proven == Some(PolicyVariable::Authority);
            if is_authority || words::is_separator(&event.digest) {
                continue;
            }
            is_separated |= is_separator(&event.digest);
            events.push(PolicyEvent { event: PlatformEvent::of(event), proven });
        }
        Self::Events(events)
    }
}

fn proven(evidence: &VerifiedEvidence, event: u32) -> Option<PolicyVariable> {
    let found = evidence.variables.iter().find(|variable| variable.event == event)?;
    match &found.variable {
        PolicyVariable::Keys { entries, .. } if entries.len() > MAX_ENTRIES => None,
        variable => Some(variable.clone()),
    }
}

fn indices(numbers: &'static [u8]) -> impl Iterator<Item = PcrIndex> {
    numbers.iter().filter_map(|number| PcrIndex::new(*number).ok())
}

#[cfg(test)]
mod tests;
