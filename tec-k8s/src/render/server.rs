//! Stateless servers with several replicas: the two that nodes reach before they have a key, and the
//! built-in key broker.

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec};
use k8s_openapi::api::core::v1::{Container, PodSpec, Volume, VolumeMount};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tec_core::digest::Sha256Digest;

use super::meta::{Owner, label_selector};
use super::name::{ATTESTATION_KEY_REGISTER_PORT, Component, REGISTER_SERVER_PORT};
use super::network::Reach;
use super::pod::{ApiAccess, Missing, TLS_DIR, TLS_VOLUME};
use super::{Deploy, Object, RelatedImage, RenderError, network, pod};
use crate::api::{CHALLENGE_KEY, TlsServer, TrustedExecutionCluster};

/// Number of replicas of each server: one may be lost with its node.
const REPLICAS: i32 = 2;

/// An entry of a Secret or ConfigMap as a file. The kubelet reads the entry, so the server needs no
/// permission to read Secrets, which include the disk keys.
#[derive(Clone, Copy)]
pub(super) struct Mounted {
    pub(super) source: Source,
    pub(super) volume: &'static str,
    pub(super) dir: &'static str,
    /// Key of the entry, and name of the file.
    pub(super) key: &'static str,
    /// The flag with its path.
    pub(super) flag: &'static str,
}

#[derive(Clone, Copy)]
pub(super) enum Source {
    Secret(Missing),
    ConfigMap,
}

/// CA that nodes pin for the key broker.
const KBS_CA: Mounted = Mounted {
    source: Source::Secret(Missing::IsEmpty),
    volume: "kbs-ca",
    dir: "/etc/kbs-ca",
    key: "ca.crt",
    flag: "--kbs-ca",
};
/// CA that nodes pin for the server that accepts attestation keys.
const AK_CA: Mounted = Mounted {
    source: Source::Secret(Missing::IsEmpty),
    volume: "ak-ca",
    dir: "/etc/ak-ca",
    key: "ca.crt",
    flag: "--ak-ca",
};
/// Token that nodes present to register.
const TOKEN: Mounted = Mounted {
    source: Source::Secret(Missing::IsEmpty),
    volume: "registration-token",
    dir: "/etc/registration-token",
    key: "token",
    flag: "--token-file",
};

/// The key from which replicas derive challenges.
const CHALLENGES: Mounted = Mounted {
    source: Source::Secret(Missing::IsEmpty),
    volume: "challenge-key",
    dir: "/etc/challenge-key",
    key: "key",
    flag: "--challenge-key-file",
};
/// CA certificates that certificates of endorsement keys must chain to.
const EK_ROOTS: Mounted = Mounted {
    source: Source::ConfigMap,
    volume: "ek-roots",
    dir: "/etc/ek-roots",
    key: "ca.crt",
    flag: "--ek-roots",
};

pub(super) struct Server<'a> {
    pub(super) component: Component,
    pub(super) image: RelatedImage,
    /// Port of the container.
    pub(super) port: u16,
    pub(super) tls: Option<&'a str>,
    /// Entries, each with its Secret.
    pub(super) mounted: Vec<(Mounted, &'a str)>,
    pub(super) replicas: i32,
    /// Further arguments.
    pub(super) more: Vec<String>,
    /// CPU and memory requests, and the memory limit.
    pub(super) resources: (&'static str, &'static str, &'static str),
    /// Digest of the files that it reads only at startup.
    pub(super) files: Option<Sha256Digest>,
}

impl Server<'_> {
    /// A registration server: the parts that both servers share.
    fn registration(component: Component, image: RelatedImage, port: u16) -> Self {
        Self {
            component,
            image,
            port,
            tls: None,
            mounted: Vec::new(),
            replicas: REPLICAS,
            more: Vec::new(),
            resources: ("50m", "32Mi", "128Mi"),
            files: None,
        }
    }
}

/// Deployment and Services of the registration server, its disruption budget and network policy.
///
/// # Errors
/// The cluster object lacks what the API server gives every stored object.
pub fn register_server(
    cluster: &TrustedExecutionCluster,
    deploy: &Deploy,
) -> Result<Vec<Object>, RenderError> {
    let spec = &cluster.spec;
    let mounted = [
        (KBS_CA, cluster.tls_secret(TlsServer::KeyBroker)),
        (AK_CA, cluster.tls_secret(TlsServer::AttestationKeys)),
        (TOKEN, cluster.token_secret()),
    ];
    let (component, image) = (Component::RegisterServer, RelatedImage::RegistrationServer);
    let server = Server {
        tls: cluster.tls_secret(TlsServer::Registration),
        mounted: named(mounted),
        more: shared_sources(deploy).into_iter().collect(),
        ..Server::registration(component, image, REGISTER_SERVER_PORT)
    };
    let port = spec.register_server_port.unwrap_or_else(|| REGISTER_SERVER_PORT.into());
    with_service(cluster, deploy, &server, ("register-server-port", port))
}

/// The same for the server that accepts attestation keys.
///
/// # Errors
/// The cluster object lacks what the API server gives every stored object.
pub fn attestation_key_register(
    cluster: &TrustedExecutionCluster,
    deploy: &Deploy,
) -> Result<Vec<Object>, RenderError> {
    let spec = &cluster.spec;
    let image = RelatedImage::AttestationKeyRegister;
    let port = ATTESTATION_KEY_REGISTER_PORT;
    let server = Server {
        tls: cluster.tls_secret(TlsServer::AttestationKeys),
        mounted: named([
            (CHALLENGES, cluster.endorsement().map(|_| CHALLENGE_KEY)),
            (EK_ROOTS, cluster.endorsement_roots()),
        ]),
        more: shared_sources(deploy).into_iter().collect(),
        ..Server::registration(Component::AttestationKeyRegister, image, port)
    };
    let port = spec.attestation_key_register_port.unwrap_or_else(|| port.into());
    with_service(cluster, deploy, &server, ("http", port))
}

