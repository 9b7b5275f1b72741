//! `RecoveryKey`: a recovery key that a machine deposited, sealed to an admin.

use kube::{CustomResource, KubeSchema};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use tec_core::id::MachineId;

use super::rule::{immutable, named_after_machine_and_number};

/// A recovery key of a disk. Only the holder of the admin's private key can open it.
#[derive(
    CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize,
)]
#[kube(
    group = "trusted-execution-clusters.io",
    version = "v1alpha1",
    kind = "RecoveryKey",
    plural = "recoverykeys",
    category = "trusted-execution",
    namespaced,
    derive = "PartialEq",
    attr = "non_exhaustive",
    doc = "A recovery key of a machine's disk, sealed to an admin. The built-in key broker creates it; kubectl tec machine recovery-key prints it. Deleted with its Machine.",
    validation = named_after_machine_and_number(),
    printcolumn = r#"{"name":"Machine","type":"string","jsonPath":".spec.machine"}"#,
    printcolumn = r#"{"name":"Number","type":"integer","jsonPath":".spec.number"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = immutable())]
#[non_exhaustive]
pub struct RecoveryKeySpec {
    /// ID of the machine that deposited the key.
    #[schemars(length(min = 36, max = 36))]
    pub machine: String,

    /// Number of the key among those of the machine, from 1 to 64. The latest key has the highest number.
    #[schemars(schema_with = "number_schema")]
    pub number: u32,

    /// The sealed key: a JWE in the flattened JSON serialization (RFC 7516, section 7.2.2).
    #[schemars(length(min = 1, max = 8192))]
    pub sealed: String,
}

/// At most [`MAX_ESCROWS`](tec_core::flow::MAX_ESCROWS); `sealed` is as long as
/// [`MAX_ESCROW`](tec_core::flow::MAX_ESCROW).
fn number_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer", "format": "int32", "minimum": 1, "maximum": 64})
}

impl RecoveryKey {
    /// The object of a key.
    pub fn of(machine: MachineId, number: u32, sealed: impl Into<String>) -> Self {
        let spec = RecoveryKeySpec { machine: machine.to_string(), number, sealed: sealed.into() };
        Self::new(&Self::name_of(&machine, number), spec)
    }

    /// `recovery-`, the ID of the machine and the number.
    pub fn name_of(machine: &MachineId, number: u32) -> String {
        format!("recovery-{machine}-{number}")
    }
}
