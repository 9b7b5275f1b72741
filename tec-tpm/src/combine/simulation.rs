//! A fleet in miniature: machines whose parts are replaced one by one in every order, with boots in
//! between. What they measure must be what the combination lists, no more and no less.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tec_core::digest::Sha256Digest;
use tec_core::image::ExpectedPcr;
use tec_core::image::ExpectedPcrs;
use tec_core::image::ImageEvent;
use tec_core::pcr::PcrIndex;
use tec_core::pcr::PcrSet;

use super::*;

const REGISTERS: [PcrIndex; 3] = [PcrIndex::BOOT_MANAGER, PcrIndex::SECURE_BOOT, PcrIndex::MOK];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shim {
    build: u8,
    level: u8,
    vendor: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Grub {
    build: u8,
    asks_twice: bool,
}

/// What is installed, and the level that the firmware has stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Machine {
    shim: Shim,
    grub: Grub,
    kernel: u8,
    stored: u8,
}

impl Machine {
    /// Boots: the level that is stored afterwards, and what was measured.
    fn boot(mut self) -> (Self, ExpectedPcrs) {
        self.stored = self.stored.max(self.shim.level);
        let measure = |pcr: u8, id: &str, what: String| {
            let pcr = PcrIndex::new(pcr).unwrap();
            ImageEvent::new("E", pcr, Sha256Digest::of(what), id)
        };
        let mut events = vec![
            measure(4, "Pcr4EfiCall", "call".to_owned()),
            measure(4, "Pcr4Separator", "separator".to_owned()),
            measure(4, "Pcr4Shim", format!("{:?}", self.shim)),
            measure(4, "Pcr4Grub", format!("{:?}", self.grub)),
        ];
        for _ in 0..=u8::from(self.grub.asks_twice) {
            events.push(measure(4, "Pcr4Vmlinuz", format!("kernel {}", self.kernel)));
        }
        for variable in ["SecureBoot", "Pk", "Kek", "Db", "Dbx", "Separator"] {
            events.push(measure(7, &format!("Pcr7{variable}"), variable.to_owned()));
        }
        let vendor = format!("vendor {}", self.shim.vendor);
        events.push(measure(7, "Pcr7ShimCert", vendor.clone()));
        events.push(measure(
            7,
            "Pcr7SbatLevel",
            format!("level {}", self.stored),
        ));
        events.push(measure(7, "Pcr7GrubMokListCert", "vendor".to_owned()));
        for list in ["MokList", "MokListX", "MokListTrusted"] {
            events.push(measure(
                14,
                &format!("Pcr14{list}"),
                format!("{list} {vendor}"),
            ));
        }
        let fold = |pcr| ExpectedPcr::from_events(pcr, events.iter().cloned());
        (self, ExpectedPcrs::new(REGISTERS.map(fold).to_vec()))
    }
}

/// Every update order: any part of any image, at any time, with or without a boot before the next.
fn simulate(images: &[Machine], loaders: Loaders) -> BTreeSet<Vec<Sha256Digest>> {
    let mut seen: BTreeSet<Machine> = images.iter().copied().collect();
    let mut left: Vec<Machine> = images.to_vec();
    let mut tuples = BTreeSet::new();
    while let Some(machine) = left.pop() {
        let (booted, measured) = machine.boot();
        tuples.insert(measured.pcrs.iter().map(|pcr| pcr.value).collect());
        let mut next = vec![booted];
        for image in images {
            let mut updated = machine;
            updated.kernel = image.kernel;
            next.push(updated);
            let mut updated = machine;
            updated.shim = image.shim;
            if loaders == Loaders::OneUnit {
                updated.grub = image.grub;
            }
            next.push(updated);
            if loaders == Loaders::Separate {
                let mut updated = machine;
                updated.grub = image.grub;
                next.push(updated);
            }
        }
        left.extend(next.into_iter().filter(|machine| seen.insert(*machine)));
    }
    tuples
}

fn check(images: &[Machine], loaders: Loaders) {
    let expected: Vec<ExpectedPcrs> = images.iter().map(|image| image.boot().1).collect();
    let names: Vec<String> = (0..images.len()).map(|n| format!("image {n}")).collect();
    let named: Vec<_> = names.iter().map(String::as_str).zip(&expected).collect();
    let levels = (0..4_u8).map(|n| (Sha256Digest::of(format!("level {n}")), u64::from(n)));
    let combined = Combiner::new()
        .with_grouping(Grouping::new(loaders, MokLists::FollowShim))
        .with_sbat_levels(SbatLevels::of_digests(levels))
        .combine(&named)
        .unwrap();

    let simulated = simulate(images, loaders);
    let registers: PcrSet = REGISTERS.into_iter().collect();
    let joint = combined.joint_values(registers).unwrap();
    assert_eq!(joint, simulated.iter().cloned().collect::<Vec<_>>());
    for (place, pcr) in REGISTERS.into_iter().enumerate() {
        let single: BTreeSet<_> = simulated.iter().map(|tuple| tuple[place]).collect();
        assert_eq!(combined.values(pcr), single.into_iter().collect::<Vec<_>>());
    }
    for state in combined.joint(registers).unwrap() {
        assert!(!state.made_by.is_empty());
    }
    assert_eq!(combined.undetermined(), []);
}

prop_compose! {
    /// Few builds, so that images share parts.
    fn any_images()(
        shims in prop::collection::vec((0..4_u8, 0..2_u8), 3),
        grubs in prop::collection::vec(any::<bool>(), 3),
        picks in prop::collection::vec((0..3_u8, 0..3_u8, 0..4_u8), 1..5),
    ) -> Vec<Machine> {
        let part = |(shim, grub, kernel): (u8, u8, u8)| {
            let (level, vendor) = shims[usize::from(shim)];
            Machine {
                shim: Shim { build: shim, level, vendor },
                grub: Grub { build: grub, asks_twice: grubs[usize::from(grub)] },
                kernel,
                stored: 0,
            }
        };
        picks.into_iter().map(part).collect()
    }
}

proptest! {
    #[test]
    fn the_combination_is_what_a_fleet_measures_in_every_update_order(images in any_images()) {
        check(&images, Loaders::OneUnit);
    }

    #[test]
    fn so_it_is_when_shim_and_grub_are_updated_apart(images in any_images()) {
        check(&images, Loaders::Separate);
    }
}
