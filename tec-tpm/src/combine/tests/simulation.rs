//! A miniature fleet: machines whose parts are replaced one by one in every order, with boots in
//! between. The combination must list exactly what they measure.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tec_core::attest::PinnedPcrs;
use tec_core::boot::{BootState, BootStates as _, LiveImages};
use tec_core::digest::Sha256Digest;
use tec_core::image::{ApprovedImage, ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::pcr::{PCR_COUNT, PcrIndex, PcrSet, PcrValues};
use tec_core::time::Timestamp;

use super::super::*;

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

/// The installed parts, and the level stored by the firmware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Machine {
    shim: Shim,
    grub: Grub,
    kernel: u8,
    stored: u8,
}

impl Machine {
    /// Boots; returns the machine with the level stored afterwards, and what was measured.
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
        events.push(measure(7, "Pcr7SbatLevel", format!("level {}", self.stored)));
        events.push(measure(7, "Pcr7GrubMokListCert", "vendor".to_owned()));
        for list in ["MokList", "MokListX", "MokListTrusted"] {
            events.push(measure(14, &format!("Pcr14{list}"), format!("{list} {vendor}")));
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
    let joint = combined.joint(registers).unwrap();
    let values = |s: &JointState| s.values.iter().map(|(_, value)| *value).collect::<Vec<_>>();
    let tuples: Vec<_> = joint.iter().map(values).collect();
    assert_eq!(tuples, simulated.iter().cloned().collect::<Vec<_>>());
    for (place, pcr) in REGISTERS.into_iter().enumerate() {
        let single: BTreeSet<_> = simulated.iter().map(|tuple| tuple[place]).collect();
        assert_eq!(combined.values(pcr), single.into_iter().collect::<Vec<_>>());
    }
    assert!(joint.iter().all(|state| !state.made_by.is_empty()));
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

/// What happens to a registry of images.
#[derive(Clone, Copy, Debug)]
enum Change {
    Approve { image: usize, for_seconds: Option<i64> },
    Revoke { image: usize },
    Wait { seconds: i64 },
}

fn any_change() -> impl Strategy<Value = Change> {
    prop_oneof![
        3 => (0..4_usize, prop::option::of(1..4_i64))
            .prop_map(|(image, for_seconds)| Change::Approve { image, for_seconds }),
        2 => (0..4_usize).prop_map(|image| Change::Revoke { image }),
        2 => (1..3_i64).prop_map(|seconds| Change::Wait { seconds }),
    ]
}

/// A miniature registry, with the policy that is consulted all the time.
struct Registry {
    machines: Vec<Machine>,
    states: MixedStates,
    images: BTreeMap<usize, ApprovedImage>,
    now: i64,
    /// Every tuple that any set of approvals ever allowed, for all registers or any two of them.
    seen: BTreeSet<Vec<Sha256Digest>>,
}

impl Registry {
    fn new(machines: Vec<Machine>) -> Self {
        let levels = (0..4_u8).map(|n| (Sha256Digest::of(format!("level {n}")), u64::from(n)));
        let levels = SbatLevels::of_digests(levels);
        let simulated = simulate(&machines, Loaders::OneUnit);
        let mut seen: BTreeSet<_> = simulated.iter().cloned().collect();
        // Pairs that may not occur: registers of one state together with those of another.
        for (one, other) in simulated.iter().zip(simulated.iter().rev()) {
            seen.insert(vec![one[0], other[1], one[2]]);
            seen.insert(vec![one[0], one[1], other[2]]);
        }
        Self {
            machines,
            states: MixedStates::new(Combiner::new().with_sbat_levels(levels)),
            images: BTreeMap::new(),
            now: 0,
            seen,
        }
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Approve { image, for_seconds } if image < self.machines.len() => {
                let name = format!("image-{image}").parse().unwrap();
                let expected = self.machines[image].boot().1;
                let mut approved = ApprovedImage::new(name, "", expected, self.time());
                let end = for_seconds.map(|seconds| self.time().plus_seconds(seconds));
                approved.expires_at = end;
                self.images.insert(image, approved);
            }
            Change::Approve { .. } => {}
            Change::Revoke { image } => {
                let now = self.time();
                if let Some(image) = self.images.get_mut(&image) {
                    image.revoked_at = Some(now);
                }
            }
            Change::Wait { seconds } => self.now += seconds,
        }
    }

    fn time(&self) -> Timestamp {
        Timestamp::from_unix_seconds(self.now)
    }

    /// Checks that the admitted values are those measured by machines that have only ever had live images.
    fn check(&self) {
        let is_live = |number: &usize| {
            let image = self.images.get(number);
            image.is_some_and(|image| image.is_live(self.time()))
        };
        let numbers = (0..self.machines.len()).filter(is_live);
        let live: Vec<_> = numbers.map(|number| self.machines[number]).collect();
        let possible = simulate(&live, Loaders::OneUnit);
        let registry: Vec<_> = self.images.values().cloned().collect();
        let live = LiveImages::at(&registry, self.time());
        let pinned = PinnedPcrs::new(REGISTERS.into_iter().collect()).unwrap();
        for tuple in &self.seen {
            let mut quoted = [Sha256Digest::ZERO; PCR_COUNT];
            for (pcr, value) in REGISTERS.into_iter().zip(tuple) {
                quoted[pcr.as_usize()] = *value;
            }
            let admitted = self.states.admit(&live, &PcrValues::new(quoted), pinned);
            assert_eq!(!admitted.is_empty(), possible.contains(tuple));
            for image in admitted.iter().flat_map(BootState::images) {
                assert!(live.iter().any(|other| other.name == *image), "{image}");
            }
        }
        for (place, pcr) in REGISTERS.into_iter().enumerate() {
            let values: BTreeSet<_> = possible.iter().map(|tuple| tuple[place]).collect();
            let listed = self.states.values(&live, pcr);
            assert_eq!(listed, values.into_iter().collect::<Vec<_>>());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_admitted_follows_every_approval_revocation_and_expiry(
        machines in any_images(),
        changes in prop::collection::vec(any_change(), 1..12),
    ) {
        let mut registry = Registry::new(machines);
        for change in changes {
            registry.change(change);
            registry.check();
        }
    }
}
