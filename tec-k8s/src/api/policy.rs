//! What a cluster may say about registration, approval and publishing. All of it is optional: a
//! cluster object without it means what it means in existing clusters.

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::rule::roots_need_their_policy;

/// A number of things. Kubernetes knows no unsigned formats.
fn count_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer", "format": "int64", "minimum": 0, "maximum": u32::MAX})
}

/// Who may register a machine.
#[derive(
    JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize,
)]
#[non_exhaustive]
pub enum RegistrationMode {
    /// Every node that reaches the registration server: strangers fill the cluster up to the limits,
    /// each with a machine and a disk key. Named on purpose, and warned about.
    Open,
    /// Nodes that show the token.
    #[default]
    Token,
    /// Nobody: an admin makes the machines.
    Manual,
}

/// Secret with the key that all replicas of the server for attestation keys derive challenges from, 32 bytes
/// in its entry `key`.
pub const CHALLENGE_KEY: &str = "endorsement-challenge-key";

/// Secret with the token that nodes show to register, where the cluster object names none.
pub const REGISTRATION_TOKEN: &str = "registration-token";

/// Registration of machines.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct RegistrationSpec {
    /// Who may register: Token (default), Manual, or Open, which lets every stranger register.
    #[serde(default)]
    pub mode: RegistrationMode,

    /// Name of the Secret whose entry `token` a node has to show, for the mode Token. Where absent, the
    /// operator makes the Secret `registration-token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub token_secret: Option<String>,

    /// The most machines that may wait without an attestation key; 1000 where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "count_schema")]
    pub max_unclaimed: Option<u32>,

    /// Seconds after which a machine without an attestation key is removed; a day where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "count_schema")]
    pub unclaimed_ttl_seconds: Option<u32>,
}

/// The machine owner keys of a cluster's machines, from which PCR 14 is predicted.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct MachineOwnerKeysSpec {
    /// Name of a ConfigMap with the files that such a machine has in /sys/firmware/efi/mok-variables.
    /// If absent, no machine has keys enrolled beside those of shim's vendor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub config_map: Option<String>,
}

/// What an attestation key needs to be bound to a machine.
#[derive(
    JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize,
)]
#[non_exhaustive]
pub enum ApprovalPolicy {
    /// To be the first one of its machine.
    #[default]
    FirstUse,
    /// To be the first one, and proven to be in the TPM of an endorsement key.
    EndorsementKey,
    /// To be approved by an admin.
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
    /// EndorsementKey; all of them if the list is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_endorsement_keys: Vec<String>,

    /// Name of a ConfigMap whose entry `ca.crt` has the CA certificates, PEM, that certificates of
    /// endorsement keys must chain to, with the policy EndorsementKey. While it is missing or has no
    /// certificate, no key is accepted. Default: certificates are not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub endorsement_roots_config_map: Option<String>,

    /// The most machines that first use may let in; further keys wait for an admin. 10000 where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "count_schema")]
    pub max_claimed: Option<u32>,

    /// The most of them from one network, as the server for attestation keys sees it: one IPv4 address,
    /// or 64 bits of an IPv6 address. 1000 where absent.
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
    /// A Trustee that the operator deploys and feeds, behind the guard.
    #[default]
    Trustee,
    /// The key broker of this project, which reads the objects of the cluster itself.
    Builtin,
}

/// How the cluster's own Trustee is fed.
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

/// A Trustee outside of this cluster.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct PublishTarget {
    /// Its name in the status, unique in the list.
    pub name: String,

    /// Where its key broker is, with scheme: `https://kbs.example:8080`.
    pub url: String,

    /// Name of the Secret whose entry `private.key` signs the admin's tokens, and whose entry `url`
    /// is the URL above, letter by letter: without it no key is sent there.
    pub admin_key_secret: String,

    /// Name of the Secret whose entry `ca.crt` its certificate is checked against, and whose entry
    /// `url` is the URL above; the public authorities where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub ca_secret: Option<String>,
}

/// Publishing to Trustees.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct PublishSpec {
    /// How the cluster's own Trustee is fed: KbsApi or Volumes.
    #[serde(default)]
    pub mode: PublishMode,

    /// Further Trustees, all with the same content.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<PublishTarget>,
}

/// How far publishing to one Trustee came.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TargetStatus {
    /// Name of the Trustee; `trustee` is the cluster's own.
    pub name: String,

    /// Whether it holds what it should.
    pub converged: bool,

    /// Changes that it does not have yet.
    #[serde(default)]
    #[schemars(schema_with = "count_schema")]
    pub lag: u32,

    /// What is wrong, where something is.
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
