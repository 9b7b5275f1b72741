//! What is deployed, as typed objects.
//!
//! ```text
//! TrustedExecutionCluster ┐
//! Deploy: images, user    ├─ cluster() ─► Objects: ConfigMap, Deployments, Services, …
//! BrokerFiles             ┘                 the controller applies them
//! Installation ───────────── operator() ─► Objects: what an admin applies beforehand
//!                                           `cargo xtask codegen` packages them
//! ```
//! *What it is*: pure functions; the same input gives the same bytes. Names, labels, ports and paths match
//! existing clusters (trusted-cluster-operator). *What it is not*: a client; this module neither reads nor
//! writes the cluster, and handles no secrets.
//!
//! # Security
//! Each program has its own service account, with a Role in its namespace, and runs without privileges on a
//! read-only file system. The key broker listens on the loopback of its pod; all requests to it pass through
//! the guard next to it. If a TLS Secret is named, it must exist before the pod starts: nothing falls back to
//! plain HTTP.

mod broker;
mod certificate;
mod definitions;
mod installation;
mod job;
mod meta;
mod name;
mod network;
mod object;
mod operator;
mod pins;
mod pod;
mod rbac;
mod server;
mod settings;
#[cfg(test)]
mod tests;
mod trustee;

use std::convert::Infallible;

use k8s_openapi::api::core::v1::SecretVolumeSource;
use tec_core::boot::Pins;

use crate::api::{BrokerKind, TrustedExecutionCluster};

pub use self::broker::{BrokerFiles, BuiltinFiles, broker_service, component_of, key_broker};
#[cfg(feature = "controller")]
pub(crate) use self::certificate::server_names;
pub use self::certificate::{CERT_MANAGER, certificate_resource, certificates};
pub use self::definitions::{DANGEROUS_DELETE, definition_guard};
pub use self::installation::Installation;
pub use self::job::{DOCKER_CONFIG, job, job_name};
pub use self::meta::RenderError;
pub use self::name::{
    ADMIN_AUDIENCE, BROKER_SESSION, BROKER_SESSION_KEY, Component, DEFAULT_NAMESPACE,
    FIELD_MANAGER, KBS_SERVICE, METRICS_PORT, NO_REGISTRY, OPERATOR_IMAGE, REGISTRY_VARIABLE,
    RelatedImage, TRUSTEE_AUTH, TRUSTEE_DATA, TRUSTEE_DEPLOYMENT, TRUSTEE_SIGNER, image,
};
pub use self::object::Object;
pub use self::operator::{namespace, operator};
pub use self::pins::{Authorities, PinsError, pins};
pub use self::rbac::{node_rights, node_rights_name, user_roles};
pub use self::server::{attestation_key_register, register_server};
pub use self::settings::{PublicService, ServiceKind, ServiceSettings, Settings, TrafficPolicy};
pub use self::trustee::{GUARD_MEMORY_MIB, TrusteeFiles, intent, mounted_intent, trustee};

/// Images of the programs, by digest or tag.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Images {
    /// The key broker service with its built-in attestation service.
    pub trustee: String,
    /// The guard in front of it.
    pub kbs_guard: String,
    /// The built-in key broker.
    pub key_broker: String,
    /// The registration server.
    pub register_server: String,
    /// The server that accepts attestation keys.
    pub attestation_key_register: String,
    /// Computes what an image measures; run as a Job.
    pub compute_pcrs: String,
}

impl Default for Images {
    /// The images of this release, in [no registry](NO_REGISTRY).
    fn default() -> Self {
        let Ok(images) = Self::try_of(|related| Ok::<_, Infallible>(related.image_in(NO_REGISTRY)));
        images
    }
}

impl Images {
    /// The images set in `variable`, which stands for the environment; otherwise, those of this release in the
    /// registry that [`REGISTRY_VARIABLE`] names.
    ///
    /// # Errors
    /// An image of this project is not set, and neither is the registry.
    pub fn from_variables(
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, NoRegistryError> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let registry = set(REGISTRY_VARIABLE);
        Self::try_of(|related| match (set(related.variable()), related, &registry) {
            (Some(image), ..) => Ok(image),
            (None, RelatedImage::Trustee, _) => Ok(related.image_in(NO_REGISTRY)),
            (None, _, Some(registry)) => Ok(related.image_in(registry)),
            (None, ..) => Err(NoRegistryError { variable: related.variable() }),
        })
    }

