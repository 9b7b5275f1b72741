//! Checks whether quoted values match a state of the fleet.

use tec_core::attest::PinnedPcrs;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::{PcrIndex, PcrValues};

use super::combined::Enumerated;
use super::provenance::tidied;
use super::source::Family;
use super::walk::Choice;
use super::{Combined, Provenance};

/// Quoted values match no state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// No state has this value.
    #[error("PCR {pcr} matches no state of the approved images")]
    Unknown {
        /// First pinned register with an unknown value.
        pcr: PcrIndex,
        /// The quoted value.
        quoted: Sha256Digest,
    },
    /// Each register has a value of some state, but no single state has them all.
    #[error("no approved state has all these values of the pinned registers")]
    NotTogether {
        /// For each register, what produces its value.
        each: Vec<(PcrIndex, Vec<Provenance>)>,
    },
}

impl Combined {
    /// Finds the states that match all pinned registers together; whole images first.
    ///
    /// [`MixedStates`](super::MixedStates) builds the gate of the PCR values on this, using a
    /// combination of only the *live* images.
    ///
    /// # Errors
    /// [`Refusal`] if there is no such state.
    ///
    /// # Security
    /// `quoted` must come from a quote whose signature and nonce have been verified. States with
    /// undetermined values are refused.
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
