//! `TpmClock`: last clock reading of the TPM that holds an attestation key.

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};
use tec_core::ak::{ClockReading, Fingerprint};
use tec_core::id::MachineId;

use super::convert::ConvertError;

/// Label with the ID of the machine.
pub const CLOCK_OF: &str = "trusted-execution-clusters.io/clock-of";

/// The last clock of a TPM, identified by the key that it attests with: a TPM whose clock goes backwards is a
/// copy.
#[derive(
    CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize,
)]
#[kube(
    group = "trusted-execution-clusters.io",
    version = "v1alpha1",
    kind = "TpmClock",
    plural = "tpmclocks",
    category = "trusted-execution",
    namespaced,
    derive = "PartialEq",
    attr = "non_exhaustive",
    doc = "The last clock of the TPM that holds an attestation key. The guard writes it.",
    printcolumn = r#"{"name":"Machine","type":"string","jsonPath":".spec.machine"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TpmClockSpec {
    /// ID of the machine.
    pub machine: String,

    /// The last accepted reading, as JSON.
    pub reading: String,
}

impl TpmClock {
    /// The object for a key's clock. Its name contains the whole fingerprint, so that no two keys share it.
    pub fn from_core(key: &Fingerprint, machine: MachineId, reading: &ClockReading) -> Self {
        let mut object = Self::new(
            &Self::name_of(key),
            TpmClockSpec { machine: machine.to_string(), reading: text_of(reading) },
        );
        let labels = object.metadata.labels.get_or_insert_default();
        labels.insert(CLOCK_OF.to_owned(), machine.to_string());
        object
    }

    /// `clock-` and the fingerprint of the key.
    pub fn name_of(key: &Fingerprint) -> String {
        format!("clock-{key}")
    }

    /// The reading, parsed.
    pub fn reading(&self) -> Result<ClockReading, ConvertError> {
        serde_json::from_str(&self.spec.reading).map_err(ConvertError::Clock)
    }
}

fn text_of(reading: &ClockReading) -> String {
    // Numbers and times always serialize.
    serde_json::to_string(reading).unwrap_or_default()
}
