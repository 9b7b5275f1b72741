//! `AttestationKey`: the public key with which one machine's TPM signs.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use kube::KubeSchema;
use kube::ResourceExt as _;
use serde::Deserialize;
use serde::Serialize;
use tec_core::ak::AkRecord;
use tec_core::ak::AkState;
use tec_core::ak::PublicKey;
use tec_core::id::MachineId;
use tec_core::time::Timestamp;

use super::condition::ConditionKind;
use super::condition::Reason;
use super::condition::conditions_schema;
use super::condition::set_condition;
use super::convert::ConvertError;
use super::convert::created_at;

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
    printcolumn = r#"{"name":"Machine","type":"string","jsonPath":".spec.uuid"}"#,
    printcolumn = r#"{"name":"Approved","type":"string","jsonPath":".status.conditions[?(@.type==\"Approved\")].status"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct AttestationKeySpec {
    /// The key: PEM with the label PUBLIC KEY.
    pub public_key: String,

    /// Id of the machine that it was submitted for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub uuid: Option<String>,
}

/// What is known of the key.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AttestationKeyStatus {
    /// `Approved`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Vec<Condition>,
}

impl AttestationKey {
    /// The object for a submitted key.
    ///
    /// Its name is made from the key's fingerprint, so that the API server itself refuses a second
    /// object for the same key. `now` stamps the condition.
    ///
    /// # Errors
    /// A revoked key has no object: revocation deletes it.
    pub fn from_core(record: &AkRecord, now: Timestamp) -> Result<Self, ConvertError> {
        let fingerprint = record.fingerprint();
        let reason = match record.state {
            AkState::Bound => Reason::MachineCreated,
            AkState::Pending => Reason::Registration,
            _ => {
                return Err(ConvertError::Revoked {
                    name: fingerprint.to_string(),
                });
            }
        };
        let name = format!("ak-{fingerprint}");
        let mut object = Self::new(
            &name,
            AttestationKeySpec {
                public_key: record.public.to_pem(),
                uuid: Some(record.machine.to_string()),
            },
        );
        let status = object.status.get_or_insert_default();
        set_condition(
            &mut status.conditions,
            ConditionKind::Approved,
            reason,
            "",
            None,
            now,
        )?;
        Ok(object)
    }

    /// The key, parsed.
    pub fn public(&self) -> Result<PublicKey, ConvertError> {
        PublicKey::from_pem(&self.spec.public_key).map_err(|source| ConvertError::PublicKey {
            name: self.name_any(),
            source,
        })
    }

    /// The machine that it was submitted for.
    pub fn machine_id(&self) -> Result<MachineId, ConvertError> {
        let uuid = self
            .spec
            .uuid
            .as_deref()
            .ok_or_else(|| ConvertError::NoMachine {
                name: self.name_any(),
            })?;
        uuid.parse().map_err(|source| ConvertError::MachineId {
            name: self.name_any(),
            source,
        })
    }

    /// The key as the domain knows it; bound exactly when the condition `Approved` is true.
    pub fn to_core(&self) -> Result<AkRecord, ConvertError> {
        let submitted_at = created_at(&self.metadata)?;
        let mut record = AkRecord::pending(self.public()?, self.machine_id()?, None, submitted_at);
        if self.is_approved() {
            record.state = AkState::Bound;
        }
        Ok(record)
    }

    fn is_approved(&self) -> bool {
        let conditions = self.status.iter().flat_map(|status| &status.conditions);
        conditions
            .filter(|condition| condition.type_ == ConditionKind::Approved.as_str())
            .any(|condition| condition.status == "True")
    }
}
