//! `TrustedExecutionCluster`: one per namespace; states where nodes reach the services.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use tec_core::boot::Pins;
use tec_core::endpoint::Endpoint;

use super::condition::conditions_schema;
use super::evidence::EvidenceSpec;
use super::is_paused;
use super::issuer::CertificateIssuer;
use super::policy::{
    ApprovalPolicy, ApprovalSpec, BrokerKind, ImageSignaturesSpec, MachineOwnerKeysSpec,
    PublishSpec, REGISTRATION_TOKEN, RegistrationMode, RegistrationSpec, TargetStatus,
};
use super::rule::{azure_needs_builtin, immutable, only_to_false, set_at_creation, stays_set};
use super::trustee::{AdditionalTrustee, AdditionalTrusteeError, endpoints};
use super::untrusted::OnUntrustedSpec;

/// Addresses, ports and certificates of the services that nodes talk to.
///
/// A field cannot change once it is set. Only publicTrusteeAddr may be added later.
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
    attr = "non_exhaustive",
    doc = "A cluster whose nodes prove what they booted before they get the key of their disk.",
    printcolumn = r#"{"name":"Address","type":"string","jsonPath":".spec.publicTrusteeAddr","description":"Where nodes reach the key broker"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Installed","type":"string","jsonPath":".status.conditions[?(@.type==\"Installed\")].status"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Installed\")].reason","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = stays_set("publicTrusteeAddr"),
    validation = stays_set("publicAttestationKeyRegisterAddr"),
    validation = set_at_creation("publicAttestationKeyRegisterAddr"),
    validation = stays_set("trusteeSecret"),
    validation = set_at_creation("trusteeSecret"),
    validation = stays_set("registerServerSecret"),
    validation = set_at_creation("registerServerSecret"),
    validation = stays_set("attestationKeyRegisterSecret"),
    validation = set_at_creation("attestationKeyRegisterSecret"),
    validation = stays_set("certificateIssuer"),
    validation = set_at_creation("certificateIssuer"),
    validation = stays_set("trusteeKbsPort"),
    validation = set_at_creation("trusteeKbsPort"),
    validation = stays_set("registerServerPort"),
    validation = set_at_creation("registerServerPort"),
    validation = stays_set("attestationKeyRegisterPort"),
    validation = set_at_creation("attestationKeyRegisterPort"),
    validation = stays_set("dangerousPlainHttp"),
    validation = azure_needs_builtin(),
)]
#[non_exhaustive]
pub struct TrustedExecutionClusterSpec {
    /// Address at which nodes reach the key broker: host and optional port, no scheme.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    #[x_kube(validation = immutable())]
    pub public_trustee_addr: Option<String>,

    /// Further key brokers that nodes try after publicTrusteeAddr, in this order, such as the one of the
    /// trust anchor that trust moves to or from. New nodes get the list as it is when they register.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub additional_trustees: Vec<AdditionalTrustee>,

    /// Address at which nodes register their attestation key: host and optional port, no scheme. Without it,
    /// nodes are not instructed to register one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    #[x_kube(validation = immutable())]
    pub public_attestation_key_register_addr: Option<String>,

    /// Address at which nodes reach the registration server: host and optional port, no scheme. The
    /// certificate that the operator issues for it has this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub public_register_server_addr: Option<String>,

    /// Whether servers without a Secret use plain HTTP. By default they use TLS with certificates that the
    /// operator issues. It can become false later, but never true again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool")]
    #[x_kube(validation = only_to_false())]
    pub dangerous_plain_http: Option<bool>,

    /// Name of a PersistentVolumeClaim for the audit chain of the guard. Without one, the chain is lost with
    /// the pod, as the condition AuditDurable reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub guard_state_claim: Option<String>,

    /// Name of the Secret with tls.crt, tls.key and ca.crt of the key broker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    #[x_kube(validation = immutable())]
    pub trustee_secret: Option<String>,

    /// Name of the Secret with tls.crt and tls.key of the registration server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    #[x_kube(validation = immutable())]
    pub register_server_secret: Option<String>,

    /// Name of the Secret with tls.crt, tls.key and ca.crt of the attestation key server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    #[x_kube(validation = immutable())]
    pub attestation_key_register_secret: Option<String>,

    /// cert-manager issuer for the servers whose Secret is not named (experimental). By default the operator
    /// issues their certificates itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "CertificateIssuer")]
    #[x_kube(validation = immutable())]
    pub certificate_issuer: Option<CertificateIssuer>,

    /// Port of the key broker's Service (default 8080).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32")]
    #[x_kube(validation = immutable())]
    pub trustee_kbs_port: Option<i32>,

    /// Port of the registration server's Service (default 8000).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32")]
    #[x_kube(validation = immutable())]
    pub register_server_port: Option<i32>,

    /// Port of the attestation key server's Service (default 8001).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32")]
    #[x_kube(validation = immutable())]
    pub attestation_key_register_port: Option<i32>,

    /// Who may register machines, and how many may wait. By default, nodes must present the token of the
    /// Secret `registration-token`, which the operator creates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "RegistrationSpec")]
    pub registration: Option<RegistrationSpec>,

