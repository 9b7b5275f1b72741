//! Parts that all pods share.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapProjection, ConfigMapVolumeSource, ContainerPort, DownwardAPIProjection,
    DownwardAPIVolumeFile, EmptyDirVolumeSource, EnvVar, EnvVarSource, HTTPGetAction, KeyToPath,
    ObjectFieldSelector, PersistentVolumeClaimVolumeSource, PodSecurityContext, PodSpec,
    PodTemplateSpec, Probe, ProjectedVolumeSource, ResourceRequirements, SeccompProfile,
    SecretVolumeSource, SecurityContext, ServiceAccountTokenProjection, TopologySpreadConstraint,
    Volume, VolumeMount, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;

use super::meta::{label_selector, labels, text_map};
use super::name::{Component, METRICS_PORT, METRICS_PORT_NAME};
use super::{PodUser, secret_source};

/// User and group of the images, as is the convention for distroless images.
const USER: i64 = 65532;
/// Files of Secrets are readable only by owner and group.
pub(super) const SECRET_MODE: i32 = 0o440;
/// Directory where Kubernetes puts the token of the service account, and where clients look for it.
const TOKEN_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Lifetime of a token in seconds; the kubelet renews it. The same as the admission plugin ServiceAccount
/// requests.
const TOKEN_SECONDS: i64 = 3607;
/// ConfigMap that Kubernetes keeps in every namespace.
const CLUSTER_CA: &str = "kube-root-ca.crt";
/// Name of the volume with a server's certificate. It is not derived from the Secret's name, which may
/// contain characters that a volume's name may not.
pub(super) const TLS_VOLUME: &str = "tls";
/// Directory where that volume is mounted.
pub(super) const TLS_DIR: &str = "/etc/tls";
/// Annotation whose change makes a program restart, to read changed files.
const FILES_ANNOTATION: &str = "trusted-execution-clusters.io/trustee-files";
/// Environment variable that every program of this project reads.
pub(super) const LOG_FORM: &str = "TEC_LOG_FORM";
/// Time to finish requests, in seconds.
const GRACE_SECONDS: i64 = 30;

/// Which containers may reach the API server, and how.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ApiAccess {
    /// Every container has the token.
    Pod,
    /// Only containers that mount it.
    ByMount,
}

/// A pod of a component: no privileges, a read-only file system, no names of other Services in its
/// environment.
pub(super) fn template(
    component: Component,
    user: PodUser,
    access: ApiAccess,
    spec: PodSpec,
) -> PodTemplateSpec {
    PodTemplateSpec {
        metadata: Some(ObjectMeta { labels: Some(labels(component)), ..ObjectMeta::default() }),
        spec: Some(PodSpec {
            automount_service_account_token: Some(access == ApiAccess::Pod),
            enable_service_links: Some(false),
            security_context: Some(pod_security(user)),
            service_account_name: Some(component.service_account().to_owned()),
            termination_grace_period_seconds: Some(GRACE_SECONDS),
            ..spec
        }),
    }
}

fn pod_security(user: PodUser) -> PodSecurityContext {
    let id = (user == PodUser::Fixed).then_some(USER);
    PodSecurityContext {
        fs_group: id,
        run_as_group: id,
        run_as_non_root: Some(true),
        run_as_user: id,
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".to_owned(),
            ..SeccompProfile::default()
        }),
        ..PodSecurityContext::default()
    }
}

/// The profile "restricted" of the Pod Security Standards, and a read-only file system.
pub(super) fn container_security() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities {
            drop: Some(vec!["ALL".to_owned()]),
            ..Capabilities::default()
        }),
        read_only_root_filesystem: Some(true),
        ..SecurityContext::default()
    }
}

/// Requests, and the memory limit. There is no CPU limit, which would slow down a boot storm even on an idle
/// node.
pub(super) fn resources(cpu: &str, memory: &str, most: &str) -> ResourceRequirements {
    let quantities = |pairs: &[(&str, &str)]| -> BTreeMap<String, Quantity> {
        pairs
            .iter()
            .map(|(name, quantity)| ((*name).to_owned(), Quantity((*quantity).to_owned())))
            .collect()
    };
    ResourceRequirements {
        limits: Some(quantities(&[("memory", most)])),
        requests: Some(quantities(&[("cpu", cpu), ("memory", memory)])),
        ..ResourceRequirements::default()
    }
}

pub(super) fn port(name: &str, number: u16) -> ContainerPort {
    ContainerPort {
        container_port: number.into(),
        name: Some(name.to_owned()),
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    }
}

pub(super) fn metrics_port() -> ContainerPort {
    port(METRICS_PORT_NAME, METRICS_PORT)
}

/// The registers that a program pins.
pub(super) fn pcrs_argument(pcrs: impl Iterator<Item = PcrIndex>) -> String {
    let pcrs: Vec<_> = pcrs.map(|pcr| pcr.to_string()).collect();
    format!("--pcrs={}", pcrs.join(","))
}

/// Flag with the address where our programs serve metrics and probes.
pub(super) fn metrics_argument() -> String {
    format!("--metrics-addr=0.0.0.0:{METRICS_PORT}")
}

/// A probe of the metrics port, every ten seconds; it fails after three failures in a row.
pub(super) fn own_probe(path: &str) -> Probe {
    Probe {
        failure_threshold: Some(3),
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::Int(METRICS_PORT.into()),
            scheme: Some("HTTP".to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(10),
        timeout_seconds: Some(5),
        ..Probe::default()
    }
}

pub(super) fn variable(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value.to_owned()), ..EnvVar::default() }
}

/// A variable with a field of the pod.
pub(super) fn field_variable(name: &str, field: &str) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value_from: Some(EnvVarSource {
            field_ref: Some(field_selector(field)),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    }
}

