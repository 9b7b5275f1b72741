//! `Machine`: one node, known by its id.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use kube::KubeSchema;
use kube::ResourceExt as _;
use serde::Deserialize;
use serde::Serialize;
use tec_core::id::MachineId;
use tec_core::machine;
use tec_core::machine::MachineState;
use tec_core::machine::RegisteredBy;

use super::condition::conditions_schema;
use super::convert::ConvertError;
use super::convert::created_at;
use super::rule::immutable;

/// Says that an admin made the object; absent on what a first boot made.
const REGISTERED_BY: &str = "trusted-execution-clusters.io/registered-by";
const ADMIN: &str = "admin";

/// Identity of one node.
#[derive(
    CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize,
)]
#[kube(
    group = "trusted-execution-clusters.io",
    version = "v1alpha1",
    kind = "Machine",
    plural = "machines",
    shortname = "tecm",
    category = "trusted-execution",
    namespaced,
    status = "MachineStatus",
    derive = "PartialEq",
    attr = "non_exhaustive",
    doc = "A node that may attest and obtain the key of its own disk.",
    printcolumn = r#"{"name":"Id","type":"string","jsonPath":".spec.id"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct MachineSpec {
    /// The id that the node was given in its Ignition config, a UUID.
    #[x_kube(validation = immutable())]
    pub id: String,
}

/// What is known of the machine.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MachineStatus {
    /// No type of condition is defined yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Vec<Condition>,
}

impl Machine {
    /// The object for a registered machine, named `machine-<id>` (upstream-operator 1.4).
    ///
    /// # Errors
    /// A revoked machine has no object: revocation deletes it.
    pub fn from_core(machine: &machine::Machine) -> Result<Self, ConvertError> {
        if machine.state == MachineState::Revoked {
            return Err(ConvertError::Revoked {
                name: machine.id.to_string(),
            });
        }
        let id = machine.id.to_string();
        let mut object = Self::new(&format!("machine-{id}"), MachineSpec { id });
        if machine.registered_by == RegisteredBy::Admin {
            object
                .annotations_mut()
                .insert(REGISTERED_BY.to_owned(), ADMIN.to_owned());
        }
        Ok(object)
    }

    /// The id, parsed.
    pub fn machine_id(&self) -> Result<MachineId, ConvertError> {
        self.spec
            .id
            .parse()
            .map_err(|source| ConvertError::MachineId {
                name: self.name_any(),
                source,
            })
    }

    /// The machine as the domain knows it. Whether it has an approved key is not in this object,
    /// so the caller says where it stands.
    pub fn to_core(&self, state: MachineState) -> Result<machine::Machine, ConvertError> {
        let by_admin = self
            .annotations()
            .get(REGISTERED_BY)
            .is_some_and(|v| v == ADMIN);
        let registered_by = if by_admin {
            RegisteredBy::Admin
        } else {
            RegisteredBy::FirstBoot
        };
        let registered_at = created_at(&self.metadata)?;
        let mut machine =
            machine::Machine::unclaimed(self.machine_id()?, registered_by, registered_at);
        machine.state = state;
        Ok(machine)
    }
}
