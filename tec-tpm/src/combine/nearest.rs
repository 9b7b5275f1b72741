//! The state closest to a boot, with which the explanation of a refusal compares the boot.

use std::collections::BTreeSet;

use tec_core::attest::{PinnedPcrs, VerifiedEvidence};
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;

use super::Combined;
use super::combined::Enumerated;
use super::source::Family;
use super::walk::{Choice, Fold, walk};

/// Maximum number of pairs of states of two registers that are examined; beyond that, the nearest
/// so far is returned.
const MAX_STEPS: u32 = 1 << 16;

/// A state, and the digests with which it extends the pinned registers.
#[derive(Debug)]
pub(super) struct Nearest<'a> {
    pub(super) family: &'a Family,
    pub(super) choice: Choice,
    pub(super) measured: Vec<(PcrIndex, Vec<Sha256Digest>)>,
}

impl Combined {
    /// The state with the fewest measurements that only it or only the boot has. A register without
    /// events counts as one measurement if its value differs.
    pub(super) fn nearest(
        &self,
        evidence: &VerifiedEvidence,
        pinned: PinnedPcrs,
    ) -> Option<Nearest<'_>> {
        let mut best: Option<(u32, &Enumerated, Choice)> = None;
        for enumerated in &self.families {
            let distances = pinned.iter().map(|pcr| self.distances(enumerated, evidence, pcr));
            let Some((cost, choice)) = Search::of(&distances.collect::<Vec<_>>()) else {
                continue;
            };
            if best.is_none_or(|(known, ..)| cost < known) {
                best = Some((cost, enumerated, choice));
            }
        }
        let (_, enumerated, choice) = best?;
        let trace = |pcr| Some((pcr, self.trace(&enumerated.family, choice, evidence, pcr)?));
        Some(Nearest {
            family: &enumerated.family,
            choice,
            measured: pinned.iter().filter_map(trace).collect(),
        })
    }

    /// How far each state of a register is from the boot, nearest first; never empty.
    fn distances(
        &self,
        enumerated: &Enumerated,
        evidence: &VerifiedEvidence,
        pcr: PcrIndex,
    ) -> Vec<(u32, Choice)> {
        let log = Logged::of(evidence, pcr);
        let mut distances: Vec<(u32, Choice)> = if let Some(log) = &log {
            let start = Distance::from(log);
            // What was enumerated before can be walked again.
            let walked = walk(&enumerated.family, pcr, &self.rules, Choice::FREE, &start);
            let leaves = walked.ok().flatten().map(|outcome| outcome.leaves);
            let leaves = leaves.into_iter().flatten();
            leaves.map(|leaf| (leaf.value.get(), leaf.choice)).collect()
        } else {
            let quoted = evidence.pcrs.value(pcr);
            let leaves = enumerated.leaves(pcr).iter();
            let distance = |value: &Sha256Digest| u32::from(value != quoted);
            leaves.map(|leaf| (distance(&leaf.value), leaf.choice)).collect()
        };
        if distances.is_empty() {
            distances.push((log.map_or(1, |log| log.events), Choice::FREE));
        }
        distances.sort_unstable();
        distances.dedup();
        distances
    }

    /// The digests with which a state extends a register.
    fn trace(
        &self,
        family: &Family,
        choice: Choice,
        evidence: &VerifiedEvidence,
        pcr: PcrIndex,
    ) -> Option<Vec<Sha256Digest>> {
        let log = Logged::of(evidence, pcr);
        let distance = |digests: &[Sha256Digest]| {
            let log = log.as_ref()?;
            let start = Distance::from(log);
            let end = digests.iter().fold(start, |d, digest| d.after(digest, 1));
            Some(end.get())
        };
        let traced = walk(family, pcr, &self.rules, choice, &Vec::new());
        let leaves = traced.ok().flatten()?.leaves.into_iter();
        leaves.map(|leaf| leaf.value).min_by_key(|digests| distance(digests))
    }
}

/// The digests of a register for which there is an event log.
struct Logged {
    digests: BTreeSet<Sha256Digest>,
    events: u32,
}

impl Logged {
    fn of(evidence: &VerifiedEvidence, pcr: PcrIndex) -> Option<Self> {
        let events = evidence.logged(pcr)?;
        Some(Self {
            events: u32::try_from(events.len()).unwrap_or(u32::MAX),
            digests: events.iter().map(|event| event.digest).collect(),
        })
    }
}

/// Measurements that were found in the log, and those that were not.
#[derive(Clone, Copy)]
struct Distance<'a> {
    log: &'a Logged,
    found: u32,
    missing: u32,
}

impl<'a> From<&'a Logged> for Distance<'a> {
    fn from(log: &'a Logged) -> Self {
        Self { log, found: 0, missing: 0 }
    }
}

impl Distance<'_> {
    fn get(&self) -> u32 {
        let besides = self.log.events.saturating_sub(self.found);
        self.missing.saturating_add(besides)
    }
}

impl Fold for Distance<'_> {
    fn after(mut self, hash: &Sha256Digest, count: u32) -> Self {
        if self.log.digests.contains(hash) {
            self.found = self.found.saturating_add(count);
        } else {
            self.missing = self.missing.saturating_add(count);
        }
        self
    }
}

/// All measurements in order.
impl Fold for Vec<Sha256Digest> {
    fn after(mut self, hash: &Sha256Digest, count: u32) -> Self {
        self.extend((0..count).map(|_| *hash));
        self
    }
}

/// Searches for the states, one for each register, that are compatible and have the smallest total
/// distance.
struct Search<'a> {
    registers: &'a [Vec<(u32, Choice)>],
    best: Option<(u32, Choice)>,
    left: u32,
}

impl Search<'_> {
    fn of(registers: &[Vec<(u32, Choice)>]) -> Option<(u32, Choice)> {
        let mut search = Search { registers, best: None, left: MAX_STEPS };
        search.step(0, 0, Choice::FREE);
        search.best
    }

    fn step(&mut self, at: usize, cost: u32, choice: Choice) {
        let Some(states) = self.registers.get(at) else {
            // Only what is nearer than the best so far gets here.
            self.best = Some((cost, choice));
            return;
        };
        let later = self.registers.iter().skip(at + 1);
        let least_later: u32 = later.filter_map(|r| Some(r.first()?.0)).sum();
        for (more, state) in states {
            let cost = cost.saturating_add(*more);
            let bound = cost.saturating_add(least_later);
            if self.left == 0 || self.best.is_some_and(|(known, _)| bound >= known) {
                return;
            }
            self.left -= 1;
            if let Some(both) = choice.joined(state) {
                self.step(at + 1, cost, both);
            }
        }
    }
}