    /// Requirements for binding an attestation key to a machine (default first use).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ApprovalSpec")]
    pub approval: Option<ApprovalSpec>,

    /// The key broker that releases disk keys: Trustee (default) or Builtin. It can be changed at any
    /// time; address, port and certificate stay the same, so nodes need no change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "BrokerKind")]
    pub key_broker: Option<BrokerKind>,

    /// Replicas of the built-in key broker (default 2). Trustee has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "replicas_schema")]
    pub key_broker_replicas: Option<i32>,

    /// How Trustees are updated (default: only the cluster's own, through its admin API).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "PublishSpec")]
    pub publish: Option<PublishSpec>,

    /// Machine owner keys that the machines have enrolled, so that the Job of an image can predict PCR 14. A
    /// change applies to images measured from then on. If absent, PCR 14 is pinned only for images whose
    /// label states it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "MachineOwnerKeysSpec")]
    pub machine_owner_keys: Option<MachineOwnerKeysSpec>,

    /// Who must have signed an image before it is measured (default nobody). A change applies to images
    /// measured from then on. Their labels and boot files must then agree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ImageSignaturesSpec")]
    pub image_signatures: Option<ImageSignaturesSpec>,

    /// Evidence that nodes may attest with (default TPM quotes).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "EvidenceSpec")]
    pub evidence: Option<EvidenceSpec>,

    /// What is done about a machine that no longer attests well after boot (default nothing).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "OnUntrustedSpec")]
    pub on_untrusted: Option<OnUntrustedSpec>,
}

impl TrustedExecutionCluster {
    /// Whether an admin paused the operator in the namespace.
    pub fn is_paused(&self) -> bool {
        is_paused(self)
    }

    /// The key broker that releases disk keys.
    pub fn key_broker(&self) -> BrokerKind {
        self.spec.key_broker.unwrap_or_default()
    }

    /// The key brokers that nodes try, in this order, after the cluster's own.
    pub fn additional_trustees(&self) -> Result<Vec<Endpoint>, AdditionalTrusteeError> {
        endpoints(self.spec.public_trustee_addr.as_deref(), &self.spec.additional_trustees)
    }

    /// Who may register machines.
    pub fn registration_mode(&self) -> RegistrationMode {
        let said = self.spec.registration.as_ref();
        said.map(|said| said.mode).unwrap_or_default()
    }

    /// The approval settings, if keys need the proof of an endorsement key.
    pub fn endorsement(&self) -> Option<&ApprovalSpec> {
        let approval = self.spec.approval.as_ref();
        approval.filter(|approval| approval.policy == ApprovalPolicy::EndorsementKey)
    }

    /// The ConfigMap with the CA certificates of endorsement keys, if they are checked.
    pub fn endorsement_roots(&self) -> Option<&str> {
        self.endorsement()?.endorsement_roots_config_map.as_deref()
    }

    /// The Secret with the token that nodes must present, if they must present one.
    pub fn token_secret(&self) -> Option<&str> {
        let said = self.spec.registration.as_ref();
        let named = said.and_then(|said| said.token_secret.as_deref());
        match self.registration_mode() {
            RegistrationMode::Token => Some(named.unwrap_or(REGISTRATION_TOKEN)),
            _ => named,
        }
    }
}

/// Observed state of the cluster.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TrustedExecutionClusterStatus {
    /// `Ready`, `Installed`, `TLS`, `CertificateAuthority`, `AuditDurable`, `KnownTrusteeAddress` and
    /// `ActsOnUntrusted`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Vec<Condition>,

    /// The metadata.generation that the operator acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64")]
    pub observed_generation: Option<i64>,

    /// Version of the operator that last reconciled it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub observed_operator_version: Option<String>,

    /// The Trustees that receive updates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetStatus>,

    /// Whether the registers that a boot must match are those that the prediction of its image states, or the
    /// same for every image (default Exactly).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "PinsKind")]
    pub pins: Option<PinsKind>,

    /// TPM registers that the boot of every approved image must match; the status of an ApprovedImage lists
    /// everything that its boots must match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "registers_schema")]
    pub pinned_pcrs: Vec<u8>,
}

/// At least one replica; the maximum is more than any fleet needs.
fn replicas_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer", "format": "int32", "minimum": 1, "maximum": 100})
}

/// How the registers that a boot must match are chosen.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[non_exhaustive]
pub enum PinsKind {
    /// The registers that the prediction of each image states.
    Predicted,
    /// The same registers for every image.
    #[default]
    Exactly,
}

impl From<Pins> for PinsKind {
    fn from(pins: Pins) -> Self {
        match pins {
            Pins::Predicted => Self::Predicted,
            Pins::Exactly(_) => Self::Exactly,
        }
    }
}

/// Register numbers (TCG PC Client Platform TPM Profile: 0 to 23). Kubernetes has no unsigned formats.
pub(super) fn registers_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": {"type": "integer", "format": "int32", "minimum": 0, "maximum": 23},
    })
}
