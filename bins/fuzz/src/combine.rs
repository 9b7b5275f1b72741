//! Fleets in transition, compared with the list of every mix of components.

mod fleet;

use std::collections::BTreeSet;

use tec_core::attest::PinnedPcrs;
use tec_core::digest::Sha256Digest;
use tec_core::image::ExpectedPcrs;
use tec_core::pcr::{PCR_COUNT, PcrIndex, PcrSet, PcrValues};
use tec_tpm::combine::{Catalog, Combined, JointState, Liberty};

use self::fleet::{Fleet, Image};
use crate::Seed;

const REGISTERS: [PcrIndex; 3] = [PcrIndex::BOOT_MANAGER, PcrIndex::SECURE_BOOT, PcrIndex::MOK];
/// Maximum number of machines of a fleet to test for admission.
const MAX_ADMITTED: usize = 16;
/// Names of images; there are no others.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// The values of a fleet, individually and combined, are those of all machines with any components of its
/// images; each such tuple is admitted, and no other; and an image is recognized by its values.
///
/// An input is a byte of options, a table of three shims and three GRUBs, and two bytes for each image.
pub(crate) fn combine(data: &[u8]) {
    let Some((fleet, images)) = Fleet::read(data) else {
        return;
    };
    let expected: Vec<ExpectedPcrs> = images.iter().map(Image::expected).collect();
    let named: Vec<_> = NAMES.into_iter().zip(&expected).collect();
    let combined = fleet.combiner().combine(&named).expect("images whose values fold");
    let machines = fleet.machines(&images);
    let registers: PcrSet = REGISTERS.into_iter().collect();
    let joint = combined.joint(registers).expect("a few tuples");
    let values = |state: JointState| state.values.into_iter().map(|(_, value)| value).collect();
    let joint: Vec<Vec<_>> = joint.into_iter().map(values).collect();
    assert!(joint.iter().eq(&machines), "{joint:?} is not {machines:?}");
    for (place, pcr) in REGISTERS.into_iter().enumerate() {
        let single: BTreeSet<_> = machines.iter().filter_map(|m| m.get(place).copied()).collect();
        let values = combined.values(pcr);
        assert!(values.iter().eq(&single), "PCR {pcr}");
        assert!(values.iter().all(|value| !combined.provenance(pcr, value).is_empty()));
    }
    assert_eq!(combined.undetermined(), []);
    check_admission(&combined, &machines);
    check_catalog(&named);
}

fn check_admission(combined: &Combined, machines: &BTreeSet<Vec<Sha256Digest>>) {
    let pinned = PinnedPcrs::new(REGISTERS.into_iter().collect()).expect("three registers");
    let admitted = |tuple: &[Sha256Digest]| {
        let mut all = [Sha256Digest::ZERO; PCR_COUNT];
        for (pcr, value) in REGISTERS.into_iter().zip(tuple) {
            if let Some(slot) = all.get_mut(pcr.as_usize()) {
                *slot = *value;
            }
        }
        !combined.admit(&PcrValues::new(all), pinned).is_empty()
    };
    let mut before: Option<&Vec<Sha256Digest>> = None;
    for machine in machines.iter().take(MAX_ADMITTED) {
        assert!(admitted(machine));
        // One register of this machine, the others of a different one.
        if let (Some([a, ..]), [_, b, c]) = (before.map(Vec::as_slice), machine.as_slice()) {
            let mixed = vec![*a, *b, *c];
            assert_eq!(admitted(&mixed), machines.contains(&mixed));
        }
        before = Some(machine);
    }
}

fn check_catalog(named: &[(&str, &ExpectedPcrs)]) {
    let catalog = Catalog::new(named).expect("images whose values fold");
    let first = named.first();
    for pcr in first.into_iter().flat_map(|(_, expected)| &expected.pcrs) {
        let found = catalog.value(pcr.id, &pcr.value);
        assert_eq!(found.liberty, Some(Liberty::Image));
        assert!(!found.made.is_empty());
    }
}

pub(crate) fn seeds() -> Vec<Seed> {
    vec![
        Seed::new("none", [0, 0, 1, 2, 0]),
        Seed::new("one", [0, 0, 1, 2, 0, 0, 0]),
        Seed::new("two", [0x1c, 0, 5, 2, 2, 0x00, 0, 0x15, 0]),
        Seed::new("three_separate", [0x1d, 0, 5, 2, 2, 0x00, 0, 0x15, 0, 0x2a, 0]),
        Seed::new("owner_keys", [0x1e, 0, 5, 2, 2, 0x00, 0, 0x15, 1, 0x2a, 2]),
        Seed::new("stored_level", [0x0c, 0, 5, 2, 2, 0x00, 0, 0x15, 0]),
        Seed::new("insecure", [0x1c, 0, 5, 2, 2, 0x00, 4, 0x15, 4]),
        Seed::new("both_states", [0x1d, 0, 5, 2, 2, 0, 0, 0x15, 0, 0, 4, 0x15, 4, 0x2a, 0]),
    ]
}
