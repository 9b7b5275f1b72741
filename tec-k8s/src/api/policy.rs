//! Settings for registration, approval and publishing. All are optional: a cluster object without them
//! behaves as in existing clusters.

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::rule::roots_need_their_policy;

/// A count. Kubernetes has no unsigned formats.
fn count_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer", "format": "int64", "minimum": 0, "maximum": u32::MAX})
}

/// Who may register a machine.
#[derive(
    JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize,
)]
#[non_exhaustive]
pub enum RegistrationMode {
    /// Any node that reaches the registration server: strangers can fill the cluster up to its limits, each
    /// with a machine and a disk key. This mode must be chosen explicitly, and causes a warning.
    Open,
    /// Nodes that present the token.
    #[default]
    Token,
    /// Nobody: an admin creates the machines.
    Manual,
}

/// Secret with the key from which all replicas of the attestation key server derive challenges: 32 bytes in
/// its entry `key`.
pub const CHALLENGE_KEY: &str = "endorsement-challenge-key";

/// Default name of the Secret with the token that nodes present to register.
pub const REGISTRATION_TOKEN: &str = "registration-token";

/// Registration of machines.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct RegistrationSpec {
    /// Who may register: Token (default), Manual, or Open, which lets every stranger register.
    #[serde(default)]
    pub mode: RegistrationMode,

    /// Name of the Secret whose entry `token` nodes must present in the mode Token. By default the operator
    /// creates the Secret `registration-token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub token_secret: Option<String>,

    /// Maximum number of machines that may wait without an attestation key (default 1000).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "count_schema")]
    pub max_unclaimed: Option<u32>,

    /// Seconds after which a machine without an attestation key is removed (default one day).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "count_schema")]
    pub unclaimed_ttl_seconds: Option<u32>,
}

/// The machine owner keys of a cluster's machines, from which PCR 14 is predicted.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct MachineOwnerKeysSpec {
    /// Name of a ConfigMap with the files that such a machine has in /sys/firmware/efi/mok-variables. By
    /// default, machines are assumed to have only the keys of shim's vendor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub config_map: Option<String>,
}

/// Who signs the images of a cluster.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ImageSignaturesSpec {
    /// Name of a ConfigMap whose entries are public keys (PEM, as `cosign generate-key-pair` writes
    /// cosign.pub). One of them must have signed an image. While the ConfigMap is missing, nothing is
    /// measured.
    pub config_map: String,
}

/// Requirements for binding an attestation key to a machine.
#[derive(
    JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize,
)]
#[non_exhaustive]
pub enum ApprovalPolicy {
    /// It must be the first key of its machine.
    #[default]
    FirstUse,
    /// It must be the first key, and be proven to be in the same TPM as an endorsement key.
    EndorsementKey,
    /// An admin must approve it.
    Manual,
}

/// Approval of attestation keys.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = roots_need_their_policy())]
#[non_exhaustive]
pub struct ApprovalSpec {
    /// FirstUse, EndorsementKey or Manual.
    #[serde(default)]
    pub policy: ApprovalPolicy,

    /// SHA-256 fingerprints, in hexadecimal, of the endorsement keys that are trusted with the policy
    /// EndorsementKey; any endorsement key if the list is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_endorsement_keys: Vec<String>,

    /// Name of a ConfigMap whose entry `ca.crt` has the CA certificates, PEM, that certificates of
    /// endorsement keys must chain to with the policy EndorsementKey. While the ConfigMap is missing or has
    /// no certificate, no key is accepted. By default, certificates are not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub endorsement_roots_config_map: Option<String>,

    /// Maximum number of machines that first use may admit; further keys wait for an admin (default 10000).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "count_schema")]
    pub max_claimed: Option<u32>,

    /// Maximum number of machines that first use may admit from one network, as seen by the attestation key
    /// server: one IPv4 address, or 64 bits of an IPv6 address (default 1000).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "count_schema")]
    pub max_claimed_per_source: Option<u32>,
}

/// The key broker that releases disk keys.
#[derive(
    JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize,
)]
#[non_exhaustive]
pub enum BrokerKind {
    /// A Trustee that the operator deploys and updates, behind the guard.
    #[default]
    Trustee,
    /// This project's key broker, which reads the objects of the cluster itself.
    Builtin,
}

/// How the cluster's own Trustee is updated.
#[derive(
    JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize,
)]
#[non_exhaustive]
pub enum PublishMode {
    /// Through its admin API.
    #[default]
    KbsApi,
    /// Through ConfigMaps and Secrets that are mounted into its pod.
    Volumes,
}

/// A Trustee outside this cluster.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct PublishTarget {
    /// Its name in the status, unique in the list.
    pub name: String,

    /// Address of its key broker, with scheme: `https://kbs.example:8080`.
    pub url: String,

    /// Name of the Secret whose entry `private.key` signs the admin's tokens, and whose entry `url` matches
    /// the URL above exactly: otherwise no key is sent there.
    pub admin_key_secret: String,

    /// Name of the Secret whose entry `ca.crt` its certificate is checked against, and whose entry `url` is
    /// the URL above (default: the public CAs).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub ca_secret: Option<String>,
}

/// Publishing to Trustees.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct PublishSpec {
    /// How the cluster's own Trustee is updated: KbsApi or Volumes.
    #[serde(default)]
    pub mode: PublishMode,

    /// Further Trustees; all receive the same content.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<PublishTarget>,
}

/// Progress of publishing to one Trustee.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TargetStatus {
    /// Name of the Trustee; `trustee` is the cluster's own.
    pub name: String,

    /// Whether it is up to date.
    pub converged: bool,

    /// Number of changes that it does not have yet.
    #[serde(default)]
    #[schemars(schema_with = "count_schema")]
    pub lag: u32,

    /// What is wrong, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub message: Option<String>,
}

impl TargetStatus {
    /// The state of a Trustee.
    pub fn new(name: impl Into<String>, lag: u32, message: Option<String>) -> Self {
        Self { name: name.into(), converged: lag == 0 && message.is_none(), lag, message }
    }
}
