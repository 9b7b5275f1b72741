//! The enumeration: for each register, every sequence of measurements that a mix of parts makes. Common
//! prefixes are extended only once.

use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;

use super::group::{GROUPS, Group, GroupSet, Grouping};
use super::sbat::SbatLevels;
use super::source::{Class, Family, Part, Source};
use super::{CombineError, Combiner, Reason};

/// The alternative of each group that a value needs; [`ANY`] if it does not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Choice([Class; GROUPS]);

/// Any alternative.
const ANY: Class = Class::MAX;

impl Choice {
    pub(super) const FREE: Self = Self([ANY; GROUPS]);

    pub(super) fn get(&self, group: Group) -> Option<Class> {
        let class = self.0.get(group.index()).copied();
        class.filter(|class| *class != ANY)
    }

    pub(super) fn with(mut self, group: Group, class: Class) -> Self {
        if let Some(slot) = self.0.get_mut(group.index()) {
            *slot = class;
        }
        self
    }

    /// Both combined, if they do not contradict each other.
    pub(super) fn joined(&self, other: &Self) -> Option<Self> {
        let mut joined = *self;
        for (slot, more) in joined.0.iter_mut().zip(other.0) {
            match (*slot, more) {
                (_, ANY) => {}
                (ANY, _) => *slot = more,
                (one, two) if one == two => {}
                _ => return None,
            }
        }
        Some(joined)
    }

    /// Only the groups of `set`.
    pub(super) fn within(&self, set: GroupSet) -> Self {
        let chosen = set.iter().filter_map(|g| Some((g, self.get(g)?)));
        chosen.fold(Self::FREE, |choice, (group, class)| choice.with(group, class))
    }

    /// The groups that matter.
    pub(super) fn groups(&self) -> GroupSet {
        let chosen = Group::ALL.into_iter().filter(|g| self.get(*g).is_some());
        chosen.fold(GroupSet::default(), |set, g| set.and(GroupSet::of(g)))
    }

    fn fits(&self, source: &Source, set: GroupSet) -> bool {
        set.iter().all(|g| self.get(g) == Some(source.class(g)))
    }
}

/// The value that a walk computes from the measurements along its way.
pub(super) trait Fold: Clone {
    /// After one more measurement, made `count` times in a row.
    fn after(self, hash: &Sha256Digest, count: u32) -> Self;
}

/// The register's value.
impl Fold for Sha256Digest {
    fn after(self, hash: &Sha256Digest, count: u32) -> Self {
        (0..count).fold(self, |value, _| value.extended(hash))
    }
}

/// A value, and what produces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Leaf<V = Sha256Digest> {
    pub(super) value: V,
    pub(super) choice: Choice,
}

/// The reason why the value of a mix is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Gap {
    pub(super) choice: Choice,
    pub(super) reason: Reason,
}

/// The values that one register can have within a family.
#[derive(Debug)]
pub(super) struct Outcome<V = Sha256Digest> {
    pub(super) pcr: PcrIndex,
    pub(super) leaves: Vec<Leaf<V>>,
    pub(super) gaps: Vec<Gap>,
}

/// Maximum number of values of one register and family, before duplicates are removed. That is a thousand
/// loaders with a thousand kernels; no verifier accepts a list of that length.
pub(super) const MAX_LEAVES: usize = 1 << 20;

/// Enumerates one register, sorted by value; empty if no image of the family states it.
pub(super) fn enumerate(
    family: &Family,
    pcr: PcrIndex,
    rules: &Combiner,
) -> Result<Option<Outcome>, CombineError> {
    let Some(mut outcome) = walk(family, pcr, rules, Choice::FREE, &Sha256Digest::ZERO)? else {
        return Ok(None);
    };
    outcome.leaves.sort_unstable();
    outcome.leaves.dedup();
    outcome.gaps.sort_unstable();
    outcome.gaps.dedup();
    Ok(Some(outcome))
}

/// Walks the states of one register that `within` leaves open, extending from `start`.
pub(super) fn walk<V: Fold>(
    family: &Family,
    pcr: PcrIndex,
    rules: &Combiner,
    within: Choice,
    start: &V,
) -> Result<Option<Outcome<V>>, CombineError> {
    let grouping = rules.grouping;
    let mut known: Vec<&Source> =
        family.sources.iter().filter(|s| s.register(pcr).is_some()).collect();
    if known.is_empty() {
        return Ok(None);
    }
    let Some(leader) = leader(&known, pcr, grouping) else {
        return Ok(None);
    };
    // Images that differ in nothing that this register depends on are walked only once.
    known.sort_by(|a, b| {
        (a.class(leader), a.register(pcr)).cmp(&(b.class(leader), b.register(pcr)))
    });
    let mut walk = Walk {
        family,
        pcr,
        levels: &rules.levels,
        leader,
        shim: grouping.shim(),
        outcome: Outcome { pcr, leaves: Vec::new(), gaps: Vec::new() },
    };
    let mut templates: Vec<Template<'_>> = Vec::new();
    for source in known {
        let template = Template::new(source, leader, source.register(pcr).map_or(&[][..], |p| p));
        if !templates
            .iter()
            .rev()
            .take_while(|t| t.class == template.class)
            .any(|t| t.same(&template))
        {
            templates.push(template);
        }
    }
    for template in &templates {
        let of_template = Choice::FREE.with(leader, template.class);
        if let Some(choice) = within.joined(&of_template) {
            walk.step(template, 0, choice, start.clone())?;
        }
    }
    Ok(Some(walk.outcome))
}

