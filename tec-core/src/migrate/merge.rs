//! How an incoming unit is merged with an existing one. Pure: anchors read, merge, and write.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::MachineUnit;
use crate::ak::{AkRecord, AkState};
use crate::image::ApprovedImage;
use crate::machine::{LastBinding, Machine, MachineState};
use crate::secret::SecretBytes;

/// Why a unit cannot be adopted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Clash {
    /// The machine has another disk key here.
    DiskKey,
    /// The machine deposited another recovery key under the same number here.
    RecoveryKey,
    /// The machine is bound to another attestation key here.
    BoundKey,
    /// The attestation key belongs to another machine here.
    KeyOfAnother,
    /// The image of this name measures something else here.
    Image,
}

impl fmt::Display for Clash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DiskKey => "the machine has a different disk key at the target",
            Self::RecoveryKey => {
                "the target has a different recovery key of the machine under the same number"
            }
            Self::BoundKey => "the machine is bound to a different attestation key at the target",
            Self::KeyOfAnother => {
                "its attestation key belongs to a different machine at the target"
            }
            Self::Image => "an image of the same name has different measurements at the target",
        })
    }
}

/// Result of merging two units.
#[derive(Debug)]
pub enum Merged<T> {
    /// The existing unit already contains everything.
    Same,
    /// Write this unit, which contains everything that was there.
    Write(T),
    /// Neither may be overwritten.
    Clash(Clash),
}

impl<T> Merged<T> {
    /// Converts the unit to another type.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Merged<U> {
        match self {
            Self::Same => Merged::Same,
            Self::Write(unit) => Merged::Write(f(unit)),
            Self::Clash(clash) => Merged::Clash(clash),
        }
    }
}

/// Merges an incoming machine into the existing one; `other_keys` are local records of the incoming
/// keys, whatever machine they belong to.
///
/// # Security
/// States only move forward: what is quarantined, retired or revoked on either side remains so. A
/// disk key is written if there is none, and never replaced; recovery keys of both sides are kept.
pub fn merge_machine(
    here: Option<&MachineUnit>,
    comes: &MachineUnit,
    other_keys: &[AkRecord],
) -> Merged<MachineUnit> {
    let id = comes.machine.id;
    if other_keys.iter().any(|key| key.machine != id) {
        return Merged::Clash(Clash::KeyOfAnother);
    }
    let Some(here) = here else {
        return Merged::Write(comes.duplicate());
    };
    let secret = match (&here.secret, &comes.secret) {
        (Some(here), Some(comes)) if !here.ct_eq(comes) => return Merged::Clash(Clash::DiskKey),
        (Some(key), _) | (None, Some(key)) => Some(copy_of(key)),
        (None, None) => None,
    };
    let Some(escrows) = merge_escrows(&here.escrows, &comes.escrows) else {
        return Merged::Clash(Clash::RecoveryKey);
    };
    let keys = merge_keys(&here.keys, &comes.keys);
    let bound = |key: &&AkRecord| key.state == AkState::Bound;
    if keys.iter().filter(bound).count() > 1 {
        return Merged::Clash(Clash::BoundKey);
    }
    let mut machine = merge_states(&here.machine, &comes.machine);
    machine.binding = merge_bindings(&keys, here.machine.binding, comes.machine.binding);
    let new_secret = here.secret.is_none() && secret.is_some();
    let new_escrow = escrows.len() > here.escrows.len();
    if machine == here.machine && keys == here.keys && !new_secret && !new_escrow {
        return Merged::Same;
    }
    Merged::Write(MachineUnit::new(machine, keys, secret).with_escrows(escrows))
}

/// The recovery keys of both, unless the same number names two different keys.
fn merge_escrows(
    here: &BTreeMap<u32, SecretBytes>,
    comes: &BTreeMap<u32, SecretBytes>,
) -> Option<BTreeMap<u32, SecretBytes>> {
    let mut merged: BTreeMap<u32, SecretBytes> =
        here.iter().map(|(number, key)| (*number, copy_of(key))).collect();
    for (number, key) in comes {
        let known = merged.entry(*number).or_insert_with(|| copy_of(key));
        if !known.ct_eq(key) {
            return None;
        }
    }
    Some(merged)
}

fn copy_of(secret: &SecretBytes) -> SecretBytes {
    secret.duplicate("the other anchor keeps it")
}

