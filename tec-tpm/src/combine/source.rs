//! Images split into parts: for each register the parts of its measurement, for each group the alternatives.

use std::collections::BTreeMap;

use tec_core::digest::Sha256Digest;
use tec_core::image::{ExpectedPcr, ExpectedPcrs};
use tec_core::pcr::{PCR_COUNT, PcrIndex};

use super::CombineError;
use super::group::{GROUPS, Group, GroupSet, Grouping, only_uki, within_uki};
use super::sbat::SbatLevels;

/// Used instead of an ID if an image does not state a register.
const UNKNOWN: u16 = u16::MAX;

/// Number of an alternative within its group.
pub(super) type Class = u16;

/// Equal consecutive measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Part {
    /// Number of the ID.
    pub(super) key: u16,
    pub(super) groups: GroupSet,
    pub(super) hash: Sha256Digest,
    pub(super) count: u32,
}

/// The parts of one register, in order.
pub(super) type Parts = Vec<Part>;

/// One image.
#[derive(Debug)]
pub(super) struct Source {
    /// Per register; `None` if the image does not state it.
    pub(super) registers: Vec<Option<Parts>>,
    /// Per group, the alternative that it has.
    pub(super) classes: [Class; GROUPS],
}

impl Source {
    pub(super) fn register(&self, pcr: PcrIndex) -> Option<&Parts> {
        self.registers.get(pcr.as_usize())?.as_ref()
    }

    pub(super) fn class(&self, group: Group) -> Class {
        self.classes.get(group.index()).copied().unwrap_or_default()
    }
}

/// State of Secure Boot, as far as the measurements reveal it. The chain measures different things
/// in the two states, so they are never mixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Enforcement {
    On,
    Off,
    Unknown,
}

/// Images between which machines can move part by part.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) sources: Vec<Source>,
    /// For each source, its number among the given images.
    pub(super) numbers: Vec<u16>,
    /// For each group and alternative, the positions of the images that have it. There is one
    /// alternative even if nothing is measured.
    members: [Vec<Vec<usize>>; GROUPS],
    /// The levels in the order of their classes, followed by those that are only stored.
    pub(super) sbat_levels: Vec<Sha256Digest>,
    /// Whether stored levels count; they do not while Secure Boot is off.
    pub(super) sbat_rises: bool,
}

/// SHA-256 of what firmware measures for the variable `SecureBoot` when it is 0
/// (`UEFI_VARIABLE_DATA`, PC Client Platform Firmware Profile 1.06, 10.2.6; measured by EDK II).
const SECURE_BOOT_OFF: [u8; 32] = [
    0x11, 0x5a, 0xa8, 0x27, 0xdb, 0xcc, 0xfb, 0x44, 0xd2, 0x16, 0xad, 0x9e, 0xcf, 0xda, 0x56, 0xbd,
    0xea, 0x62, 0x0b, 0x86, 0x0a, 0x94, 0xbe, 0xd5, 0xb7, 0xa2, 0x7b, 0xba, 0x1c, 0x4d, 0x02, 0xd8,
];

/// Splits images into parts, and sorts them into families.
pub(super) fn families(
    images: &[(&str, &ExpectedPcrs)],
    grouping: Grouping,
    levels: &SbatLevels,
) -> Result<Vec<Family>, CombineError> {
    let mut ids = Ids::new(grouping);
    let mut taken = Vec::with_capacity(images.len());
    for (name, expected) in images {
        taken.push(Taken::apart(name, expected, &mut ids)?);
    }
    let mut families = Vec::new();
    for chain in [Chain::Loader, Chain::LoaderAndUki, Chain::Uki, Chain::None] {
        let of_chain = || taken.iter().enumerate().filter(move |(_, t)| t.chain == chain);
        let has = |state| of_chain().any(|(_, t)| t.enforcement == state);
        let mut states = Vec::new();
        states.extend([Enforcement::On, Enforcement::Off].into_iter().filter(|s| has(*s)));
        if states.is_empty() && has(Enforcement::Unknown) {
            states.push(Enforcement::Unknown);
        }
        for state in states {
            let members = of_chain()
                .filter(|(_, t)| t.enforcement == state || t.enforcement == Enforcement::Unknown);
            families.push(Family::of(members, levels, state));
        }
    }
    Ok(families)
}

/// The program that the firmware starts. Machines do not mix parts of different types of chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chain {
    Loader,
    LoaderAndUki,
    Uki,
    None,
}

