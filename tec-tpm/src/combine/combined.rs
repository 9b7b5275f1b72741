//! The result: the values of each register, with what produces them.

use tec_core::digest::Sha256Digest;
use tec_core::pcr::{PcrIndex, PcrSet};

use super::source::Family;
use super::walk::{Choice, Leaf, Outcome};
use super::{CombineError, Combiner, Provenance, Reason, provenance, walk};

/// The states of a fleet that moves between images.
#[derive(Debug)]
pub struct Combined {
    pub(super) rules: Combiner,
    pub(super) names: Vec<String>,
    pub(super) families: Vec<Enumerated>,
}

/// A family, with the possible values of its registers.
#[derive(Debug)]
pub(super) struct Enumerated {
    pub(super) family: Family,
    pub(super) registers: Vec<Outcome>,
}

/// A state in which the value of a register is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Undetermined {
    /// The register.
    pub pcr: PcrIndex,
    /// The state, as far as relevant.
    pub state: Provenance,
    /// The reason.
    pub reason: Reason,
}

impl Combined {
    pub(super) fn enumerate(
        names: Vec<String>,
        families: Vec<Family>,
        rules: Combiner,
    ) -> Result<Self, CombineError> {
        let mut enumerated = Vec::with_capacity(families.len());
        for family in families {
            let mut registers = Vec::new();
            for pcr in PcrIndex::all() {
                registers.extend(walk::enumerate(&family, pcr, &rules)?);
            }
            enumerated.push(Enumerated { family, registers });
        }
        Ok(Self { rules, names, families: enumerated })
    }

    /// Registers that at least one image states.
    pub fn registers(&self) -> PcrSet {
        let outcomes = self.families.iter().flat_map(|f| &f.registers);
        outcomes.map(|outcome| outcome.pcr).collect()
    }

    /// All values that a register can have, sorted and without duplicates.
    pub fn values(&self, pcr: PcrIndex) -> Vec<Sha256Digest> {
        let mut values: Vec<_> = self.leaves(pcr).map(|(_, leaf)| leaf.value).collect();
        values.sort_unstable();
        values.dedup();
        values
    }

    /// The states that produce this value; empty if none does.
    pub fn provenance(&self, pcr: PcrIndex, value: &Sha256Digest) -> Vec<Provenance> {
        let mut found = Vec::new();
        for enumerated in &self.families {
            for leaf in enumerated.with_value(pcr, value) {
                found.push(provenance::of(&self.names, &enumerated.family, &leaf.choice));
            }
        }
        provenance::tidied(found)
    }

    /// States whose values are unknown and which are therefore in no list.
    pub fn undetermined(&self) -> Vec<Undetermined> {
        let mut found: Vec<Undetermined> = Vec::new();
        for enumerated in &self.families {
            for outcome in &enumerated.registers {
                found.extend(outcome.gaps.iter().map(|gap| Undetermined {
                    pcr: outcome.pcr,
                    state: provenance::of(&self.names, &enumerated.family, &gap.choice),
                    reason: gap.reason,
                }));
            }
        }
        found
    }

    fn leaves(&self, pcr: PcrIndex) -> impl Iterator<Item = (&Family, &Leaf)> {
        self.families.iter().flat_map(move |enumerated| {
            let leaves = enumerated.leaves(pcr).iter();
            leaves.map(|leaf| (&enumerated.family, leaf))
        })
    }

    pub(super) fn provenance_of(&self, family: &Family, choice: &Choice) -> Provenance {
        provenance::of(&self.names, family, choice)
    }
}

impl Enumerated {
    /// Sorted by value.
    pub(super) fn leaves(&self, pcr: PcrIndex) -> &[Leaf] {
        let outcome = self.registers.iter().find(|outcome| outcome.pcr == pcr);
        outcome.map_or(&[], |outcome| outcome.leaves.as_slice())
    }

    pub(super) fn with_value(&self, pcr: PcrIndex, value: &Sha256Digest) -> &[Leaf] {
        let leaves = self.leaves(pcr);
        let start = leaves.partition_point(|leaf| leaf.value < *value);
        let rest = leaves.get(start..).unwrap_or_default();
        let end = rest.partition_point(|leaf| leaf.value == *value);
        rest.get(..end).unwrap_or_default()
    }
}
