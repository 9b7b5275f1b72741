//! `AttestationKey`: the public key that one machine's TPM signs with.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema, ResourceExt as _};
use serde::{Deserialize, Serialize};
use tec_core::ak::{AkRecord, AkState, Fingerprint, PublicKey, SourceNetwork};
use tec_core::id::MachineId;

use super::condition::{ConditionKind, conditions_schema};
use super::convert::{ConvertError, stamp, stamped_at, time_schema};
use super::machine::Machine;
use super::rule::{immutable, stays_set};

/// When it was submitted, if that differs from when the object was created.
const SUBMITTED_AT: &str = "trusted-execution-clusters.io/submitted-at";
/// The network that submitted it, as seen by the server.
const SOURCE: &str = "trusted-execution-clusters.io/source";

/// A TPM's attestation key, submitted for a machine.
#[derive(
    CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize,
)]
#[kube(
    group = "trusted-execution-clusters.io",
    version = "v1alpha1",
    kind = "AttestationKey",
    plural = "attestationkeys",
    shortname = "tecak",
    category = "trusted-execution",
    namespaced,
    status = "AttestationKeyStatus",
    derive = "PartialEq",
    attr = "non_exhaustive",
    doc = "The public key with which the TPM of a machine signs.",
    selectable = ".spec.uuid",
    printcolumn = r#"{"name":"Machine","type":"string","jsonPath":".spec.uuid"}"#,
    printcolumn = r#"{"name":"Approved","type":"string","jsonPath":".status.conditions[?(@.type==\"Approved\")].status"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Approved\")].reason"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = stays_set("revokedAt"))]
#[non_exhaustive]
pub struct AttestationKeySpec {
    /// The key: PEM with the label PUBLIC KEY.
    pub public_key: String,

    /// ID of the machine that it was submitted for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub uuid: Option<String>,

    /// SHA-256 fingerprint, in hexadecimal, of the endorsement key that was proven to be in the same TPM. Set
    /// by the server that checked the proof.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub endorsement_key: Option<String>,

    /// When the key was revoked, RFC 3339; final. The object stays, so that the key cannot be submitted
    /// again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time_schema")]
    #[x_kube(validation = immutable())]
    pub revoked_at: Option<String>,
}

/// Observed state of the key.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct AttestationKeyStatus {
    /// `Approved`, and `AdminApproved`, which an admin sets for the generation that they examined.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Vec<Condition>,

    /// The metadata.generation that the operator acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64")]
    pub observed_generation: Option<i64>,
}

impl AttestationKey {
    /// The object for a submitted key.
    ///
    /// Its name is derived from the key's fingerprint, so that the API server itself refuses a second object
    /// for the same key. The binding is not recorded here, but in its machine.
    pub fn from_core(record: &AkRecord) -> Self {
        let mut spec = AttestationKeySpec {
            public_key: record.public.to_pem(),
            uuid: Some(record.machine.to_string()),
            endorsement_key: record.ek.map(|ek| ek.to_string()),
            revoked_at: None,
        };
        if record.state == AkState::Revoked {
            spec.revoked_at = Some(record.submitted_at.to_string());
        }
        let mut object = Self::new(&Self::name_of(&record.fingerprint()), spec);
        stamp(&mut object, SUBMITTED_AT, record.submitted_at);
        if let Some(source) = record.source {
            let source = source.to_string();
            object.annotations_mut().insert(SOURCE.to_owned(), source);
        }
        object
    }

    /// The name of a key's object: `ak-` and the first 32 hexadecimal digits of its fingerprint.
    pub fn name_of(key: &Fingerprint) -> String {
        let text = key.to_string();
        format!("ak-{}", text.get(..32).unwrap_or(&text))
    }

    /// The key, parsed.
    pub fn public(&self) -> Result<PublicKey, ConvertError> {
        PublicKey::from_pem(&self.spec.public_key)
            .map_err(|source| ConvertError::PublicKey { name: self.name_any(), source })
    }

    /// The machine that it was submitted for.
    pub fn machine_id(&self) -> Result<MachineId, ConvertError> {
        let uuid =
            self.spec.uuid.as_deref().ok_or_else(|| ConvertError::NoMachine(self.name_any()))?;
        uuid.parse().map_err(|source| ConvertError::MachineId { name: self.name_any(), source })
    }

    /// The network that it was submitted from.
    pub fn source(&self) -> Option<SourceNetwork> {
        self.annotations().get(SOURCE)?.parse().ok()
    }

    /// The endorsement key that was proven.
    pub fn endorsement_key(&self) -> Result<Option<Fingerprint>, ConvertError> {
        let parse = |text: &String| {
            text.parse()
                .map_err(|source| ConvertError::EndorsementKey { name: self.name_any(), source })
        };
        self.spec.endorsement_key.as_ref().map(parse).transpose()
    }

    /// The key as a domain object. `machine` is the machine that it was submitted for, if that exists: the
    /// key is bound if and only if that machine names both this object and its key.
    pub fn to_core(&self, machine: Option<&Machine>) -> Result<AkRecord, ConvertError> {
        let submitted_at = stamped_at(self, SUBMITTED_AT)?;
        let (public, id) = (self.public()?, self.machine_id()?);
        let mut record = AkRecord::pending(public, id, self.endorsement_key()?, submitted_at);
        record.source = self.source();
        if self.spec.revoked_at.is_some() {
            record.state = AkState::Revoked;
        } else if let Some(machine) = machine.filter(|machine| self.is_bound_by(machine, &record)) {
            record.state = AkState::Bound;
            let bound = machine.bound_key().and_then(|key| key.claimed_from.as_ref());
            record.source = bound.and_then(|text| text.parse().ok());
        }
        Ok(record)
    }

    fn is_bound_by(&self, machine: &Machine, record: &AkRecord) -> bool {
        let names_it = machine.bound_key().is_some_and(|bound| {
            bound.name == self.name_any() && bound.fingerprint == record.fingerprint().to_string()
        });
        names_it && machine.machine_id().is_ok_and(|id| id == record.machine)
    }

    /// Whether an admin approved the object in its current state.
    pub fn is_approved_by_admin(&self) -> bool {
        let conditions = self.status.iter().flat_map(|status| &status.conditions);
        conditions.filter(|condition| condition.type_ == ConditionKind::AdminApproved.as_str()).any(
            |condition| {
                condition.status == "True"
                    && condition.observed_generation == self.metadata.generation
                    && self.metadata.generation.is_some()
            },
        )
    }
}
