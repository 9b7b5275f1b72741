//! What differs between two platforms, event by event.

use std::fmt;

use serde::Serialize;

use super::policy::{PolicyJudgement, grew, is_secure_boot_on, judge_policy};
use super::{Platform, PlatformEvent, Policy, PolicyEvent, PolicyVariable, Register};
use crate::digest::Sha256Digest;
use crate::pcr::PcrIndex;

/// What a change leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeEffect {
    /// The boot is refused until the change is approved.
    Refused,
    /// The change explains itself.
    Admitted,
    /// The register is not enforced.
    Recorded,
}

/// One changed event, or a register whose change no log explains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PlatformChange {
    /// Register.
    pub pcr: PcrIndex,
    /// What the change leads to.
    pub effect: ChangeEffect,
    /// Type of the event; none for a change of the register's value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// What the event is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Digest in the baseline; none for an added event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<Sha256Digest>,
    /// Digest in the boot; none for a removed event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<Sha256Digest>,
}

/// `PCR 0 EV_S_CRTM_VERSION 1.2: 5d5ac5d55d5ac5d5 -> 02d38c2a02d38c2a`.
impl fmt::Display for PlatformChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PCR {}", self.pcr)?;
        if let Some(kind) = &self.kind {
            write!(f, " {kind}")?;
        }
        if let Some(detail) = &self.detail {
            write!(f, " {detail}")?;
        }
        write!(f, ": {} -> {}", short(self.old.as_ref()), short(self.new.as_ref()))
    }
}

/// The first 16 digits, enough for a reader to identify an event.
fn short(digest: Option<&Sha256Digest>) -> String {
    digest.map_or_else(|| "none".to_owned(), |digest| digest.to_string().chars().take(16).collect())
}

/// All differences between a baseline and a boot, in the order of the registers.
pub fn changes(baseline: &Platform, seen: &Platform) -> Vec<PlatformChange> {
    let (before, after) = (baseline.registers(), seen.registers());
    let mut found = Vec::new();
    for (pcr, old) in before {
        let Some(new) = after.get(&pcr).filter(|new| new.value != old.value) else {
            continue;
        };
        if pcr == PcrIndex::SECURE_BOOT {
            found.extend(policy(baseline, seen));
        } else {
            let effect = if !baseline.firmware.code.contains_key(&pcr) {
                ChangeEffect::Recorded
            } else if old.is_same(pcr, new) {
                ChangeEffect::Admitted
            } else {
                ChangeEffect::Refused
            };
            found.extend(register(pcr, effect, old, new));
        }
    }
    found.extend(programs(&baseline.firmware.programs, &seen.firmware.programs));
    let none = Register { value: Sha256Digest::ZERO, events: None };
    for boot in &seen.boots {
        let first = baseline.first_of(boot).into_iter();
        found.extend(first.flat_map(|first| first.differing(boot)).flat_map(|(pcr, old, new)| {
            register(pcr, ChangeEffect::Refused, old, new.unwrap_or(&none))
        }));
    }
    found
}

/// The differences of what the firmware starts before the operating system.
fn programs(old: &[PlatformEvent], new: &[PlatformEvent]) -> Vec<PlatformChange> {
    let (pcr, effect) = (PcrIndex::BOOT_MANAGER, ChangeEffect::Refused);
    let found = events_of(pcr, effect, old, new);
    let moved = old.iter().zip(new).find(|(old, new)| old.digest != new.digest);
    match moved.filter(|_| found.is_empty()) {
        Some((old, new)) => vec![change(pcr, effect, Some(old), Some(new))],
        None => found,
    }
}

/// The differences of a register whose values differ; at least one.
fn register(
    pcr: PcrIndex,
    effect: ChangeEffect,
    old: &Register,
    new: &Register,
) -> Vec<PlatformChange> {
    let found = match (&old.events, &new.events) {
        (Some(old), Some(new)) => events(pcr, effect, old.iter().collect(), new.iter().collect()),
        _ => Vec::new(),
    };
    if found.is_empty() { vec![whole(pcr, effect, old.value, new.value)] } else { found }
}

fn whole(
    pcr: PcrIndex,
    effect: ChangeEffect,
    old: Sha256Digest,
    new: Sha256Digest,
) -> PlatformChange {
    let (old, new) = (Some(old), Some(new));
    PlatformChange { pcr, effect, kind: None, detail: None, old, new }
}

