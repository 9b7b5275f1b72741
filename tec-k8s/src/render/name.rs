//! Names, labels and ports (trusted-cluster-operator). Running clusters contain them: none may change.

pub use crate::api::FIELD_MANAGER;

/// Namespace of the packages, unless an admin picks another.
pub const DEFAULT_NAMESPACE: &str = "trusted-execution-clusters";

/// ConfigMap with the configuration of the key broker.
pub const TRUSTEE_DATA: &str = "trustee-data";
/// Its key.
pub(super) const TRUSTEE_CONFIG_KEY: &str = "kbs-config.toml";
/// Secret with the key pair of the admin API, `private.key` and `public.pub`, for the operator only, and
/// ConfigMap with the public half, for the pod.
pub const TRUSTEE_AUTH: &str = "trustee-auth";
/// The only key that the pod sees.
pub(super) const TRUSTEE_AUTH_PUBLIC: &str = "public.pub";
/// Audience of the operator's admin tokens, so that no other Trustee accepts them.
pub const ADMIN_AUDIENCE: &str = "tec-trustee-admin";
/// Secret with the signer of attestation tokens: `tls.key`, `tls.crt` and, trusted by the key
/// broker, `ca.crt`; the layout that cert-manager writes.
pub const TRUSTEE_SIGNER: &str = "trustee-token-signer";
/// Secret with the key that the replicas of the built-in key broker share for their sessions; created once.
pub const BROKER_SESSION: &str = "broker-session";
/// Its entry: 32 random bytes.
pub const BROKER_SESSION_KEY: &str = "key";
/// Deployment of the key broker.
pub const TRUSTEE_DEPLOYMENT: &str = "trustee-deployment";
/// Service of the key broker.
pub const KBS_SERVICE: &str = "kbs-service";

/// Port where the programs serve `/metrics`, `/livez` and `/readyz` over plain HTTP.
pub const METRICS_PORT: u16 = 9090;
/// Its name in pods and Services.
pub(super) const METRICS_PORT_NAME: &str = "metrics";

/// Port of the container, and of the Service unless the cluster object names one
/// (trusted-cluster-operator).
pub(super) const KBS_PORT: u16 = 8080;
/// The same for the registration server.
pub(super) const REGISTER_SERVER_PORT: u16 = 8000;
/// The same for the server that accepts attestation keys.
pub(super) const ATTESTATION_KEY_REGISTER_PORT: u16 = 8001;

/// A program with its own service account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Component {
    /// The controllers.
    Operator,
    /// Key broker and guard.
    Trustee,
    /// The built-in key broker.
    KeyBroker,
    /// Provides Ignition configs.
    RegisterServer,
    /// Accepts attestation keys.
    AttestationKeyRegister,
    /// Computes what an image measures.
    ComputePcrs,
}

impl Component {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Operator,
        Self::Trustee,
        Self::KeyBroker,
        Self::RegisterServer,
        Self::AttestationKeyRegister,
        Self::ComputePcrs,
    ];

    /// Its service account, Role and RoleBinding.
    pub const fn service_account(self) -> &'static str {
        match self {
            Self::Operator => "trusted-cluster-operator",
            Self::Trustee => "trustee",
            Self::KeyBroker => "key-broker",
            Self::RegisterServer => "register-server",
            Self::AttestationKeyRegister => "attestation-key-register",
            Self::ComputePcrs => "compute-pcrs",
        }
    }

    /// Value of the label `app`, by which Services, policies and existing clusters select its pods.
    pub const fn app(self) -> &'static str {
        match self {
            Self::Trustee => "kbs",
            other => other.service_account(),
        }
    }

    /// Name of its Deployment.
    pub const fn deployment(self) -> &'static str {
        match self {
            Self::Trustee => TRUSTEE_DEPLOYMENT,
            other => other.service_account(),
        }
    }
}

/// An image that the operator deploys, set by an environment variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RelatedImage {
    /// The key broker service.
    Trustee,
    /// The guard in front of it.
    KbsGuard,
    /// The built-in key broker.
    KeyBroker,
    /// The registration server.
    RegistrationServer,
    /// The server that accepts attestation keys.
    AttestationKeyRegister,
    /// Computes what an image measures.
    ComputePcrs,
}

impl RelatedImage {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Trustee,
        Self::KbsGuard,
        Self::KeyBroker,
        Self::RegistrationServer,
        Self::AttestationKeyRegister,
        Self::ComputePcrs,
    ];

    /// The variable (trusted-cluster-operator).
    pub const fn variable(self) -> &'static str {
        match self {
            Self::Trustee => "RELATED_IMAGE_TRUSTEE",
            Self::KbsGuard => "RELATED_IMAGE_KBS_GUARD",
            Self::KeyBroker => "RELATED_IMAGE_KEY_BROKER",
            Self::RegistrationServer => "RELATED_IMAGE_REGISTRATION_SERVER",
            Self::AttestationKeyRegister => "RELATED_IMAGE_ATTESTATION_KEY_REGISTER",
            Self::ComputePcrs => "RELATED_IMAGE_COMPUTE_PCRS",
        }
    }

    /// Last segment of the image's name.
    pub const fn image_name(self) -> &'static str {
        match self {
            Self::Trustee => "key-broker-service",
            Self::KbsGuard => "tec-kbs-guard",
            Self::KeyBroker => "tec-key-broker",
            Self::RegistrationServer => "tec-register",
            Self::AttestationKeyRegister => "tec-attestation-key-register",
            Self::ComputePcrs => "tec-compute-pcrs",
        }
    }

    /// The image of this release, in the registry that it was pushed to. The Trustee is another project's and
    /// comes from that project.
    pub fn image_in(self, registry: &str) -> String {
        match self {
            Self::Trustee => TRUSTEE_IMAGE.to_owned(),
            ours => image(registry, ours.image_name()),
        }
    }
}

/// The Trustee's own release of the generation v0.21, with the attestation service built in (its
/// kbs/config/kubernetes/base/kustomization.yaml).
const TRUSTEE_IMAGE: &str =
    "ghcr.io/confidential-containers/key-broker-service:built-in-as-v0.21.0";

/// Image of the operator, without its registry and tag.
pub const OPERATOR_IMAGE: &str = "tec-operator";
/// Stands for the registry in manifests until someone names the one that images were pushed to. The domain
/// `.invalid` never resolves (RFC 2606, section 2), so nothing is pulled from it.
pub const NO_REGISTRY: &str = "registry.invalid";
/// Variable with the registry of this release's images.
pub const REGISTRY_VARIABLE: &str = "TEC_REGISTRY";

/// An image of this release.
pub fn image(registry: &str, name: &str) -> String {
    format!("{}/{name}:v{}", registry.trim_end_matches('/'), env!("CARGO_PKG_VERSION"))
}
