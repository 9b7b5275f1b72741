//! Checks whether quoted values match a state of the fleet.

use tec_core::attest::PinnedPcrs;
use tec_core::pcr::PcrValues;

use super::combined::Enumerated;
use super::provenance::tidied;
use super::source::Family;
use super::walk::Choice;
use super::{Combined, Provenance};

impl Combined {
    /// Finds the states that match all pinned registers together; whole images first. Empty if there are none.
    ///
    /// # Security
    /// `quoted` must come from a quote whose signature and nonce have been verified. States with
    /// undetermined values are refused.
    pub fn admit(&self, quoted: &PcrValues, pinned: PinnedPcrs) -> Vec<Provenance> {
        let states = self.fitting(quoted, pinned);
        tidied(states.map(|(family, choice)| self.provenance_of(family, &choice)).collect())
    }

    /// The states that have all pinned values.
    pub(super) fn fitting(
        &self,
        quoted: &PcrValues,
        pinned: PinnedPcrs,
    ) -> impl Iterator<Item = (&Family, Choice)> {
        self.families.iter().flat_map(move |enumerated| {
            let choices = enumerated.choices(quoted, pinned).into_iter();
            choices.map(|choice| (&enumerated.family, choice))
        })
    }
}

impl Enumerated {
    /// The choices that produce all pinned values.
    fn choices(&self, quoted: &PcrValues, pinned: PinnedPcrs) -> Vec<Choice> {
        let mut choices = vec![Choice::FREE];
        for pcr in pinned.iter() {
            let leaves = self.with_value(pcr, quoted.value(pcr));
            let both = |choice: &Choice| {
                let fitting = leaves.iter().filter_map(|leaf| choice.joined(&leaf.choice));
                fitting.collect::<Vec<_>>()
            };
            choices = choices.iter().flat_map(both).collect();
            choices.sort_unstable();
            choices.dedup();
        }
        choices
    }
}
