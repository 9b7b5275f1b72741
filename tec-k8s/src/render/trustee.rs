//! The key broker's pod: the guard on the public port, and the key broker behind it on the loopback address.
//!
//! ```text
//! kbs-service:8080 ─► kbs-guard 0.0.0.0:8080 (TLS) ─► kbs 127.0.0.1:8081
//!                          │ token of the service account: reads Machines, AttestationKeys, images
//! ```

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy};
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, PodSpec, PodTemplateSpec, Probe, TCPSocketAction, Volume,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tec_core::boot::Pins;
use tec_core::digest::Sha256Digest;
use tec_core::trustee::TrusteeIntent;

use super::meta::{Owner, label_selector, text_map};
use super::name::{
    ADMIN_AUDIENCE, Component, KBS_PORT, TRUSTEE_AUTH, TRUSTEE_AUTH_PUBLIC, TRUSTEE_CONFIG_KEY,
    TRUSTEE_DATA, TRUSTEE_DEPLOYMENT, TRUSTEE_SIGNER,
};
use super::network::Reach;
use super::pod::pcrs_argument;
use super::pod::{ApiAccess, TLS_DIR, TLS_VOLUME};
use super::{Deploy, Object, RelatedImage, RenderError, network, pod};
use crate::api::{PublishMode, TlsServer, TrustedExecutionCluster};

/// Address where the key broker listens, reachable only from its own pod.
const LOOPBACK: &str = "127.0.0.1:8081";
/// Name of the public port, in pod and Service (trusted-cluster-operator).
pub(super) const PORT_NAME: &str = "kbs-port";
const GUARD: &str = "kbs-guard";

const CONFIG_DIR: &str = "/etc/kbs";
const AUTH_DIR: &str = "/opt/trustee/keys";
const STORAGE_DIR: &str = "/opt/trustee/storage";
const SIGNER_DIR: &str = "/opt/trustee/signer";
/// The attestation service's own directory if its configuration names none.
const WORK_DIR: &str = "/opt/confidential-containers";
/// Directory where the volume for the guard's state is mounted.
const GUARD_DIR: &str = "/var/lib/kbs-guard";
/// Directory for the guard's state, which the guard creates. The volume itself is accessible to everyone,
/// which the guard refuses.
const GUARD_STATE_DIR: &str = "/var/lib/kbs-guard/state";

/// Content that the key broker reads only at startup. None of it is secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrusteeFiles {
    /// The text of `kbs-config.toml`, generated from [`intent`].
    pub config: String,
    /// Certificate of the token signer, PEM; the Secret's `tls.crt`.
    pub signer_certificate: String,
    /// Public key of the admin, PEM; the Secret's `public.pub`.
    pub admin_public_key: String,
}

impl TrusteeFiles {
    /// Uses these files.
    pub fn new(
        config: impl Into<String>,
        signer_certificate: impl Into<String>,
        admin_public_key: impl Into<String>,
    ) -> Self {
        Self {
            config: config.into(),
            signer_certificate: signer_certificate.into(),
            admin_public_key: admin_public_key.into(),
        }
    }

    /// Digest over all of them, each hashed separately, so that content cannot move from one to the next.
    fn digest(&self) -> Sha256Digest {
        let texts = [&self.config, &self.signer_certificate, &self.admin_public_key];
        let digests = texts.map(|text| *Sha256Digest::of(text).as_bytes());
        Sha256Digest::of(digests.concat())
    }
}

/// Settings that the configuration must contain to match the pod.
pub fn intent() -> TrusteeIntent {
    let signer = |file: &str| format!("{SIGNER_DIR}/{file}");
    let mut intent = TrusteeIntent::new(
        LOOPBACK,
        (signer("tls.key"), signer("tls.crt")),
        vec![signer("ca.crt")],
        STORAGE_DIR,
    );
    intent.admin_public_key = Some(format!("{AUTH_DIR}/{TRUSTEE_AUTH_PUBLIC}"));
    intent.admin_audience = Some(ADMIN_AUDIENCE.to_owned());
    intent
}

/// The same for a Trustee whose admin API is disabled, because its files are mounted.
pub fn mounted_intent() -> TrusteeIntent {
    let mut intent = intent();
    intent.admin_public_key = None;
    intent.admin_audience = None;
    intent
}

