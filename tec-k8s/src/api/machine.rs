//! `Machine`: one node, identified by its ID.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema, ResourceExt as _};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tec_core::ak::{AkRecord, Fingerprint};
use tec_core::attest::Attempt;
use tec_core::boot::BootState;
use tec_core::id::MachineId;
use tec_core::machine;
use tec_core::machine::{LastBinding, MachineState, RegisteredBy};
use tec_core::time::Timestamp;

use super::condition::conditions_schema;
use super::convert::{ConvertError, stamp, stamped_at, time_schema};
use super::rule::{immutable, stays_set};
use super::untrusted::ActedOn;

/// Marks an object that an admin created; absent if a first boot created it.
const REGISTERED_BY: &str = "trusted-execution-clusters.io/registered-by";
const ADMIN: &str = "admin";
const JOIN_SERVICE: &str = "join-service";
/// When it was registered, if that differs from when the object was created.
const REGISTERED_AT: &str = "trusted-execution-clusters.io/registered-at";

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
    selectable = ".spec.id",
    selectable = ".spec.revokedAt",
    selectable = ".status.attestationKey.name",
    printcolumn = r#"{"name":"Node","type":"string","jsonPath":".spec.nodeName"}"#,
    printcolumn = r#"{"name":"State","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name":"Image","type":"string","jsonPath":".status.image"}"#,
    printcolumn = r#"{"name":"Booted","type":"date","jsonPath":".status.lastBoot"}"#,
    printcolumn = r#"{"name":"Refused","type":"string","jsonPath":".status.lastAttestation.code"}"#,
    printcolumn = r#"{"name":"Id","type":"string","jsonPath":".spec.id","priority":1}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status","priority":1}"#,
    printcolumn = r#"{"name":"Key","type":"string","jsonPath":".status.attestationKey.name","priority":1}"#,
    printcolumn = r#"{"name":"Attested","type":"date","jsonPath":".status.lastAttestation.at","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = stays_set("revokedAt"))]
#[x_kube(validation = stays_set("retiredAt"))]
#[non_exhaustive]
pub struct MachineSpec {
    /// ID of the node in its Ignition config, a UUID.
    #[x_kube(validation = immutable())]
    pub id: String,

    /// When the machine was revoked, RFC 3339; final. It can no longer attest; its key stays for an admin.
    /// Deleting the object also deletes the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time_schema")]
    #[x_kube(validation = immutable())]
    pub revoked_at: Option<String>,

    /// Name of the node that runs on the machine, as admins know it. It is used to display the machine and to
    /// find it in commands. spec.onUntrusted of the cluster object acts on this Node only if the Node's label
    /// names the machine, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 253))]
    pub node_name: Option<String>,

    /// When the machine was quarantined, RFC 3339. While this is set it may attest, but it gets no disk key
    /// and binds no attestation key; remove it to release the machine. Its key is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time_schema")]
    pub quarantined_at: Option<String>,

    /// Why it was quarantined, for other admins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub quarantine_reason: Option<String>,

    /// When the machine was decommissioned, RFC 3339; final. It can no longer attest; its key stays until the
    /// object is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time_schema")]
    #[x_kube(validation = immutable())]
    pub retired_at: Option<String>,
}

impl MachineSpec {
    /// A merge patch of the spec that sets the fields for this state and keeps a time that is already set.
    /// Empty for the states that follow from its attestation key.
    pub fn patch_to(&self, state: MachineState, at: Timestamp) -> serde_json::Value {
        let since = |known: &Option<String>| known.clone().unwrap_or_else(|| at.to_string());
        match state {
            MachineState::Revoked => json!({ "revokedAt": since(&self.revoked_at) }),
            MachineState::Retired => json!({ "retiredAt": since(&self.retired_at) }),
            MachineState::Quarantined => json!({ "quarantinedAt": since(&self.quarantined_at) }),
            // A release. Nothing undoes the other states.
            _ => json!({ "quarantinedAt": null, "quarantineReason": null }),
        }
    }
}

