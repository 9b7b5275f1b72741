//! Whether one Secure Boot policy follows from another.

use super::{Platform, Policy, PolicyEvent, PolicyVariable, SecureBootState};
use crate::digest::Sha256Digest;
use crate::pcr::PcrIndex;

/// Actions by which firmware says that it protects less, and what that means (PC Client Platform Firmware Profile
/// 1.06, 3.3.4.8, for debug mode; Microsoft, "Kernel DMA Protection", for the other).
const WEAKNESSES: [(&str, &str); 2] = [
    (
        "DMA Protection Disabled",
        "devices could read and write memory while it booted (DMA protection was off)",
    ),
    ("UEFI Debug Mode", "it could be debugged"),
];

impl Policy {
    /// What the firmware admits not to protect: predicates of a sentence about it.
    pub fn weaknesses(&self) -> Vec<&'static str> {
        let Self::Events(events) = self else {
            return Vec::new();
        };
        let said = |action: &str| {
            let digest = Sha256Digest::of(action);
            events.iter().any(|event| event.event.digest == digest)
        };
        WEAKNESSES.into_iter().filter(|(action, _)| said(action)).map(|(_, what)| what).collect()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PolicyJudgement {
    Matches,
    Grew,
}

/// How the policies relate; `None` if the change is refused.
pub(super) fn judge_policy(baseline: &Platform, seen: &Platform) -> Option<PolicyJudgement> {
    let (old, new) = match (&baseline.firmware.policy, &seen.firmware.policy) {
        _ if has_same_value(baseline, seen) => return Some(PolicyJudgement::Matches),
        (Policy::Value(old), Policy::Value(new)) if old == new => {
            return Some(PolicyJudgement::Matches);
        }
        (Policy::Events(old), Policy::Events(new)) => (old, new),
        _ => return None,
    };
    let known: Vec<_> = new.iter().filter(|event| !appeared(old, event)).collect();
    if known.len() != old.len() {
        return None;
    }
    let mut judgement = PolicyJudgement::Matches;
    if known.len() < new.len() {
        if !is_secure_boot_on(seen) {
            return None;
        }
        judgement = PolicyJudgement::Grew;
    }
    for (old, new) in old.iter().zip(known) {
        if old.event.digest == new.event.digest {
            continue;
        }
        if !grew(old, new) || !is_secure_boot_on(seen) {
            return None;
        }
        judgement = PolicyJudgement::Grew;
    }
    Some(judgement)
}

/// Whether this is a variable that firmware measures only once it is set, and that was not set before.
pub(super) fn appeared(old: &[PolicyEvent], event: &PolicyEvent) -> bool {
    let name = |event: &PolicyEvent| match event.proven {
        Some(PolicyVariable::Keys { name, .. }) => Some(name),
        _ => None,
    };
    let is_new = |wanted| old.iter().all(|old| name(old) != Some(wanted));
    name(event).is_some_and(|name| name.may_appear() && is_new(name))
}

fn has_same_value(baseline: &Platform, seen: &Platform) -> bool {
    match (baseline.policy_register(), seen.policy_register()) {
        (Some(old), Some(new)) => old.is_same(PcrIndex::SECURE_BOOT, new),
        (old, new) => old == new,
    }
}

/// Whether the variable only gained entries.
pub(super) fn grew(old: &PolicyEvent, new: &PolicyEvent) -> bool {
    match (&old.proven, &new.proven) {
        (
            Some(PolicyVariable::Keys { name: before, entries: had }),
            Some(PolicyVariable::Keys { name: after, entries: has }),
        ) => before == after && before.may_grow() && has.is_superset(had),
        _ => false,
    }
}

pub(super) fn is_secure_boot_on(platform: &Platform) -> bool {
    let Policy::Events(events) = &platform.firmware.policy else {
        return false;
    };
    let mut states = events.iter().filter_map(|event| match event.proven {
        Some(PolicyVariable::SecureBoot { state }) => Some(state),
        _ => None,
    });
    states.next() == Some(SecureBootState::On) && states.all(|s| s == SecureBootState::On)
}
