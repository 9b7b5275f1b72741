//! The two servers that nodes reach before they have a key: stateless, several replicas.

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec};
use k8s_openapi::api::core::v1::{Container, PodSpec, Volume, VolumeMount};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::meta::{Owner, label_selector};
use super::name::{ATTESTATION_KEY_REGISTER_PORT, Component, REGISTER_SERVER_PORT};
use super::network::Reach;
use super::pod::{ApiAccess, Missing, TLS_DIR, TLS_VOLUME};
use super::{Deploy, Object, RelatedImage, RenderError, network, pod};
use crate::api::{TlsServer, TrustedExecutionCluster};

/// Replicas of each server: one may go with its node.
const REPLICAS: i32 = 2;

/// An entry of a Secret as a file. The kubelet reads the Secret, so that the server needs no right
/// to read any; keys of disks lie beside them.
#[derive(Clone, Copy)]
struct Mounted {
    volume: &'static str,
    dir: &'static str,
    /// Key of the entry, and name of the file.
    key: &'static str,
    /// The flag that says where it is.
    flag: &'static str,
}

/// What nodes shall pin of the key broker.
const KBS_CA: Mounted =
    Mounted { volume: "kbs-ca", dir: "/etc/kbs-ca", key: "ca.crt", flag: "--kbs-ca" };
/// What nodes shall pin of the server that takes attestation keys.
const AK_CA: Mounted =
    Mounted { volume: "ak-ca", dir: "/etc/ak-ca", key: "ca.crt", flag: "--ak-ca" };
/// What nodes show to register.
const TOKEN: Mounted = Mounted {
    volume: "registration-token",
    dir: "/etc/registration-token",
    key: "token",
    flag: "--token-file",
};

struct Server<'a> {
    component: Component,
    image: RelatedImage,
    /// Port of the container.
    port: u16,
    /// Port of the Service.
    service_port: i32,
    port_name: &'static str,
    tls: Option<&'a str>,
    /// Entries, each with its Secret.
    mounted: Vec<(Mounted, &'a str)>,
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
    let server = Server {
        component: Component::RegisterServer,
        image: RelatedImage::RegistrationServer,
        port: REGISTER_SERVER_PORT,
        service_port: spec.register_server_port.unwrap_or_else(|| REGISTER_SERVER_PORT.into()),
        port_name: "register-server-port",
        tls: cluster.tls_secret(TlsServer::Registration),
        mounted: mounted.into_iter().filter_map(|(entry, secret)| Some((entry, secret?))).collect(),
    };
    objects(cluster, deploy, &server)
}

/// The same for the server that takes attestation keys.
///
/// # Errors
/// The cluster object lacks what the API server gives every stored object.
pub fn attestation_key_register(
    cluster: &TrustedExecutionCluster,
    deploy: &Deploy,
) -> Result<Vec<Object>, RenderError> {
    let spec = &cluster.spec;
    let server = Server {
        component: Component::AttestationKeyRegister,
        image: RelatedImage::AttestationKeyRegister,
        port: ATTESTATION_KEY_REGISTER_PORT,
        service_port: spec
            .attestation_key_register_port
            .unwrap_or_else(|| ATTESTATION_KEY_REGISTER_PORT.into()),
        port_name: "http",
        tls: cluster.tls_secret(TlsServer::AttestationKeys),
        mounted: Vec::new(),
    };
    objects(cluster, deploy, &server)
}

fn objects(
    cluster: &TrustedExecutionCluster,
    deploy: &Deploy,
    server: &Server<'_>,
) -> Result<Vec<Object>, RenderError> {
    let owner = Owner::new(cluster)?;
    let component = server.component;
    let name = component.deployment();
    let metadata = |name: &str| owner.metadata(name, component);
    Ok(vec![
        network::service(
            metadata(name),
            component,
            server.port_name,
            server.service_port,
            server.port,
        )
        .into(),
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
    Deployment {
        metadata,
        spec: Some(DeploymentSpec {
            replicas: Some(REPLICAS),
            selector: label_selector(server.component),
            template: pod::template(server.component, deploy.user, ApiAccess::Pod, spec),
            ..DeploymentSpec::default()
        }),
        ..Deployment::default()
    }
}

fn container(deploy: &Deploy, server: &Server<'_>) -> Container {
    Container {
        args: Some(arguments(server)),
        env: Some(vec![
            pod::field_variable("POD_NAMESPACE", "metadata.namespace"),
            pod::variable("TEC_LOG_FORM", "json"),
        ]),
        image: Some(deploy.images.of(server.image).to_owned()),
        liveness_probe: Some(pod::own_probe("/livez")),
        name: server.component.deployment().to_owned(),
        ports: Some(vec![
            // Shorter than the Service's: a port of a container has at most 15 characters.
            pod::port("http", server.port),
            pod::metrics_port(),
        ]),
        readiness_probe: Some(pod::own_probe("/readyz")),
        resources: Some(pod::resources("50m", "32Mi", "128Mi")),
        security_context: Some(pod::container_security()),
        volume_mounts: Some(mounts(server)).filter(|mounts| !mounts.is_empty()),
        ..Container::default()
    }
}

/// The flags of the existing programs (trusted-cluster-operator), and where metrics are.
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
    arguments
}

fn volumes(server: &Server<'_>) -> Vec<Volume> {
    let tls = server.tls.map(|secret| pod::secret_volume(TLS_VOLUME, secret));
    let entry = |(Mounted { volume, key, .. }, secret): &(Mounted, &str)| {
        pod::secret_keys_volume(volume, secret, &[key], Missing::IsEmpty)
    };
    tls.into_iter().chain(server.mounted.iter().map(entry)).collect()
}

fn mounts(server: &Server<'_>) -> Vec<VolumeMount> {
    let tls = server.tls.map(|_| pod::mount(TLS_VOLUME, TLS_DIR));
    let entry = |(Mounted { volume, dir, .. }, _): &(Mounted, &str)| pod::mount(volume, dir);
    tls.into_iter().chain(server.mounted.iter().map(entry)).collect()
}