/// The group that decides which measurements are made, and how many times: GRUB or the unit that
/// contains it, otherwise shim, otherwise the UKI, otherwise whatever there is.
fn leader(known: &[&Source], pcr: PcrIndex, grouping: Grouping) -> Option<Group> {
    let parts = known.iter().filter_map(|s| s.register(pcr)).flatten();
    let all = parts.fold(GroupSet::default(), |set, part| set.and(part.groups));
    // Which level is measured depends on shim.
    let all =
        if all.contains(Group::SbatLevel) { all.and(GroupSet::of(grouping.shim())) } else { all };
    let ranked = [
        Group::Grub,
        Group::Bootloader,
        Group::Shim,
        Group::Uki,
        Group::Mok,
        Group::SecureBoot,
        Group::Kernel,
        Group::SbatLevel,
        Group::Firmware,
    ];
    ranked.into_iter().find(|group| all.contains(*group)).or(Some(Group::Firmware))
}

/// An image that determines the order of the measurements.
struct Template<'a> {
    source: &'a Source,
    class: Class,
    parts: &'a [Part],
}

impl<'a> Template<'a> {
    fn new(source: &'a Source, leader: Group, parts: &'a [Part]) -> Self {
        Self { source, class: source.class(leader), parts }
    }

    /// Whether both lead to the same walk: the same parts the same number of times in the same
    /// order, and the same digests where several groups decide together.
    fn same(&self, other: &Self) -> bool {
        let alike = |(a, b): (&Part, &Part)| {
            (a.key, a.groups, a.count) == (b.key, b.groups, b.count)
                && (a.groups.single().is_some() || a.hash == b.hash)
        };
        let together = |t: &Self| {
            let sets = t.parts.iter().filter(|p| p.groups.single().is_none());
            sets.fold(GroupSet::default(), |set, p| set.and(p.groups))
        };
        self.parts.len() == other.parts.len()
            && self.parts.iter().zip(other.parts).all(alike)
            && together(self).iter().all(|g| self.source.class(g) == other.source.class(g))
    }

    /// The parts of one group or set, with their positions.
    fn of(&self, set: GroupSet) -> impl Iterator<Item = (usize, &'a Part)> {
        let parts = self.parts.iter().enumerate();
        parts.filter(move |(_, part)| part.groups == set)
    }

    /// Number of parts of the same set before the one at `at`.
    fn rank(&self, at: usize, set: GroupSet) -> usize {
        self.of(set).take_while(|(place, _)| *place < at).count()
    }

    /// The number of parts of a set, if they are consecutive.
    fn block(&self, set: GroupSet) -> Option<usize> {
        let first = self.of(set).next()?.0;
        let count = self.of(set).count();
        let last = self.of(set).last()?.0;
        (last - first + 1 == count).then_some(count)
    }
}

struct Walk<'a, V> {
    family: &'a Family,
    pcr: PcrIndex,
    levels: &'a SbatLevels,
    leader: Group,
    shim: Group,
    outcome: Outcome<V>,
}

impl<'a, V: Fold> Walk<'a, V> {
    /// Extends with the parts of a template from `at` on, and branches if a group has not been chosen yet.
    fn step(
        &mut self,
        template: &Template<'a>,
        mut at: usize,
        choice: Choice,
        mut value: V,
    ) -> Result<(), CombineError> {
        while let Some(part) = template.parts.get(at) {
            if let Some(group) = self.undecided(part, &choice) {
                return self.branch(template, at, choice, &value, group);
            }
            let taken = if part.groups == GroupSet::of(Group::SbatLevel) {
                self.level(&choice).map(Taken::One)
            } else if choice.fits(template.source, part.groups) {
                Ok(Taken::One(part.hash))
            } else if part.groups.single().is_some() {
                self.replaced(template, at, part, &choice)
            } else {
                self.together(template, at, part, &choice).map(Taken::One)
            };
            match taken {
                Ok(Taken::One(hash)) => {
                    value = value.after(&hash, part.count);
                    at += 1;
                }
                Ok(Taken::Block(parts, places)) => {
                    let of_set = parts.iter().filter(|p| p.groups == part.groups);
                    value = of_set.fold(value, |v, p| v.after(&p.hash, p.count));
                    at += places;
                }
                Err(None) => return Ok(()),
                Err(Some(reason)) => {
                    self.check_room()?;
                    self.outcome.gaps.push(Gap { choice, reason });
                    return Ok(());
                }
            }
        }
        self.check_room()?;
        self.outcome.leaves.push(Leaf { value, choice });
        Ok(())
    }