/// The events that only one side has; two with the same type and detail are shown as one changed event.
fn events(
    pcr: PcrIndex,
    effect: ChangeEffect,
    mut old: Vec<&PlatformEvent>,
    mut new: Vec<&PlatformEvent>,
) -> Vec<PlatformChange> {
    old.retain(|event| !take(&mut new, |other| other.digest == event.digest));
    let mut found = Vec::new();
    for event in old {
        let same =
            |other: &&PlatformEvent| other.kind == event.kind && other.detail == event.detail;
        let at = new.iter().position(same);
        let at = at.or_else(|| new.iter().position(|other| other.kind == event.kind));
        let next = at.map(|at| new.remove(at));
        found.push(change(pcr, effect, Some(event), next));
    }
    found.extend(new.into_iter().map(|event| change(pcr, effect, None, Some(event))));
    found
}

/// Removes the first event that `fits`.
fn take(events: &mut Vec<&PlatformEvent>, fits: impl Fn(&PlatformEvent) -> bool) -> bool {
    let at = events.iter().position(|event| fits(event));
    at.map(|at| events.remove(at)).is_some()
}

fn change(
    pcr: PcrIndex,
    effect: ChangeEffect,
    old: Option<&PlatformEvent>,
    new: Option<&PlatformEvent>,
) -> PlatformChange {
    let named = new.or(old);
    let detail = match (old.and_then(|e| e.detail.as_ref()), new.and_then(|e| e.detail.as_ref())) {
        (Some(old), Some(new)) if old != new => Some(format!("{old} -> {new}")),
        (old, new) => new.or(old).cloned(),
    };
    PlatformChange {
        pcr,
        effect,
        kind: named.map(|event| event.kind.clone()),
        detail,
        old: old.map(|event| event.digest),
        new: new.map(|event| event.digest),
    }
}

/// The differences of PCR 7.
fn policy(baseline: &Platform, seen: &Platform) -> Vec<PlatformChange> {
    let pcr = PcrIndex::SECURE_BOOT;
    let judgement = judge_policy(baseline, seen);
    let effect = match judgement {
        Some(_) => ChangeEffect::Admitted,
        None => ChangeEffect::Refused,
    };
    let mut found = Vec::new();
    if let (Policy::Events(old), Policy::Events(new)) =
        (&baseline.firmware.policy, &seen.firmware.policy)
    {
        found = policy_events(effect, old, new, is_secure_boot_on(seen));
    }
    if judgement != Some(PolicyJudgement::Grew) && found.is_empty() {
        // Other authorities, another order, or no log.
        let value = |platform: &Platform| {
            platform.policy_register().map(|register| register.value).unwrap_or_default()
        };
        found.push(whole(pcr, effect, value(baseline), value(seen)));
    }
    found
}

fn policy_events(
    effect: ChangeEffect,
    old: &[PolicyEvent],
    new: &[PolicyEvent],
    is_on: bool,
) -> Vec<PlatformChange> {
    let pcr = PcrIndex::SECURE_BOOT;
    if old.len() != new.len() {
        let events = |all: &[PolicyEvent]| all.iter().map(|event| event.event.clone()).collect();
        let (old, new): (Vec<PlatformEvent>, Vec<PlatformEvent>) = (events(old), events(new));
        return events_of(pcr, effect, &old, &new);
    }
    let pairs = old.iter().zip(new).filter(|(a, b)| a.event.digest != b.event.digest);
    pairs
        .map(|(a, b)| {
            let admitted = grew(a, b) && is_on;
            let effect = if admitted { ChangeEffect::Admitted } else { effect };
            let mut change = change(pcr, effect, Some(&a.event), Some(&b.event));
            change.detail = entries(a, b).or(change.detail);
            change
        })
        .collect()
}

fn events_of(
    pcr: PcrIndex,
    effect: ChangeEffect,
    old: &[PlatformEvent],
    new: &[PlatformEvent],
) -> Vec<PlatformChange> {
    events(pcr, effect, old.iter().collect(), new.iter().collect())
}

/// `dbx, 3 added, 1 removed`; `SecureBoot, on -> off`.
fn entries(old: &PolicyEvent, new: &PolicyEvent) -> Option<String> {
    match (old.proven.as_ref()?, new.proven.as_ref()?) {
        (
            PolicyVariable::Keys { name, entries: had },
            PolicyVariable::Keys { name: after, entries: has },
        ) if name == after => {
            let (added, removed) = (has.difference(had).count(), had.difference(has).count());
            Some(format!("{}, {added} added, {removed} removed", name.as_str()))
        }
        (PolicyVariable::SecureBoot { state: old }, PolicyVariable::SecureBoot { state: new }) => {
            Some(format!("SecureBoot, {} -> {}", old.as_str(), new.as_str()))
        }
        _ => None,
    }
}