/// Numbers for IDs, with their inputs.
struct Ids<'a> {
    numbers: BTreeMap<&'a str, u16>,
    groups: Vec<GroupSet>,
    grouping: Grouping,
    secure_boot: Option<u16>,
}

impl<'a> Ids<'a> {
    fn new(grouping: Grouping) -> Self {
        Self { numbers: BTreeMap::new(), groups: Vec::new(), grouping, secure_boot: None }
    }

    fn number(&mut self, id: &'a str) -> Result<(u16, GroupSet), CombineError> {
        if let Some(number) = self.numbers.get(id) {
            let groups = self.groups.get(usize::from(*number)).copied();
            return Ok((*number, groups.unwrap_or_default()));
        }
        // The last number stands for a register that an image does not state.
        let number = u16::try_from(self.groups.len())
            .ok()
            .filter(|number| *number < UNKNOWN)
            .ok_or(CombineError::TooManyComponents)?;
        let groups = self.grouping.of_id(id);
        self.numbers.insert(id, number);
        self.groups.push(groups);
        if id == "Pcr7SecureBoot" {
            self.secure_boot = Some(number);
        }
        Ok((number, groups))
    }
}

/// An image split into parts, before it is compared with others.
struct Taken {
    registers: Vec<Option<Parts>>,
    chain: Chain,
    enforcement: Enforcement,
}

impl Taken {
    fn apart<'a>(
        name: &str,
        expected: &'a ExpectedPcrs,
        ids: &mut Ids<'a>,
    ) -> Result<Self, CombineError> {
        let mut registers = vec![None; PCR_COUNT];
        let mut seen = GroupSet::default();
        for pcr in &expected.pcrs {
            let refuse = || CombineError::Inconsistent { image: name.to_owned(), pcr: pcr.id };
            if !pcr.is_consistent() {
                return Err(refuse());
            }
            let parts = parts(pcr, ids)?;
            for part in &parts {
                seen = seen.and(single_only(part.groups));
            }
            let slot = registers.get_mut(pcr.id.as_usize()).ok_or_else(refuse)?;
            if slot.replace(parts).is_some() {
                return Err(CombineError::RepeatedRegister { image: name.to_owned(), pcr: pcr.id });
            }
        }
        let loader = [Group::Bootloader, Group::Shim, Group::Grub]
            .into_iter()
            .any(|group| seen.contains(group));
        let chain = match (loader, seen.contains(Group::Uki)) {
            (true, false) => Chain::Loader,
            (true, true) => Chain::LoaderAndUki,
            (false, true) => Chain::Uki,
            (false, false) => Chain::None,
        };
        let enforcement = enforcement(&registers, ids.secure_boot);
        Ok(Self { registers, chain, enforcement })
    }
}

/// The group that a set consists of, as a set; empty for sets of several groups.
fn single_only(set: GroupSet) -> GroupSet {
    set.single().map(GroupSet::of).unwrap_or_default()
}

fn parts<'a>(pcr: &'a ExpectedPcr, ids: &mut Ids<'a>) -> Result<Parts, CombineError> {
    let mut parts: Parts = Vec::with_capacity(pcr.events.len());
    for event in &pcr.events {
        let (key, groups) = ids.number(&event.id)?;
        match parts.last_mut() {
            Some(last) if last.key == key && last.hash == event.hash => last.count += 1,
            _ => parts.push(Part { key, groups, hash: event.hash, count: 1 }),
        }
    }
    Ok(parts)
}

fn enforcement(registers: &[Option<Parts>], secure_boot: Option<u16>) -> Enforcement {
    let parts = registers.get(PcrIndex::SECURE_BOOT.as_usize());
    let part = parts
        .and_then(Option::as_ref)
        .and_then(|parts| parts.iter().find(|part| Some(part.key) == secure_boot));
    match part {
        Some(part) if *part.hash.as_bytes() == SECURE_BOOT_OFF => Enforcement::Off,
        Some(_) => Enforcement::On,
        None => Enforcement::Unknown,
    }
}