/// Memory limit of the guard's container, in MiB: the memory that its limits let clients use, plus what it
/// needs itself.
pub const GUARD_MEMORY_MIB: usize = 256;

/// Configuration, public key of the admin, Deployment, Service for metrics and network policy of Trustee. The
/// controller must create the Secrets [`TRUSTEE_AUTH`] and [`TRUSTEE_SIGNER`], since they need randomness. If
/// its files are mounted, their publisher also creates the configuration, and adds the volumes to the pod.
///
/// # Errors
/// The cluster object lacks what the API server gives every stored object.
pub fn trustee(
    cluster: &TrustedExecutionCluster,
    deploy: &Deploy,
    files: &TrusteeFiles,
) -> Result<Vec<Object>, RenderError> {
    let owner = Owner::new(cluster)?;
    let metadata = |name: &str| owner.metadata(name, Component::Trustee);
    let mode = cluster.spec.publish.as_ref().map(|publish| publish.mode);
    let mode = mode.unwrap_or_default();
    let config = ConfigMap {
        data: Some(text_map([(TRUSTEE_CONFIG_KEY, files.config.as_str())])),
        metadata: metadata(TRUSTEE_DATA),
        ..ConfigMap::default()
    };
    let mut objects: Vec<Object> = Vec::new();
    let admin = ConfigMap {
        data: Some(text_map([(TRUSTEE_AUTH_PUBLIC, files.admin_public_key.as_str())])),
        metadata: metadata(TRUSTEE_AUTH),
        ..ConfigMap::default()
    };
    if mode == PublishMode::KbsApi {
        objects.extend([config.into(), admin.into()]);
    }
    objects.extend([
        network::metrics_service(metadata("kbs-metrics"), Component::Trustee).into(),
        network::policy(
            metadata(TRUSTEE_DEPLOYMENT),
            Component::Trustee,
            Some(KBS_PORT),
            Reach::Api,
        )
        .into(),
        deployment(
            &owner,
            (
                cluster.tls_secret(TlsServer::KeyBroker),
                mode,
                cluster.spec.guard_state_claim.as_deref(),
            ),
            deploy,
            files,
        )
        .into(),
    ]);
    Ok(objects)
}

/// One pod, replaced as a whole: it has its own storage, and two pods at the same time would receive
/// different content.
fn deployment(
    owner: &Owner,
    (tls, mode, state_claim): (Option<&str>, PublishMode, Option<&str>),
    deploy: &Deploy,
    files: &TrusteeFiles,
) -> Deployment {
    let mut key_broker = key_broker(deploy.images.of(RelatedImage::Trustee));
    let mut volumes = volumes(tls, state_claim);
    if mode == PublishMode::Volumes {
        // One comes with the mounted files, the other opens the admin API.
        let is_left_out = |name: &str| [TRUSTEE_DATA, TRUSTEE_AUTH].contains(&name);
        volumes.retain(|volume| !is_left_out(&volume.name));
        if let Some(mounts) = &mut key_broker.volume_mounts {
            mounts.retain(|mount| !is_left_out(&mount.name));
        }
    }
    let spec = PodSpec {
        containers: vec![key_broker, guard(deploy, tls)],
        volumes: Some(volumes),
        ..PodSpec::default()
    };
    let mut template = pod::template(Component::Trustee, deploy.user, ApiAccess::ByMount, spec);
    annotate(&mut template, files);
    Deployment {
        metadata: owner.metadata(TRUSTEE_DEPLOYMENT, Component::Trustee),
        spec: Some(DeploymentSpec {
            replicas: Some(1),
            selector: label_selector(Component::Trustee),
            strategy: Some(DeploymentStrategy {
                type_: Some("Recreate".to_owned()),
                ..DeploymentStrategy::default()
            }),
            template,
            ..DeploymentSpec::default()
        }),
        ..Deployment::default()
    }
}

fn annotate(template: &mut PodTemplateSpec, files: &TrusteeFiles) {
    let annotations = pod::annotate_files(template, &files.digest());
    annotations.extend(pod::default_container("kbs"));
}