/// When and by whom a machine was registered is informational and decides nothing: the existing
/// values stay.
fn merge_states(here: &Machine, comes: &Machine) -> Machine {
    let rank = |state: MachineState| (state.strictness(), state == MachineState::Active);
    let mut machine = here.clone();
    if rank(comes.state) > rank(here.state) {
        machine.state = comes.state;
    }
    machine
}

/// The last binding is that of the currently bound key. If no key is bound and the two differ, it
/// is unknown which was the last: then no endorsement key counts.
fn merge_bindings(
    keys: &[AkRecord],
    here: Option<LastBinding>,
    comes: Option<LastBinding>,
) -> Option<LastBinding> {
    if here == comes {
        return here;
    }
    let bound = keys.iter().find(|key| key.state == AkState::Bound);
    if let Some(bound) = bound {
        return Some(LastBinding::new(bound.fingerprint(), bound.ek));
    }
    match (here, comes) {
        (Some(here), Some(comes)) if here != comes => Some(LastBinding::new(here.ak, None)),
        (here, comes) => here.or(comes),
    }
}

fn merge_keys(here: &[AkRecord], comes: &[AkRecord]) -> Vec<AkRecord> {
    let rank = |state| match state {
        AkState::Pending => 0,
        AkState::Bound => 1,
        AkState::Revoked => 2,
    };
    let mut keys = here.to_vec();
    for comes in comes {
        match keys.iter_mut().find(|key| key.public == comes.public) {
            Some(key) => {
                if rank(comes.state) > rank(key.state) {
                    key.state = comes.state;
                }
                key.ek = key.ek.or(comes.ek);
            }
            None => keys.push(comes.clone()),
        }
    }
    keys.sort_by_key(AkRecord::fingerprint);
    keys
}

/// Merges an incoming image into the existing one. `adopted` means that the existing one came from
/// the same anchor, and so follows it.
pub fn merge_image(
    here: Option<&ApprovedImage>,
    comes: &ApprovedImage,
    adopted: bool,
) -> Merged<ApprovedImage> {
    let Some(here) = here else {
        return Merged::Write(comes.clone());
    };
    if here == comes {
        return Merged::Same;
    }
    if here.expected != comes.expected && !adopted {
        return Merged::Clash(Clash::Image);
    }
    let mut merged = if adopted { comes.clone() } else { here.clone() };
    if here.expected == comes.expected {
        merged.revoked_at = earlier(here.revoked_at, comes.revoked_at);
        merged.expires_at = earlier(here.expires_at, comes.expires_at);
    }
    if merged == *here {
        return Merged::Same;
    }
    Merged::Write(merged)
}