impl Family {
    fn of<'t>(
        members: impl Iterator<Item = (usize, &'t Taken)>,
        levels: &SbatLevels,
        state: Enforcement,
    ) -> Self {
        let mut numbers = Vec::new();
        let mut sources = Vec::new();
        for (number, taken) in members {
            numbers.push(u16::try_from(number).unwrap_or(u16::MAX));
            let mut registers = taken.registers.clone();
            if matches!(taken.chain, Chain::Uki | Chain::LoaderAndUki) {
                let all = registers.iter_mut().flatten().flatten();
                let within = match taken.chain {
                    Chain::Uki => only_uki,
                    _ => within_uki,
                };
                all.for_each(|part| part.groups = within(part.groups));
            }
            sources.push(Source { registers, classes: [0; GROUPS] });
        }
        let sbat_rises = state != Enforcement::Off;
        let mut family = Self {
            sources,
            numbers,
            members: Default::default(),
            sbat_levels: Vec::new(),
            sbat_rises,
        };
        for group in Group::ALL {
            family.classify(group);
        }
        family.collect_levels(levels);
        family
    }

    /// Numbers the alternatives of a group: images that measure the same for it share one. The
    /// number of repetitions is not part of it.
    ///
    /// What several groups measure together belongs to the kernel here, except authorities: otherwise the command
    /// line of one image (PCR 8) would go with the files of another (PCR 9) if their programs are the same.
    fn classify(&mut self, group: Group) {
        let set = GroupSet::of(group);
        let is_own = |pcr: usize, part: &Part| {
            let is_shared = part.groups.count() > 1 && pcr != PcrIndex::SECURE_BOOT.as_usize();
            part.groups == set || group == Group::Kernel && is_shared
        };
        let measured_in: Vec<bool> = (0..PCR_COUNT)
            .map(|pcr| {
                let parts = self.sources.iter().filter_map(|s| s.registers.get(pcr)?.as_ref());
                parts.flatten().any(|part| is_own(pcr, part))
            })
            .collect();
        let mut known: BTreeMap<Vec<(usize, u16, Sha256Digest)>, Class> = BTreeMap::new();
        let mut members = Vec::new();
        for (place, source) in self.sources.iter_mut().enumerate() {
            let mut content = Vec::new();
            for (pcr, parts) in source.registers.iter().enumerate() {
                if !measured_in.get(pcr).is_some_and(|measured| *measured) {
                    continue;
                }
                // A register that the image does not state differs from one without measurements.
                let Some(parts) = parts else {
                    content.push((pcr, UNKNOWN, Sha256Digest::ZERO));
                    continue;
                };
                let own = parts.iter().filter(|part| is_own(pcr, part));
                content.extend(own.map(|part| (pcr, part.key, part.hash)));
            }
            let next = Class::try_from(known.len()).unwrap_or(Class::MAX);
            let class = *known.entry(content).or_insert(next);
            if let Some(slot) = source.classes.get_mut(group.index()) {
                *slot = class;
            }
            if class == next {
                members.push(Vec::new());
            }
            if let Some(same) = members.get_mut(usize::from(class)) {
                same.push(place);
            }
        }
        if let Some(slot) = self.members.get_mut(group.index()) {
            *slot = members;
        }
    }

    /// The digest of each class of levels, followed by those that machines have stored in addition.
    fn collect_levels(&mut self, levels: &SbatLevels) {
        let set = GroupSet::of(Group::SbatLevel);
        let mut digests = BTreeMap::new();
        for source in &self.sources {
            let parts = source.register(PcrIndex::SECURE_BOOT);
            let level = parts.and_then(|parts| parts.iter().find(|part| part.groups == set));
            if let Some(level) = level {
                digests.insert(source.class(Group::SbatLevel), level.hash);
            }
        }
        let known: Vec<Sha256Digest> = digests.values().copied().collect();
        if known.len() != usize::from(self.alternatives(Group::SbatLevel)) {
            // Some image measures none, so classes are not positions in the list; nothing rises.
            self.sbat_rises = false;
            return;
        }
        let more = levels.stored().iter().filter(|level| !known.contains(level));
        self.sbat_levels = known.iter().chain(more).copied().collect();
    }

    pub(super) fn alternatives(&self, group: Group) -> Class {
        let members = self.members.get(group.index());
        Class::try_from(members.map_or(1, Vec::len)).unwrap_or(Class::MAX)
    }

    /// Whether a register depends on a group.
    pub(super) fn measures(&self, pcr: PcrIndex, group: Group) -> bool {
        let parts = self.sources.iter().filter_map(|s| s.register(pcr));
        parts.flatten().any(|part| part.groups.contains(group))
    }

    /// Images with this alternative.
    pub(super) fn of_class(&self, group: Group, class: Class) -> impl Iterator<Item = &Source> {
        let members = self.members.get(group.index());
        let places = members.and_then(|members| members.get(usize::from(class)));
        let places = places.into_iter().flatten();
        places.filter_map(|place| self.sources.get(*place))
    }
}
