//! Whether a boot matches a baseline.

use std::collections::BTreeMap;

use super::change::{ChangeEffect, PlatformChange, changes};
use super::policy::{PolicyJudgement, judge_policy};
use super::{Firmware, ImageBoot, Platform};
use crate::digest::Sha256Digest;

/// How a boot relates to the baseline of its machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It matches; the baseline stays.
    Matches,
    /// Entries were added to KEK, db, dbx, dbt or dbr; the boot becomes the baseline, so that their removal is
    /// refused from
    /// now on.
    Updated,
    /// It differs in what is enforced. Holds the changes, without those that are only recorded.
    Refused(Vec<PlatformChange>),
}

/// Compares what a boot showed with the baseline of its machine.
///
/// PCR 0 and 2 must have the same values, and PCR 4 the same programs of the firmware. PCR 7 must have the
/// same value, or be explained by the logs of both boots, event by event:
/// - SecureBoot, PK and everything else in the policy are the same, in the same order;
/// - entries may have been added to KEK, db, dbx, dbt and dbr if Secure Boot is on, and dbt and dbr may have
///   appeared: the firmware took the update because PK, which is the same, or a key in KEK signed it (UEFI 2.10,
///   8.2.2 and 32.5);
/// - the authorities are not compared: they follow from the programs that were booted, which PCR 4
///   pins, and from db.
///
/// What the booted image leaves open must have the values of its first boot, if there was one.
///
/// Pure: equal arguments give equal results.
///
/// # Security
/// The removal of an entry is refused: someone may be restoring an old dbx. A log that is absent or does not
/// replay explains nothing.
pub fn judge(baseline: &Platform, seen: &Platform) -> Judgement {
    let has_same_code = baseline.firmware.code.keys().eq(seen.firmware.code.keys())
        && baseline.firmware.code.iter().all(|(pcr, old)| {
            seen.firmware.code.get(pcr).is_some_and(|new| old.is_same(*pcr, new))
        })
        && programs(baseline).eq(programs(seen));
    let is_held = |boot: &ImageBoot| {
        baseline.first_of(boot).is_none_or(|first| first.differing(boot).next().is_none())
    };
    let policy = judge_policy(baseline, seen);
    match (has_same_code && seen.boots.iter().all(is_held), policy) {
        (true, Some(PolicyJudgement::Matches)) => Judgement::Matches,
        (true, Some(PolicyJudgement::Grew)) => Judgement::Updated,
        _ => {
            let mut changes = changes(baseline, seen);
            changes.retain(|change| change.effect == ChangeEffect::Refused);
            Judgement::Refused(changes)
        }
    }
}

/// Like [`judge`], but a boot that shows one of the `approved` firmwares, or a self-explaining
/// update of one, moves the baseline.
pub fn judge_approved(baseline: &Platform, approved: &[Firmware], seen: &Platform) -> Judgement {
    let judgement = judge(baseline, seen);
    let fits = |firmware: &Firmware| {
        // Without a value of PCR 7: the authorities were not approved.
        let (firmware, boots) = (firmware.clone(), baseline.boots.clone());
        let firmware = Platform { firmware, recorded: BTreeMap::new(), boots };
        !matches!(judge(&firmware, seen), Judgement::Refused(_))
    };
    match judgement {
        Judgement::Refused(_) if approved.iter().any(fits) => Judgement::Updated,
        judgement => judgement,
    }
}

fn programs(platform: &Platform) -> impl Iterator<Item = Sha256Digest> {
    platform.firmware.programs.iter().map(|program| program.digest)
}