/// The attestation key that a machine is bound to.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct BoundKey {
    /// Name of the AttestationKey.
    pub name: String,

    /// SHA-256 of the key's DER form, in hexadecimal. An object that now holds a different key is not the one
    /// that was approved.
    pub fingerprint: String,

    /// When the key was bound, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time_schema")]
    pub since: Option<String>,

    /// SHA-256 fingerprint, in hexadecimal, of the endorsement key that was proven for it. Even after the key
    /// is revoked or its object deleted, another key with the same endorsement key needs no admin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub endorsement_key: Option<String>,

    /// Network that the key came from, if trust on first use bound it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub claimed_from: Option<String>,
}

impl BoundKey {
    /// A key, bound at a time.
    pub fn new(name: impl Into<String>, fingerprint: Fingerprint, since: Timestamp) -> Self {
        Self {
            name: name.into(),
            fingerprint: fingerprint.to_string(),
            since: Some(since.to_string()),
            endorsement_key: None,
            claimed_from: None,
        }
    }

    /// Adds what the record contains about its TPM and its origin.
    pub fn of(self, record: &AkRecord) -> Self {
        Self {
            endorsement_key: record.ek.map(|ek| ek.to_string()),
            claimed_from: record.source.map(|source| source.to_string()),
            ..self
        }
    }

    /// Returns a merge patch that replaces an earlier binding completely.
    #[cfg(feature = "client")]
    pub(crate) fn patch(&self) -> serde_json::Value {
        serde_json::json!({
            "name": self.name,
            "fingerprint": self.fingerprint,
            "since": self.since,
            "endorsementKey": self.endorsement_key,
            "claimedFrom": self.claimed_from,
        })
    }

    /// The binding as a domain object; `None` if the fingerprint is malformed.
    fn to_core(&self) -> Option<LastBinding> {
        let ek = self.endorsement_key.as_ref();
        let ek = ek.and_then(|text| text.parse().ok());
        Some(LastBinding::new(self.fingerprint.parse().ok()?, ek))
    }
}

/// An attempt of the machine to obtain its key.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct LastAttestation {
    /// When the attempt was made, RFC 3339.
    #[schemars(schema_with = "time_schema")]
    pub at: String,

    /// ID of the attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub attempt: Option<String>,

    /// Error code of the refusal; absent if the attempt was not refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub code: Option<String>,

    /// The approved image that the machine booted; several names, separated by commas, if the boot has parts
    /// of several images or they cannot be told apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub image: Option<String>,
}

impl LastAttestation {
    /// An attempt, without its checks.
    pub fn of(attempt: &Attempt) -> Self {
        let images = attempt.booted.iter().flat_map(BootState::images);
        let images: Vec<_> = images.map(ToString::to_string).collect();
        Self {
            at: attempt.at.to_string(),
            attempt: Some(attempt.id.to_string()),
            code: attempt.ladder.code.map(|code| code.to_string()),
            image: Some(images.join(", ")).filter(|images| !images.is_empty()),
        }
    }

    /// Returns a merge patch that replaces an earlier attempt completely.
    #[cfg(feature = "controller")]
    pub(crate) fn patch(&self) -> serde_json::Value {
        serde_json::json!({
            "at": self.at,
            "attempt": self.attempt,
            "code": self.code,
            "image": self.image,
        })
    }
}

/// Observed state of the machine.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct MachineStatus {
    /// `Ready`, `KeyPublished`, `Attested` and `ActedOn`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Vec<Condition>,

    /// The metadata.generation that the operator acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64")]
    pub observed_generation: Option<i64>,

    /// The attestation key that it is bound to. The API server lets only one writer set it. It stays when the
    /// key is revoked or deleted: a machine that ever had a key accepts no other key on first use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "BoundKey")]
    pub attestation_key: Option<BoundKey>,

    /// Name of the Secret with its disk key. Once this is set, the key is never generated again, even if the
    /// Secret is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub key_secret: Option<String>,

    /// The Trustees that hold its key, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub published_to: Vec<String>,

    /// Its last attempt to obtain its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "LastAttestation")]
    pub last_attestation: Option<LastAttestation>,

    /// The approved image that it booted when it last obtained its key, as in `lastAttestation.image`. A
    /// refused attempt does not change it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub image: Option<String>,

    /// When it last obtained its key, RFC 3339. A refused attempt does not change it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time_schema")]
    pub last_boot: Option<String>,

    /// What is done because the machine is untrusted, as `spec.onUntrusted` of the cluster object says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ActedOn")]
    pub acted_on: Option<ActedOn>,

    /// SHA-256 digests of the CAs that its disk's pin trusts for the key broker, as reported while the CA was
    /// being replaced. The next CA signs once every machine trusts it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trusted_authorities: Vec<String>,
}

