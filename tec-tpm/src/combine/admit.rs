//! Whether quoted values are those of a state of the fleet.

use tec_core::attest::PinnedPcrs;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::{PcrIndex, PcrValues};

use super::combined::Enumerated;
use super::provenance::tidied;
use super::source::Family;
use super::walk::Choice;
use super::{Combined, Provenance};

/// Quoted values are those of no state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// No state has this value.
    #[error("PCR {pcr} is that of no state of the approved images")]
    Unknown {
        /// First pinned register whose value is not known.
        pcr: PcrIndex,
        /// What was quoted.
        quoted: Sha256Digest,
    },
    /// Each register has a value of some state, but no state has them all.
    #[error("the values of the pinned registers do not occur together")]
    NotTogether {
        /// Per register, what makes its value.
        each: Vec<(PcrIndex, Vec<Provenance>)>,
    },
}

impl Combined {
    /// Finds the states that all pinned registers fit at once; whole images first.
    ///
    /// [`MixedStates`](super::MixedStates) makes of it the gate of the PCR values: there it is asked
    /// for a combination of the *live* images only.
    ///
    /// # Errors
    /// [`Refusal`] when there is no such state.
    ///
    /// # Security
    /// `quoted` must come from a quote whose signature and nonce are verified. States whose values
    /// are undetermined are refused.
    pub fn admit(
        &self,
        quoted: &PcrValues,
        pinned: PinnedPcrs,
    ) -> Result<Vec<Provenance>, Refusal> {
        let states: Vec<_> = self
            .fitting(quoted, pinned)
            .map(|(family, choice)| self.provenance_of(family, &choice))
            .collect();
        if !states.is_empty() {
            return Ok(tidied(states));
        }
        let mut each = Vec::new();
        for pcr in pinned.iter() {
            let made_by = self.provenance(pcr, quoted.value(pcr));
            if made_by.is_empty() {
                return Err(Refusal::Unknown { pcr, quoted: *quoted.value(pcr) });
            }
            each.push((pcr, made_by));
        }
        Err(Refusal::NotTogether { each })
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
    /// The choices that give all pinned values.
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