fn named<const N: usize>(mounted: [(Mounted, Option<&str>); N]) -> Vec<(Mounted, &str)> {
    mounted.into_iter().filter_map(|(entry, source)| Some((entry, source?))).collect()
}

/// Networks in which one address can stand for many nodes.
fn shared_sources(deploy: &Deploy) -> Option<String> {
    let networks = &deploy.shared_sources;
    (!networks.is_empty()).then(|| format!("--shared-sources={}", networks.join(",")))
}

/// A server and the Service at which nodes reach it: name and number of its port.
fn with_service(
    cluster: &TrustedExecutionCluster,
    deploy: &Deploy,
    shown: &Server<'_>,
    (port_name, port): (&str, i32),
) -> Result<Vec<Object>, RenderError> {
    let component = shown.component;
    let metadata = Owner::new(cluster)?.metadata(component.deployment(), component);
    let service = network::service(metadata, component, port_name, port, shown.port);
    let mut objects = vec![service.into()];
    objects.extend(server(cluster, deploy, shown)?);
    Ok(objects)
}

/// Deployment of a server, its Service for metrics, disruption budget and network policy.
pub(super) fn server(
    cluster: &TrustedExecutionCluster,
    deploy: &Deploy,
    server: &Server<'_>,
) -> Result<Vec<Object>, RenderError> {
    let owner = Owner::new(cluster)?;
    let component = server.component;
    let name = component.deployment();
    let metadata = |name: &str| owner.metadata(name, component);
    Ok(vec![
        network::metrics_service(metadata(&format!("{name}-metrics")), component).into(),
        network::policy(metadata(name), component, Some(server.port), Reach::Api).into(),
        disruption_budget(metadata(name), component).into(),
        deployment(metadata(name), deploy, server).into(),
    ])
}

/// Nodes are drained one by one.
pub(super) fn disruption_budget(metadata: ObjectMeta, component: Component) -> PodDisruptionBudget {
    PodDisruptionBudget {
        metadata,
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(1)),
            selector: Some(label_selector(component)),
            ..PodDisruptionBudgetSpec::default()
        }),
        ..PodDisruptionBudget::default()
    }
}

fn deployment(metadata: ObjectMeta, deploy: &Deploy, server: &Server<'_>) -> Deployment {
    let spec = PodSpec {
        containers: vec![container(deploy, server)],
        topology_spread_constraints: Some(pod::spread(server.component)),
        volumes: Some(volumes(server)).filter(|volumes| !volumes.is_empty()),
        ..PodSpec::default()
    };
    let mut template = pod::template(server.component, deploy.user, ApiAccess::Pod, spec);
    if let Some(digest) = &server.files {
        pod::annotate_files(&mut template, digest);
    }
    Deployment {
        metadata,
        spec: Some(DeploymentSpec {
            replicas: Some(server.replicas),
            selector: label_selector(server.component),
            template,
            ..DeploymentSpec::default()
        }),
        ..Deployment::default()
    }
}

fn container(deploy: &Deploy, server: &Server<'_>) -> Container {
    let (cpu, memory, most) = server.resources;
    Container {
        args: Some(arguments(server)),
        env: Some(vec![
            pod::field_variable("POD_NAMESPACE", "metadata.namespace"),
            pod::variable(pod::LOG_FORM, "json"),
        ]),
        image: Some(deploy.images.of(server.image).to_owned()),
        liveness_probe: Some(pod::own_probe("/livez")),
        name: server.component.deployment().to_owned(),
        ports: Some(vec![
            // Shorter than the Service's: a container port name has at most 15 characters.
            pod::port("http", server.port),
            pod::metrics_port(),
        ]),
        readiness_probe: Some(pod::own_probe("/readyz")),
        resources: Some(pod::resources(cpu, memory, most)),
        security_context: Some(pod::container_security()),
        volume_mounts: Some(mounts(server)).filter(|mounts| !mounts.is_empty()),
        ..Container::default()
    }
}

/// The flags of the existing programs (trusted-cluster-operator), and the metrics address.
fn arguments(server: &Server<'_>) -> Vec<String> {
    let mut arguments = vec![format!("--port={}", server.port), pod::metrics_argument()];
    if server.tls.is_some() {
        arguments.push(format!("--cert-path={TLS_DIR}/tls.crt"));
        arguments.push(format!("--key-path={TLS_DIR}/tls.key"));
    } else {
        arguments.push("--dangerous-plain-http".to_owned());
    }
    for (Mounted { dir, key, flag, .. }, _) in &server.mounted {
        arguments.push(format!("{flag}={dir}/{key}"));
    }
    arguments.extend(server.more.clone());
    arguments
}

fn volumes(server: &Server<'_>) -> Vec<Volume> {
    let tls = server.tls.map(|secret| pod::secret_volume(TLS_VOLUME, secret));
    let entry = |(Mounted { source, volume, key, .. }, name): &(Mounted, &str)| match source {
        Source::Secret(missing) => pod::secret_keys_volume(volume, name, &[key], *missing),
        Source::ConfigMap => pod::config_map_entry_volume(volume, name, key),
    };
    tls.into_iter().chain(server.mounted.iter().map(entry)).collect()
}

fn mounts(server: &Server<'_>) -> Vec<VolumeMount> {
    let tls = server.tls.map(|_| pod::mount(TLS_VOLUME, TLS_DIR));
    let entry = |(Mounted { volume, dir, .. }, _): &(Mounted, &str)| pod::mount(volume, dir);
    tls.into_iter().chain(server.mounted.iter().map(entry)).collect()
}
