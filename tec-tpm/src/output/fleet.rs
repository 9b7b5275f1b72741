//! This project's own format: what a fleet can measure, with origins.

use std::fmt::Write as _;

use serde::Serialize;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::{PcrIndex, PcrSet};

use crate::combine::{CombineError, Combined, Provenance};

/// All results of a combination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FleetReport {
    /// The values of each register.
    pub registers: Vec<RegisterReport>,
    /// The tuples of the registers that were requested together.
    pub joint: Vec<JointReport>,
    /// States whose values are not known.
    pub undetermined: Vec<UndeterminedReport>,
}

/// The values of one register.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RegisterReport {
    /// The register.
    pub pcr: PcrIndex,
    /// Values of the register, sorted.
    pub values: Vec<ValueReport>,
}

/// One value of a register.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ValueReport {
    /// The value.
    pub value: Sha256Digest,
    /// The states that produce it, in readable form: `bootloader of 44.2 + kernel of 44.1`.
    pub made_by: Vec<String>,
    /// The same states in machine-readable form.
    pub origins: Vec<Provenance>,
}

/// Values that occur together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct JointReport {
    /// Register and value, in register order.
    pub values: Vec<(PcrIndex, Sha256Digest)>,
    /// The states that produce them.
    pub made_by: Vec<String>,
}

/// A state whose value is not known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UndeterminedReport {
    /// The register.
    pub pcr: PcrIndex,
    /// The state.
    pub state: String,
    /// Why.
    pub reason: String,
}

impl FleetReport {
    /// The report of a combination, with the tuples of `together` (none if that is empty).
    ///
    /// # Errors
    /// [`CombineError::TooManyValues`] when there are too many tuples.
    pub fn new(combined: &Combined, together: PcrSet) -> Result<Self, CombineError> {
        let value = |pcr, value| {
            let origins = combined.provenance(pcr, &value);
            ValueReport { value, made_by: texts(&origins), origins }
        };
        let register = |pcr| RegisterReport {
            pcr,
            values: combined.values(pcr).into_iter().map(|v| value(pcr, v)).collect(),
        };
        let undetermined = combined.undetermined().into_iter();
        let joint = combined.joint(together)?.into_iter();
        Ok(Self {
            registers: combined.registers().iter().map(register).collect(),
            joint: joint
                .map(|state| JointReport { made_by: texts(&state.made_by), values: state.values })
                .collect(),
            undetermined: undetermined
                .map(|u| UndeterminedReport {
                    pcr: u.pcr,
                    state: u.state.to_string(),
                    reason: u.reason.to_string(),
                })
                .collect(),
        })
    }

    /// Readable form: for each register, the values and what produces them, then what is unknown.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for register in &self.registers {
            let _ = writeln!(text, "PCR {}", register.pcr);
            for value in &register.values {
                let _ = writeln!(text, "  {}  {}", value.value, value.made_by.join("; "));
            }
        }
        if !self.joint.is_empty() {
            text += "together\n";
        }
        for state in &self.joint {
            let _ = writeln!(text, "  {}", state.made_by.join("; "));
            for (pcr, value) in &state.values {
                let _ = writeln!(text, "    PCR {pcr:>2} = {value}", pcr = u8::from(*pcr));
            }
        }
        for gap in &self.undetermined {
            let _ = writeln!(text, "PCR {} unknown: {} ({})", gap.pcr, gap.state, gap.reason);
        }
        text
    }
}

fn texts(states: &[Provenance]) -> Vec<String> {
    states.iter().map(ToString::to_string).collect()
}