    fn try_of<E>(image: impl Fn(RelatedImage) -> Result<String, E>) -> Result<Self, E> {
        Ok(Self {
            trustee: image(RelatedImage::Trustee)?,
            kbs_guard: image(RelatedImage::KbsGuard)?,
            key_broker: image(RelatedImage::KeyBroker)?,
            register_server: image(RelatedImage::RegistrationServer)?,
            attestation_key_register: image(RelatedImage::AttestationKeyRegister)?,
            compute_pcrs: image(RelatedImage::ComputePcrs)?,
        })
    }

    fn of(&self, related: RelatedImage) -> &str {
        match related {
            RelatedImage::Trustee => &self.trustee,
            RelatedImage::KbsGuard => &self.kbs_guard,
            RelatedImage::KeyBroker => &self.key_broker,
            RelatedImage::RegistrationServer => &self.register_server,
            RelatedImage::AttestationKeyRegister => &self.attestation_key_register,
            RelatedImage::ComputePcrs => &self.compute_pcrs,
        }
    }
}

/// It is not known where an image of this project is.
#[derive(Debug, thiserror::Error)]
#[error(
    "the images of this release are in no known registry: set TEC_REGISTRY to the registry that they were \
     pushed to, or {variable} to the image"
)]
#[non_exhaustive]
pub struct NoRegistryError {
    /// Variable of the first image that is missing.
    pub variable: &'static str,
}

/// The user that a pod's processes run as; root cannot be chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodUser {
    /// User and group 65532, for which the images of this project are built.
    #[default]
    Fixed,
    /// The user that the platform assigns; OpenShift refuses pods that choose one.
    Assigned,
}

/// How the Job that computes what an image measures accesses the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageAccess {
    /// The Job reads the parts that it needs from the image's registry, with these flags of `compute-pcrs`.
    Registry(Vec<String>),
    /// The kubelet pulls and mounts all of it, as in existing clusters (trusted-cluster-operator). The nodes
    /// must support image volumes.
    Volume,
}

impl Default for ImageAccess {
    fn default() -> Self {
        Self::Registry(Vec::new())
    }
}

/// The input for rendering objects, besides the cluster object.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Deploy {
    /// Which images run.
    pub images: Images,
    /// The user that they run as.
    pub user: PodUser,
    /// How images are measured.
    pub image_access: ImageAccess,
    /// Which registers must match approved images.
    pub pins: Pins,
    /// Networks, such as 10.0.0.0/8, in which one address can stand for many nodes; for the registration
    /// servers.
    pub shared_sources: Vec<String>,
    /// The admin's settings for pods and Services.
    pub settings: Settings,
}

impl Deploy {
    /// Uses these images, run as the fixed user.
    pub fn new(images: Images) -> Self {
        Self { images, ..Self::default() }
    }
}

/// Everything that belongs to a cluster object, in the best order for applying it. Nodes reach the key broker
/// that `files` are for.
///
/// # Errors
/// The cluster object lacks what the API server gives every stored object.
pub fn cluster(
    cluster: &TrustedExecutionCluster,
    deploy: &Deploy,
    files: &BrokerFiles,
) -> Result<Vec<Object>, RenderError> {
    let mut objects = match files {
        BrokerFiles::Trustee(files) => trustee(cluster, deploy, files)?,
        BrokerFiles::Builtin(files) => key_broker(cluster, deploy, files)?,
    };
    objects.push(broker_service(cluster, files.kind())?);
    objects.extend(attestation_key_register(cluster, deploy)?);
    // It informs nodes about the others.
    objects.extend(register_server(cluster, deploy)?);
    for object in &mut objects {
        deploy.settings.apply(object);
    }
    Ok(objects)
}

/// Objects that belong only to one kind of key broker; they are removed when the cluster object names the
/// other kind. The Deployment comes last, so that while it exists, removal is not complete.
///
/// # Errors
/// The cluster object lacks what the API server gives every stored object.
pub fn only_of(
    kind: BrokerKind,
    cluster: &TrustedExecutionCluster,
    deploy: &Deploy,
) -> Result<Vec<Object>, RenderError> {
    match kind {
        BrokerKind::Trustee => trustee(cluster, deploy, &TrusteeFiles::default()),
        BrokerKind::Builtin => key_broker(cluster, deploy, &BuiltinFiles::default()),
    }
}

/// A Secret as the source of a volume.
fn secret_source(name: &str) -> SecretVolumeSource {
    SecretVolumeSource {
        secret_name: Some(name.to_owned()),
        default_mode: Some(pod::SECRET_MODE),
        ..SecretVolumeSource::default()
    }
}
