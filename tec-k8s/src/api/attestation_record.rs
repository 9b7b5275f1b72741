//! `AttestationRecord`: the latest attestation attempts of a machine.

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};
use tec_core::attest::Attempt;
use tec_core::id::MachineId;

use super::convert::ConvertError;

/// The latest attestation attempts of a machine, newest first.
///
/// The record that belongs to no machine holds attempts by unknown keys and attempts without a valid
/// signature.
#[derive(
    CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize,
)]
#[kube(
    group = "trusted-execution-clusters.io",
    version = "v1alpha1",
    kind = "AttestationRecord",
    plural = "attestationrecords",
    category = "trusted-execution",
    namespaced,
    derive = "PartialEq",
    attr = "non_exhaustive",
    doc = "The latest attempts of a machine to attest. The guard or the built-in key broker writes it; kubectl tec explain prints it.",
    printcolumn = r#"{"name":"Machine","type":"string","jsonPath":".spec.machine"}"#,
    printcolumn = r#"{"name":"Last","type":"string","jsonPath":".spec.attempts[0].at"}"#,
    printcolumn = r#"{"name":"Code","type":"string","jsonPath":".spec.attempts[0].code","description":"Error code of the last attempt, if it was refused"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct AttestationRecordSpec {
    /// ID of the machine. Absent for attempts that belong to no machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub machine: Option<String>,

    /// The attempts, newest first.
    #[serde(default)]
    pub attempts: Vec<RecordedAttempt>,
}

/// One attempt.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct RecordedAttempt {
    /// ID of the attempt.
    pub id: String,

    /// When the evidence arrived, RFC 3339.
    pub at: String,

    /// Error code of the refusal, if it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub code: Option<String>,

    /// The attempt with every check: JSON.
    pub attempt: String,
}

impl RecordedAttempt {
    /// An attempt in its stored form.
    pub fn from_core(attempt: &Attempt) -> Result<Self, ConvertError> {
        let text = serde_json::to_string(attempt);
        Ok(Self {
            id: attempt.id.to_string(),
            at: attempt.at.to_string(),
            code: attempt.ladder.code.map(|code| code.to_string()),
            attempt: text.map_err(ConvertError::Attempt)?,
        })
    }

    /// The attempt, parsed.
    pub fn to_core(&self) -> Result<Attempt, ConvertError> {
        serde_json::from_str(&self.attempt).map_err(ConvertError::Attempt)
    }
}

impl AttestationRecord {
    /// `attempts-` and the ID of the machine, or `attempts-unknown`.
    pub fn name_of(machine: Option<MachineId>) -> String {
        let whose = machine.map_or_else(|| "unknown".to_owned(), |id| id.to_string());
        format!("attempts-{whose}")
    }

    /// The machine's ID in the name of its record.
    pub fn machine_of(name: &str) -> Option<&str> {
        name.strip_prefix("attempts-").filter(|id| *id != "unknown")
    }

    /// An empty record.
    pub fn empty(machine: Option<MachineId>) -> Self {
        let machine_id = machine.map(|id| id.to_string());
        let spec = AttestationRecordSpec { machine: machine_id, attempts: Vec::new() };
        Self::new(&Self::name_of(machine), spec)
    }

    /// The attempts that can be parsed, newest first.
    pub fn attempts(&self) -> Vec<Attempt> {
        self.spec.attempts.iter().filter_map(|attempt| attempt.to_core().ok()).collect()
    }
}
