//! `TrustedExecutionCluster`: one per namespace, says where nodes reach the services.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use kube::KubeSchema;
use serde::Deserialize;
use serde::Serialize;

use super::condition::conditions_schema;

/// Addresses, ports and certificates of the services that nodes talk to.
///
/// A field cannot change once it is set. `publicTrusteeAddr` may be added later; for all others it
/// is fixed at creation whether they are there (upstream-operator 1.2).
#[derive(
    CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize,
)]
#[kube(
    group = "trusted-execution-clusters.io",
    version = "v1alpha1",
    kind = "TrustedExecutionCluster",
    plural = "trustedexecutionclusters",
    shortname = "tec",
    category = "trusted-execution",
    namespaced,
    status = "TrustedExecutionClusterStatus",
    derive = "PartialEq",
    doc = "A cluster whose nodes prove what they booted before they get the key of their disk.",
    printcolumn(
        name = "Address",
        type_ = "string",
        json_path = ".spec.publicTrusteeAddr",
        description = "Where nodes reach the key broker"
    ),
    printcolumn(
        name = "Installed",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Installed\")].status"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Installed\")].reason",
        priority = 1
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(oldSelf.publicTrusteeAddr) || has(self.publicTrusteeAddr)").message("Value is required once set"),
    validation = Rule::new("!has(oldSelf.publicAttestationKeyRegisterAddr) || has(self.publicAttestationKeyRegisterAddr)").message("Value is required once set"),
    validation = Rule::new("has(oldSelf.publicAttestationKeyRegisterAddr) || !has(self.publicAttestationKeyRegisterAddr)").message("Value must be set at creation"),
    validation = Rule::new("!has(oldSelf.trusteeSecret) || has(self.trusteeSecret)").message("Value is required once set"),
    validation = Rule::new("has(oldSelf.trusteeSecret) || !has(self.trusteeSecret)").message("Value must be set at creation"),
    validation = Rule::new("!has(oldSelf.registerServerSecret) || has(self.registerServerSecret)").message("Value is required once set"),
    validation = Rule::new("has(oldSelf.registerServerSecret) || !has(self.registerServerSecret)").message("Value must be set at creation"),
    validation = Rule::new("!has(oldSelf.attestationKeyRegisterSecret) || has(self.attestationKeyRegisterSecret)").message("Value is required once set"),
    validation = Rule::new("has(oldSelf.attestationKeyRegisterSecret) || !has(self.attestationKeyRegisterSecret)").message("Value must be set at creation"),
    validation = Rule::new("!has(oldSelf.trusteeKbsPort) || has(self.trusteeKbsPort)").message("Value is required once set"),
    validation = Rule::new("has(oldSelf.trusteeKbsPort) || !has(self.trusteeKbsPort)").message("Value must be set at creation"),
    validation = Rule::new("!has(oldSelf.registerServerPort) || has(self.registerServerPort)").message("Value is required once set"),
    validation = Rule::new("has(oldSelf.registerServerPort) || !has(self.registerServerPort)").message("Value must be set at creation"),
    validation = Rule::new("!has(oldSelf.attestationKeyRegisterPort) || has(self.attestationKeyRegisterPort)").message("Value is required once set"),
    validation = Rule::new("has(oldSelf.attestationKeyRegisterPort) || !has(self.attestationKeyRegisterPort)").message("Value must be set at creation")
)]
#[non_exhaustive]
pub struct TrustedExecutionClusterSpec {
    /// Address at which nodes reach the key broker: host and optional port, no scheme.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("Value is immutable"))]
    pub public_trustee_addr: Option<String>,

    /// Address at which nodes register their attestation key: host and optional port, no scheme.
    /// Without it nodes are not told to register one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("Value is immutable"))]
    pub public_attestation_key_register_addr: Option<String>,

    /// Name of the Secret with tls.crt, tls.key and ca.crt of the key broker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("Value is immutable"))]
    pub trustee_secret: Option<String>,

    /// Name of the Secret with tls.crt and tls.key of the registration server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("Value is immutable"))]
    pub register_server_secret: Option<String>,

    /// Name of the Secret with tls.crt, tls.key and ca.crt of the attestation key server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("Value is immutable"))]
    pub attestation_key_register_secret: Option<String>,

    /// Port of the key broker's Service; 8080 where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("Value is immutable"))]
    pub trustee_kbs_port: Option<i32>,

    /// Port of the registration server's Service; 8000 where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("Value is immutable"))]
    pub register_server_port: Option<i32>,

    /// Port of the attestation key server's Service; 8001 where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("Value is immutable"))]
    pub attestation_key_register_port: Option<i32>,
}

/// What is known of the cluster.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TrustedExecutionClusterStatus {
    /// `Installed` and `KnownTrusteeAddress`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Vec<Condition>,
}