    fn check_room(&self) -> Result<(), CombineError> {
        if self.outcome.leaves.len() + self.outcome.gaps.len() < MAX_LEAVES {
            return Ok(());
        }
        Err(CombineError::TooManyValues { pcr: self.pcr, limit: MAX_LEAVES })
    }

    /// A group of the part that has not been chosen yet. The level waits for shim.
    fn undecided(&self, part: &Part, choice: &Choice) -> Option<Group> {
        let set = if part.groups.contains(Group::SbatLevel) {
            GroupSet::of(self.shim).and(part.groups)
        } else {
            part.groups
        };
        set.iter().find(|group| choice.get(*group).is_none())
    }

    fn branch(
        &mut self,
        template: &Template<'a>,
        at: usize,
        choice: Choice,
        value: &V,
        group: Group,
    ) -> Result<(), CombineError> {
        let mut alternatives = self.family.alternatives(group);
        if group == Group::SbatLevel && self.family.sbat_rises {
            let levels = self.family.sbat_levels.len();
            alternatives = Class::try_from(levels).unwrap_or(Class::MAX);
        }
        for class in 0..alternatives {
            self.step(template, at, choice.with(group, class), value.clone())?;
        }
        Ok(())
    }

    /// The level of another image: shim measures it if it is newer than its own. `Err(None)` if the
    /// state cannot occur.
    fn level(&self, choice: &Choice) -> Result<Sha256Digest, Option<Reason>> {
        let class = choice.get(Group::SbatLevel).unwrap_or_default();
        let shim = choice.get(self.shim).unwrap_or_default();
        let level = self.family.sbat_levels.get(usize::from(class)).ok_or(None)?;
        let mut newer = false;
        for source in self.family.of_class(self.shim, shim) {
            let own = source.class(Group::SbatLevel);
            if own == class {
                return Ok(*level);
            }
            let own = self.family.sbat_levels.get(usize::from(own)).ok_or(None)?;
            if !self.family.sbat_rises {
                continue;
            }
            match self.levels.replaces(level, own) {
                Some(replaces) => newer |= replaces,
                None => return Err(Some(Reason::LevelOrder)),
            }
        }
        if newer { Ok(*level) } else { Err(None) }
    }

    /// A part of one group, in the chosen alternative.
    fn replaced(
        &self,
        template: &Template<'a>,
        at: usize,
        part: &Part,
        choice: &Choice,
    ) -> Result<Taken<'a>, Option<Reason>> {
        let set = part.groups;
        let group = set.single().unwrap_or(Group::Firmware);
        let class = choice.get(group).unwrap_or_default();
        let mut donors = self.family.of_class(group, class);
        let donor = donors.find_map(|source| source.register(self.pcr));
        let donor = donor.ok_or(Some(Reason::RegisterUnknown))?;
        let theirs = || donor.iter().filter(|p| p.groups == set);
        if group.shapes_itself()
            && let Some(places) = template.block(set)
            && template.rank(at, set) == 0
        {
            return Ok(Taken::Block(donor, places));
        }
        let ours = template.of(set).map(|(_, p)| p.key);
        if theirs().map(|p| p.key).eq(ours) {
            let same = theirs().nth(template.rank(at, set));
            return same.map(|p| Taken::One(p.hash)).ok_or(None);
        }
        Err(Some(Reason::NotMeasured))
    }

    /// A part that several groups decide together, in a mix other than the template's: used if all
    /// images that share a part of the mix agree on it.
    fn together(
        &self,
        template: &Template<'a>,
        at: usize,
        part: &Part,
        choice: &Choice,
    ) -> Result<Sha256Digest, Option<Reason>> {
        let set = part.groups;
        let known = |group, class| {
            let images = self.family.of_class(group, class);
            images.filter_map(|source| Some((source, source.register(self.pcr)?)))
        };
        let leader = choice.get(self.leader).unwrap_or_default();
        if set.contains(self.leader)
            && known(self.leader, leader).any(|(source, _)| choice.fits(source, set))
        {
            // That image is a template of its own.
            return Err(None);
        }
        let rank = template.rank(at, set);
        let keys = || template.of(set).map(|(_, p)| p.key);
        let varying = set.iter().filter(|group| self.family.alternatives(*group) > 1);
        let mut found: Option<Sha256Digest> = None;
        for (group, class) in varying.filter_map(|group| Some((group, choice.get(group)?))) {
            for (_, parts) in known(group, class) {
                let theirs = || parts.iter().filter(|p| p.groups == set);
                let hash = theirs().nth(rank).map(|p| p.hash);
                let agrees = hash.is_some() && (found.is_none() || found == hash);
                if !agrees || !theirs().map(|p| p.key).eq(keys()) {
                    return Err(Some(Reason::Entangled));
                }
                found = hash;
            }
        }
        found.ok_or(Some(Reason::Entangled))
    }
}

enum Taken<'a> {
    /// Replaces the part.
    One(Sha256Digest),
    /// All parts of the set, replacing this many.
    Block(&'a [Part], usize),
}