fn field_selector(field: &str) -> ObjectFieldSelector {
    ObjectFieldSelector { api_version: Some("v1".to_owned()), field_path: field.to_owned() }
}

pub(super) fn mount(volume: &str, path: &str) -> VolumeMount {
    VolumeMount {
        mount_path: path.to_owned(),
        name: volume.to_owned(),
        read_only: Some(true),
        ..VolumeMount::default()
    }
}

pub(super) fn writable_mount(volume: &str, path: &str) -> VolumeMount {
    VolumeMount { read_only: None, ..mount(volume, path) }
}

pub(super) fn secret_volume(volume: &str, secret: &str) -> Volume {
    Volume { name: volume.to_owned(), secret: Some(secret_source(secret)), ..Volume::default() }
}

/// A volume with selected keys of a Secret, each as a file of the same name. With `Missing::IsEmpty` the pod
/// starts without the Secret and sees it once it appears.
pub(super) fn secret_keys_volume(
    volume: &str,
    secret: &str,
    keys: &[&str],
    missing: Missing,
) -> Volume {
    Volume {
        name: volume.to_owned(),
        secret: Some(SecretVolumeSource {
            items: Some(keys.iter().map(|key| key_to_path(key)).collect()),
            optional: (missing == Missing::IsEmpty).then_some(true),
            ..secret_source(secret)
        }),
        ..Volume::default()
    }
}

/// What a pod does if a Secret that it mounts is missing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// The pod waits.
    Waits,
    /// The pod starts with an empty directory.
    IsEmpty,
}

pub(super) fn config_map_volume(volume: &str, config_map: &str) -> Volume {
    Volume {
        name: volume.to_owned(),
        config_map: Some(ConfigMapVolumeSource {
            name: config_map.to_owned(),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    }
}

/// A volume with one entry of a ConfigMap as a file of the same name; empty while it is missing.
pub(super) fn config_map_entry_volume(volume: &str, config_map: &str, key: &str) -> Volume {
    Volume {
        name: volume.to_owned(),
        config_map: Some(ConfigMapVolumeSource {
            name: config_map.to_owned(),
            items: Some(vec![key_to_path(key)]),
            optional: Some(true),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    }
}

fn key_to_path(key: &str) -> KeyToPath {
    KeyToPath { key: key.to_owned(), path: key.to_owned(), ..KeyToPath::default() }
}

/// A directory that lives as long as the pod.
pub(super) fn scratch_volume(volume: &str) -> Volume {
    Volume {
        name: volume.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource::default()),
        ..Volume::default()
    }
}

/// A directory that an admin provides.
pub(super) fn claim_volume(volume: &str, claim: &str) -> Volume {
    Volume {
        name: volume.to_owned(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: claim.to_owned(),
            ..PersistentVolumeClaimVolumeSource::default()
        }),
        ..Volume::default()
    }
}

/// The files that Kubernetes otherwise mounts into every container, for selected containers only.
pub(super) fn token_volume(volume: &str) -> Volume {
    let token = VolumeProjection {
        service_account_token: Some(ServiceAccountTokenProjection {
            expiration_seconds: Some(TOKEN_SECONDS),
            path: "token".to_owned(),
            ..ServiceAccountTokenProjection::default()
        }),
        ..VolumeProjection::default()
    };
    let authority = VolumeProjection {
        config_map: Some(ConfigMapProjection {
            items: Some(vec![KeyToPath {
                key: "ca.crt".to_owned(),
                path: "ca.crt".to_owned(),
                ..KeyToPath::default()
            }]),
            name: CLUSTER_CA.to_owned(),
            ..ConfigMapProjection::default()
        }),
        ..VolumeProjection::default()
    };
    let namespace = VolumeProjection {
        downward_api: Some(DownwardAPIProjection {
            items: Some(vec![DownwardAPIVolumeFile {
                field_ref: Some(field_selector("metadata.namespace")),
                path: "namespace".to_owned(),
                ..DownwardAPIVolumeFile::default()
            }]),
        }),
        ..VolumeProjection::default()
    };
    Volume {
        name: volume.to_owned(),
        projected: Some(ProjectedVolumeSource {
            default_mode: Some(SECRET_MODE),
            sources: Some(vec![token, authority, namespace]),
        }),
        ..Volume::default()
    }
}

/// Mounts that volume into a container.
pub(super) fn token_mount(volume: &str) -> VolumeMount {
    mount(volume, TOKEN_DIR)
}

/// Replicas on different nodes, if there are enough nodes.
pub(super) fn spread(component: Component) -> Vec<TopologySpreadConstraint> {
    vec![TopologySpreadConstraint {
        label_selector: Some(label_selector(component)),
        max_skew: 1,
        topology_key: "kubernetes.io/hostname".to_owned(),
        when_unsatisfiable: "ScheduleAnyway".to_owned(),
        ..TopologySpreadConstraint::default()
    }]
}

/// Makes the pods restart when files that they read only at startup change. Returns the annotations, for
/// further entries.
pub(super) fn annotate_files<'a>(
    template: &'a mut PodTemplateSpec,
    digest: &Sha256Digest,
) -> &'a mut BTreeMap<String, String> {
    let annotations = template.metadata.get_or_insert_default().annotations.get_or_insert_default();
    annotations.insert(FILES_ANNOTATION.to_owned(), digest.to_string());
    annotations
}

/// The annotation that makes kubectl show logs of the program itself, not of a sidecar.
pub(super) fn default_container(name: &str) -> BTreeMap<String, String> {
    text_map([("kubectl.kubernetes.io/default-container", name)])
}