/// The earlier of both times, or the only one.
fn earlier<T: Ord + Copy>(a: Option<T>, b: Option<T>) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, None) | (None, one) => one,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sample;

    fn unit(machine: u64, keys: &[(u64, AkState)], secret: Option<u64>) -> MachineUnit {
        let record = |(key, state): &(u64, AkState)| {
            let mut record = sample::ak(*key, machine);
            record.state = *state;
            record
        };
        let keys = keys.iter().map(record).collect();
        MachineUnit::new(sample::machine(machine), keys, secret.map(sample::secret))
    }

    fn written(merged: Merged<MachineUnit>) -> MachineUnit {
        match merged {
            Merged::Write(unit) => unit,
            other => panic!("nothing is written: {other:?}"),
        }
    }

    #[test]
    fn what_is_equal_is_left_alone() {
        let one = unit(1, &[(1, AkState::Bound)], Some(1));
        let two = unit(1, &[(1, AkState::Bound)], Some(1));
        assert!(matches!(merge_machine(Some(&one), &two, &two.keys), Merged::Same));
        let image = sample::image(1);
        assert!(matches!(merge_image(Some(&image), &image, false), Merged::Same));
    }

    #[test]
    fn a_disk_key_is_added_and_never_replaced() {
        let (none, one, two) = (unit(1, &[], None), unit(1, &[], Some(1)), unit(1, &[], Some(2)));
        assert!(written(merge_machine(Some(&none), &one, &[])).secret.is_some());
        assert!(matches!(merge_machine(Some(&one), &none, &[]), Merged::Same));
        assert!(matches!(merge_machine(Some(&one), &two, &[]), Merged::Clash(Clash::DiskKey)));
    }

    #[test]
    fn a_revoked_key_stays_revoked_and_makes_room_for_another() {
        let here = unit(1, &[(1, AkState::Revoked)], None);
        let late = unit(1, &[(1, AkState::Bound)], None);
        assert!(matches!(merge_machine(Some(&here), &late, &[]), Merged::Same));
        let here = unit(1, &[(1, AkState::Bound)], None);
        let next = unit(1, &[(1, AkState::Revoked), (2, AkState::Bound)], None);
        let merged = written(merge_machine(Some(&here), &next, &[]));
        assert_eq!(merged.keys.iter().filter(|key| key.state == AkState::Bound).count(), 1);
        let other = unit(1, &[(2, AkState::Bound)], None);
        assert!(matches!(merge_machine(Some(&here), &other, &[]), Merged::Clash(Clash::BoundKey)));
    }

    #[test]
    fn the_last_binding_is_that_of_the_bound_key_and_else_no_endorsement_key_counts() {
        let ek = |number| Some(sample::public_key(number).fingerprint());
        let last = |key: u64, of| Some(LastBinding::new(sample::ak(key, 1).fingerprint(), of));
        let with = |keys: &[(u64, AkState)], binding| {
            let mut unit = unit(1, keys, None);
            unit.machine.binding = binding;
            unit
        };
        let here = with(&[(1, AkState::Revoked)], last(1, ek(8)));
        let next = with(&[(2, AkState::Bound)], last(2, None));
        let merged = written(merge_machine(Some(&here), &next, &[]));
        assert_eq!(merged.machine.binding, last(2, None));
        let other = with(&[(1, AkState::Revoked)], last(1, ek(9)));
        let merged = written(merge_machine(Some(&here), &other, &[]));
        assert_eq!(merged.machine.binding, last(1, None));
        let older = with(&[(1, AkState::Revoked)], None);
        let merged = merge_machine(Some(&here), &older, &[]);
        assert!(matches!(merged, Merged::Same), "what is known stays known");
        let merged = written(merge_machine(Some(&older), &here, &[]));
        assert_eq!(merged.machine.binding, last(1, ek(8)));
    }

    #[test]
    fn a_key_of_another_machine_clashes() {
        let comes = unit(1, &[(1, AkState::Bound)], None);
        let elsewhere = sample::ak(1, 2);
        assert!(matches!(
            merge_machine(None, &comes, &[elsewhere]),
            Merged::Clash(Clash::KeyOfAnother)
        ));
    }

    #[test]
    fn recovery_keys_of_both_sides_are_kept_and_none_is_replaced() {
        let with = |keys: &[(u32, u64)]| {
            let keys = keys.iter().map(|(number, key)| (*number, sample::secret(*key)));
            unit(1, &[], None).with_escrows(keys.collect())
        };
        let here = with(&[(1, 1), (2, 2)]);
        let known = merge_machine(Some(&here), &with(&[(2, 2)]), &[]);
        assert!(matches!(known, Merged::Same));
        let both = written(merge_machine(Some(&here), &with(&[(3, 3)]), &[]));
        assert_eq!(both.escrows.keys().copied().collect::<Vec<_>>(), [1, 2, 3]);
        let other = merge_machine(Some(&here), &with(&[(2, 9)]), &[]);
        assert!(matches!(other, Merged::Clash(Clash::RecoveryKey)));
    }

    #[test]
    fn an_image_that_somebody_else_approved_is_not_replaced() {
        let here = sample::image(1);
        let mut comes = sample::image(2);
        comes.name = here.name.clone();
        assert!(matches!(merge_image(Some(&here), &comes, false), Merged::Clash(Clash::Image)));
        assert!(matches!(merge_image(Some(&here), &comes, true), Merged::Write(_)));
    }

    #[test]
    fn an_image_that_was_revoked_on_either_side_is_revoked() {
        let (live, mut ended) = (sample::image(1), sample::image(1));
        ended.revoked_at = Some(sample::time(5));
        for (here, comes) in [(&live, &ended), (&ended, &live)] {
            match merge_image(Some(here), comes, true) {
                Merged::Write(image) => assert_eq!(image.revoked_at, ended.revoked_at),
                Merged::Same => assert_eq!(here.revoked_at, ended.revoked_at),
                Merged::Clash(clash) => panic!("{clash}"),
            }
        }
    }
}