/// The kubelet cannot reach the loopback address of a pod, so the guard probes the key broker on its behalf,
/// with a request that every version answers, unlike `/healthz`.
fn key_broker(image: &str) -> Container {
    Container {
        command: Some(vec![
            "/usr/local/bin/kbs".to_owned(),
            "--config-file".to_owned(),
            format!("{CONFIG_DIR}/{TRUSTEE_CONFIG_KEY}"),
        ]),
        env: Some(vec![pod::variable("RUST_LOG", "info")]),
        image: Some(image.to_owned()),
        liveness_probe: Some(Probe { failure_threshold: Some(6), ..through_guard() }),
        name: "kbs".to_owned(),
        resources: Some(pod::resources("100m", "128Mi", "1Gi")),
        security_context: Some(pod::container_security()),
        startup_probe: Some(Probe {
            failure_threshold: Some(60),
            period_seconds: Some(2),
            ..through_guard()
        }),
        volume_mounts: Some(vec![
            pod::mount(TRUSTEE_DATA, CONFIG_DIR),
            pod::mount(TRUSTEE_AUTH, AUTH_DIR),
            pod::mount(TRUSTEE_SIGNER, SIGNER_DIR),
            pod::writable_mount("trustee-storage", STORAGE_DIR),
            pod::writable_mount("attestation-service", WORK_DIR),
            pod::writable_mount("tmp", "/tmp"),
        ]),
        ..Container::default()
    }
}

fn through_guard() -> Probe {
    pod::own_probe("/readyz")
}

fn guard(deploy: &Deploy, tls: Option<&str>) -> Container {
    let mut arguments = vec![
        format!("--listen=0.0.0.0:{KBS_PORT}"),
        format!("--upstream={LOOPBACK}"),
        "--kubernetes".to_owned(),
        format!("--state-dir={GUARD_STATE_DIR}"),
        pod::metrics_argument(),
    ];
    if let Pins::Exactly(pinned) = deploy.pins {
        arguments.push(pcrs_argument(pinned.iter()));
    }
    let mut mounts =
        vec![pod::token_mount("api-token"), pod::writable_mount("guard-state", GUARD_DIR)];
    if tls.is_some() {
        arguments.push(format!("--tls-cert={TLS_DIR}/tls.crt"));
        arguments.push(format!("--tls-key={TLS_DIR}/tls.key"));
        arguments.push(format!("--tls-ca={TLS_DIR}/ca.crt"));
        mounts.push(pod::mount(TLS_VOLUME, TLS_DIR));
    } else {
        arguments.push("--dangerous-plain-http".to_owned());
    }
    Container {
        args: Some(arguments),
        env: Some(vec![pod::variable(pod::LOG_FORM, "json")]),
        image: Some(deploy.images.of(RelatedImage::KbsGuard).to_owned()),
        liveness_probe: Some(Probe {
            failure_threshold: Some(3),
            period_seconds: Some(10),
            tcp_socket: Some(TCPSocketAction {
                port: IntOrString::Int(KBS_PORT.into()),
                ..TCPSocketAction::default()
            }),
            ..Probe::default()
        }),
        name: GUARD.to_owned(),
        ports: Some(vec![pod::port(PORT_NAME, KBS_PORT), pod::metrics_port()]),
        // Ready when the key broker behind it answers.
        readiness_probe: Some(through_guard()),
        resources: Some(pod::resources("100m", "64Mi", &format!("{GUARD_MEMORY_MIB}Mi"))),
        security_context: Some(pod::container_security()),
        volume_mounts: Some(mounts),
        ..Container::default()
    }
}

fn volumes(tls: Option<&str>, state_claim: Option<&str>) -> Vec<Volume> {
    let state = "guard-state";
    let state = state_claim
        .map_or_else(|| pod::scratch_volume(state), |claim| pod::claim_volume(state, claim));
    let mut volumes = vec![
        pod::config_map_volume(TRUSTEE_DATA, TRUSTEE_DATA),
        // The Secret with this name has the private key, which no pod mounts.
        pod::config_map_volume(TRUSTEE_AUTH, TRUSTEE_AUTH),
        pod::secret_volume(TRUSTEE_SIGNER, TRUSTEE_SIGNER),
        pod::scratch_volume("trustee-storage"),
        pod::scratch_volume("attestation-service"),
        state,
        pod::scratch_volume("tmp"),
        pod::token_volume("api-token"),
    ];
    volumes.extend(tls.map(|secret| pod::secret_volume(TLS_VOLUME, secret)));
    volumes
}
