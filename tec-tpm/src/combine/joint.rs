//! Values that several registers have at the same time.

use std::collections::BTreeMap;

use tec_core::digest::Sha256Digest;
use tec_core::pcr::{PcrIndex, PcrSet};

use super::combined::Enumerated;
use super::provenance::{common, tidied};
use super::walk::{Choice, Leaf, MAX_LEAVES};
use super::{CombineError, Combined, Provenance};

/// A state of several registers together.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JointState {
    /// Register and value, in register order.
    pub values: Vec<(PcrIndex, Sha256Digest)>,
    /// What produces it.
    pub made_by: Vec<Provenance>,
}

/// Values in register order, and a choice that produces them.
type Row = (Vec<Sha256Digest>, Choice);

impl Combined {
    /// The tuples of values that occur together, sorted, without duplicates.
    ///
    /// A state in which one of the registers is undetermined has no tuple.
    ///
    /// # Errors
    /// [`CombineError::TooManyValues`] if there are more than a verifier accepts.
    pub fn joint(&self, registers: PcrSet) -> Result<Vec<JointState>, CombineError> {
        let mut states: BTreeMap<Vec<Sha256Digest>, Vec<Provenance>> = BTreeMap::new();
        for enumerated in &self.families {
            for (values, choice) in enumerated.rows(registers)? {
                let made_by = self.provenance_of(&enumerated.family, &choice);
                states.entry(values).or_default().push(made_by);
            }
        }
        let state = |(values, made_by)| JointState {
            values: registers.iter().zip::<Vec<_>>(values).collect(),
            made_by: tidied(made_by),
        };
        Ok(states.into_iter().map(state).collect())
    }
}

impl Enumerated {
    fn rows(&self, registers: PcrSet) -> Result<Vec<Row>, CombineError> {
        let mut rows: Option<Vec<Row>> = None;
        for pcr in registers.iter() {
            let leaves = self.leaves(pcr);
            rows = Some(match rows {
                None => leaves.iter().map(|leaf| (vec![leaf.value], leaf.choice)).collect(),
                Some(rows) => join(pcr, &rows, leaves)?,
            });
        }
        Ok(rows.unwrap_or_default())
    }
}

/// Combinations of rows and leaves that can be one state. The groups that all combinations of both decide
/// serve as the index.
fn join(pcr: PcrIndex, rows: &[Row], leaves: &[Leaf]) -> Result<Vec<Row>, CombineError> {
    let in_rows = common(rows.iter().map(|(_, choice)| choice.groups()));
    let in_leaves = common(leaves.iter().map(|leaf| leaf.choice.groups()));
    let shared = in_rows.shared(in_leaves);
    let mut index: BTreeMap<Choice, Vec<&Leaf>> = BTreeMap::new();
    for leaf in leaves {
        index.entry(leaf.choice.within(shared)).or_default().push(leaf);
    }
    let mut joined = Vec::with_capacity(rows.len());
    for (values, choice) in rows {
        let candidates = index.get(&choice.within(shared));
        for leaf in candidates.into_iter().flatten() {
            if let Some(both) = choice.joined(&leaf.choice) {
                if joined.len() >= MAX_LEAVES {
                    return Err(CombineError::TooManyValues { pcr, limit: MAX_LEAVES });
                }
                let mut values = values.clone();
                values.push(leaf.value);
                joined.push((values, both));
            }
        }
    }
    Ok(joined)
}