impl Machine {
    /// The object for a registered machine, named `machine-<id>` (trusted-cluster-operator).
    pub fn from_core(machine: &machine::Machine) -> Self {
        let mut spec = MachineSpec { id: machine.id.to_string(), ..MachineSpec::default() };
        let since = Some(machine.registered_at.to_string());
        match machine.state {
            MachineState::Revoked => spec.revoked_at = since,
            MachineState::Retired => spec.retired_at = since,
            MachineState::Quarantined => spec.quarantined_at = since,
            _ => {}
        }
        let mut object = Self::new(&Self::name_of(&machine.id), spec);
        stamp(&mut object, REGISTERED_AT, machine.registered_at);
        match machine.registered_by {
            RegisteredBy::Admin => {
                let annotations = object.annotations_mut();
                annotations.insert(REGISTERED_BY.to_owned(), ADMIN.to_owned());
            }
            // A label, so that `kubectl get machines -l` distinguishes members from other machines.
            RegisteredBy::JoinService => {
                let labels = object.labels_mut();
                labels.insert(REGISTERED_BY.to_owned(), JOIN_SERVICE.to_owned());
            }
            _ => {}
        }
        object
    }

    /// Decides which of several objects with the same ID counts, the least one first: one that a key was
    /// bound to, then the one that is named after the ID, then the oldest.
    ///
    /// # Security
    /// An account that may create objects, as the registration server may, must not be able to displace a
    /// machine whose disk key exists.
    pub fn precedence(&self) -> impl Ord + use<> {
        let name = self.name_any();
        let is_canonical = name.strip_prefix("machine-") == Some(self.spec.id.as_str());
        let made = self.creation_timestamp();
        (self.bound_key().is_none(), !is_canonical, made, name)
    }

    /// The name of the object that the registration server creates for a machine.
    pub fn name_of(id: &MachineId) -> String {
        format!("machine-{id}")
    }

    /// How the machine is displayed: the name of its node, if it has one, and its ID. Commands of
    /// `kubectl tec` accept either.
    pub fn label(&self) -> String {
        match &self.spec.node_name {
            Some(name) => format!("{name} ({})", self.spec.id),
            None => self.spec.id.clone(),
        }
    }

    /// The ID, parsed.
    pub fn machine_id(&self) -> Result<MachineId, ConvertError> {
        self.spec
            .id
            .parse()
            .map_err(|source| ConvertError::MachineId { name: self.name_any(), source })
    }

    /// The machine as a domain object: active once a key was bound to it.
    pub fn to_core(&self) -> Result<machine::Machine, ConvertError> {
        let by_admin = self.annotations().get(REGISTERED_BY).is_some_and(|v| v == ADMIN);
        let by_join = self.labels().get(REGISTERED_BY).is_some_and(|v| v == JOIN_SERVICE);
        let registered_by = if by_admin {
            RegisteredBy::Admin
        } else if by_join {
            RegisteredBy::JoinService
        } else {
            RegisteredBy::FirstBoot
        };
        let registered_at = stamped_at(self, REGISTERED_AT)?;
        let mut machine =
            machine::Machine::unclaimed(self.machine_id()?, registered_by, registered_at);
        machine.state = self.state();
        machine.binding = self.bound_key().and_then(BoundKey::to_core);
        Ok(machine)
    }

    /// Its current state.
    pub fn state(&self) -> MachineState {
        if self.spec.revoked_at.is_some() {
            MachineState::Revoked
        } else if self.spec.retired_at.is_some() {
            MachineState::Retired
        } else if self.spec.quarantined_at.is_some() {
            MachineState::Quarantined
        } else if self.bound_key().is_some() {
            MachineState::Active
        } else {
            MachineState::Unclaimed
        }
    }

    /// The key that it is bound to. This object does not show whether the object with that name still holds
    /// this key and was not revoked.
    pub fn bound_key(&self) -> Option<&BoundKey> {
        self.status.as_ref()?.attestation_key.as_ref()
    }
}
