//! The Job that computes what an image measures.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{
    Container, ImageVolumeSource, LocalObjectReference, PodSpec, PodTemplateSpec, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource as _, ResourceExt as _};
use sha1::Digest as _;

use super::meta::text_map;
use super::name::Component;
use super::pod::{ApiAccess, Missing};
use super::{Deploy, ImageAccess, RelatedImage, pod};
use crate::api::{ApprovedImage, BootSpec, ImageSignaturesSpec, TrustedExecutionClusterSpec};

/// Labels of the existing operator (trusted-cluster-operator).
const KIND_LABEL: (&str, &str) = ("kind", "compute-pcrs");
const IMAGE_LABEL: &str = "approved-image";
/// Maximum length of a label's value, and so of the name of a Job, which its pods have as a label (RFC 1123).
const MAX_LABEL: usize = 63;
/// Directory where the image is mounted in the pod (trusted-cluster-operator).
const IMAGE_DIR: &str = "/image";
const IMAGE_VOLUME: &str = "image";
/// Directory for the boot files of packed layers, and then the measurements; temporary.
const SCRATCH_DIR: &str = "/tmp";
const MEASUREMENTS: &str = "/tmp/measurements.json";
const TOKEN_VOLUME: &str = "api-token";
/// Container that reads the image.
const MEASURE: &str = "measure";
const SCRATCH_VOLUME: &str = "scratch";
const PULL_SECRET_DIR: &str = "/etc/pull-secret";
const PULL_SECRET_VOLUME: &str = "pull-secret";
const MOK_DIR: &str = "/etc/mok-variables";
const MOK_VOLUME: &str = "mok-variables";
const SIGNERS_DIR: &str = "/etc/image-signers";
const SIGNERS_VOLUME: &str = "image-signers";
/// Entry of a Secret with credentials of registries (Kubernetes, type
/// kubernetes.io/dockerconfigjson).
pub const DOCKER_CONFIG: &str = ".dockerconfigjson";
/// Number of pods to try before the Job counts as failed.
const RETRIES: i32 = 2;
/// Time limit of a Job.
const LONGEST_SECONDS: i64 = 3600;

/// `compute-pcrs-<sha1[:10] of the reference>-<the reference, sanitized>`, cut to 63 characters
/// (trusted-cluster-operator). How the image boots is a part of what is digested, if the object says it.
pub fn job_name(image: &ApprovedImage) -> String {
    let reference = &image.spec.image;
    let digest = sha1::Sha1::digest(reference.clone() + &boot_flags(image).join("\n"));
    let mut whole = "compute-pcrs-".to_owned();
    for byte in digest.iter().take(5) {
        // Writing to a String cannot fail.
        let _ = write!(whole, "{byte:02x}");
    }
    whole.push('-');
    let word = |c: char| {
        if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }
    };
    whole.extend(reference.chars().map(word));
    let cut: String = whole.chars().take(MAX_LABEL).collect();
    cut.trim_end_matches('-').to_owned()
}

/// The Job of an image. Objects for the same image that boots in the same way share it, see [`job_name`].
///
/// The kubelet pulls the program with `own` too: a pod that names a Secret gets none of those of its account.
pub fn job(
    image: &ApprovedImage,
    cluster: Option<&TrustedExecutionClusterSpec>,
    own: &[LocalObjectReference],
    deploy: &Deploy,
) -> Job {
    // The name of an object may be longer than a label.
    let label: String = image.name_any().chars().take(MAX_LABEL).collect();
    let labels = text_map([KIND_LABEL, (IMAGE_LABEL, label.trim_end_matches(['-', '.']))]);
    let owner = image
        .controller_owner_ref(&())
        .map(|owner| OwnerReference { block_owner_deletion: Some(true), ..owner });
    Job {
        metadata: ObjectMeta {
            name: Some(job_name(image)),
            labels: Some(labels.clone()),
            owner_references: owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(JobSpec {
            active_deadline_seconds: Some(LONGEST_SECONDS),
            backoff_limit: Some(RETRIES),
            template: template(image, cluster, own, deploy, labels),
            ..JobSpec::default()
        }),
        ..Job::default()
    }
}

/// Two containers, one after the other: the one that reads the image has no token for the cluster, and the
/// one that has a token reads only the measurements.
fn template(
    image: &ApprovedImage,
    cluster: Option<&TrustedExecutionClusterSpec>,
    own: &[LocalObjectReference],
    deploy: &Deploy,
    labels: BTreeMap<String, String>,
) -> PodTemplateSpec {
    let container = |name: &str, arguments, mounts| Container {
        args: Some(arguments),
        env: Some(vec![pod::variable(pod::LOG_FORM, "json")]),
        image: Some(deploy.images.of(RelatedImage::ComputePcrs).to_owned()),
        name: name.to_owned(),
        resources: Some(pod::resources("100m", "64Mi", "512Mi")),
        security_context: Some(pod::container_security()),
        volume_mounts: Some(mounts),
        ..Container::default()
    };
    let to = vec![pod::writable_mount(SCRATCH_VOLUME, SCRATCH_DIR)];
    let from = vec![pod::mount(SCRATCH_VOLUME, SCRATCH_DIR), pod::token_mount(TOKEN_VOLUME)];
    let publish = Component::ComputePcrs.deployment();
    let mut spec = PodSpec {
        init_containers: Some(vec![container(MEASURE, arguments(image, cluster, deploy), to)]),
        containers: vec![container(publish, publication(image), from)],
        restart_policy: Some("Never".to_owned()),
        volumes: Some(vec![pod::scratch_volume(SCRATCH_VOLUME), pod::token_volume(TOKEN_VOLUME)]),
        ..PodSpec::default()
    };
    let keys = cluster.and_then(|cluster| cluster.machine_owner_keys.as_ref());
    if let Some(name) = keys.and_then(|keys| keys.config_map.as_deref()) {
        mount(&mut spec, pod::config_map_volume(MOK_VOLUME, name), MOK_DIR);
    }
    if let Some(signers) = signers(cluster) {
        let volume = pod::config_map_volume(SIGNERS_VOLUME, &signers.config_map);
        mount(&mut spec, volume, SIGNERS_DIR);
    }
    let secret = image.spec.pull_secret.as_deref();
    match &deploy.image_access {
        ImageAccess::Volume => {
            spec.image_pull_secrets = secret.map(|name| {
                let image = LocalObjectReference { name: name.to_owned() };
                let own = own.iter().filter(|secret| secret.name != name).cloned();
                own.chain([image]).collect()
            });
            mount(&mut spec, image_volume(image), IMAGE_DIR);
        }
        ImageAccess::Registry(_) => {}
    }
    if let Some(name) = secret.filter(|_| asks_registry(cluster, deploy)) {
        let entry = [DOCKER_CONFIG];
        let volume = pod::secret_keys_volume(PULL_SECRET_VOLUME, name, &entry, Missing::Waits);
        mount(&mut spec, volume, PULL_SECRET_DIR);
    }
    deploy.settings.apply_to_pod(&mut spec);
    let access = ApiAccess::ByMount;
    let template = pod::template(Component::ComputePcrs, deploy.user, access, spec);
    PodTemplateSpec {
        metadata: Some(ObjectMeta { labels: Some(labels), ..ObjectMeta::default() }),
        ..template
    }
}

/// Arguments of the `compute-pcrs` that writes the measurements into the object.
fn publication(image: &ApprovedImage) -> Vec<String> {
    let (name, reference) = (&image.name_any(), &image.spec.image);
    let object = ["publish", "--approved-image", name, "--image", reference];
    let words = object.into_iter().chain(["--from", MEASUREMENTS]).map(str::to_owned);
    words.chain(boot_flags(image).into_iter().map(|flag| format!("--boot={flag}"))).collect()
}

fn boot_flags(image: &ApprovedImage) -> Vec<String> {
    image.spec.boot.as_ref().map(BootSpec::flags).unwrap_or_default()
}

/// Arguments of the `compute-pcrs` that reads the image.
fn arguments(
    image: &ApprovedImage,
    cluster: Option<&TrustedExecutionClusterSpec>,
    deploy: &Deploy,
) -> Vec<String> {
    let words = ["job", "--image", &image.spec.image, "--to", MEASUREMENTS];
    let mut arguments = words.map(str::to_owned).to_vec();
    arguments.extend(boot_flags(image));
    let keys = cluster.and_then(|cluster| cluster.machine_owner_keys.as_ref());
    match keys.map(|keys| &keys.config_map) {
        None => {}
        Some(None) => arguments.push("--no-mok".to_owned()),
        Some(Some(_)) => arguments.extend(["--mok-variables", MOK_DIR].map(str::to_owned)),
    }
    if signers(cluster).is_some() {
        arguments.extend(["--signed-by", SIGNERS_DIR].map(str::to_owned));
    }
    if image.spec.pull_secret.is_some() && asks_registry(cluster, deploy) {
        let file = format!("{PULL_SECRET_DIR}/{DOCKER_CONFIG}");
        arguments.extend(["--pull-secret".to_owned(), file]);
    }
    match &deploy.image_access {
        ImageAccess::Volume => {
            arguments.extend(["--image-dir", IMAGE_DIR].map(str::to_owned));
        }
        ImageAccess::Registry(flags) => arguments.extend(flags.iter().cloned()),
    }
    arguments
}

fn signers(cluster: Option<&TrustedExecutionClusterSpec>) -> Option<&ImageSignaturesSpec> {
    cluster.and_then(|cluster| cluster.image_signatures.as_ref())
}

/// Whether the program itself asks the registry: for the image, or for its signatures.
fn asks_registry(cluster: Option<&TrustedExecutionClusterSpec>, deploy: &Deploy) -> bool {
    signers(cluster).is_some() || deploy.image_access != ImageAccess::Volume
}

fn image_volume(image: &ApprovedImage) -> Volume {
    Volume {
        image: Some(ImageVolumeSource {
            pull_policy: Some("IfNotPresent".to_owned()),
            reference: Some(image.spec.image.clone()),
        }),
        name: IMAGE_VOLUME.to_owned(),
        ..Volume::default()
    }
}

/// Mounts a volume into the container that reads the image.
fn mount(spec: &mut PodSpec, volume: Volume, path: &str) {
    for container in spec.init_containers.iter_mut().flatten() {
        let mounts = container.volume_mounts.get_or_insert_default();
        mounts.push(pod::mount(&volume.name, path));
    }
    spec.volumes.get_or_insert_default().push(volume);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{ApprovedImageSpec, MachineOwnerKeysSpec};

    fn image(pull_secret: Option<&str>) -> ApprovedImage {
        let spec = ApprovedImageSpec {
            image: format!("registry.example/os@sha256:{}", "ab".repeat(32)),
            pull_secret: pull_secret.map(str::to_owned),
            ..ApprovedImageSpec::default()
        };
        ApprovedImage::new("fedora", spec)
    }

    fn pod_of(access: ImageAccess, pull_secret: Option<&str>) -> PodSpec {
        let deploy = Deploy { image_access: access, ..Deploy::default() };
        let job = job(&image(pull_secret), None, &[], &deploy);
        job.spec.unwrap().template.spec.unwrap()
    }

    #[test]
    fn the_job_is_given_the_machine_owner_keys_of_the_cluster() {
        let pod_of = |config_map: Option<&str>| {
            let keys = MachineOwnerKeysSpec { config_map: config_map.map(str::to_owned) };
            let cluster = TrustedExecutionClusterSpec {
                machine_owner_keys: Some(keys),
                ..TrustedExecutionClusterSpec::default()
            };
            let access = ImageAccess::Registry(Vec::new());
            let deploy = Deploy { image_access: access, ..Deploy::default() };
            job(&image(None), Some(&cluster), &[], &deploy).spec.unwrap().template.spec.unwrap()
        };
        let none = pod_of(None);
        assert_eq!(arguments(&none), " --no-mok");
        assert_eq!(names(&none), ["scratch", "api-token"]);
        let some = pod_of(Some("mok"));
        assert_eq!(arguments(&some), " --mok-variables /etc/mok-variables");
        assert_eq!(names(&some), ["scratch", "api-token", "mok-variables"]);
        let mounts = reader(&some).volume_mounts.clone().unwrap();
        assert_eq!(mounts[1].mount_path, "/etc/mok-variables");
    }

    fn reader(pod: &PodSpec) -> &Container {
        &pod.init_containers.as_ref().unwrap()[0]
    }

    /// Arguments of the container that reads the image, other than its reference.
    fn arguments(pod: &PodSpec) -> String {
        let words = reader(pod).args.as_ref().unwrap().join(" ");
        let reference = image(None).spec.image;
        let start = format!("job --image {reference} --to /tmp/measurements.json");
        words.strip_prefix(&start).unwrap().to_owned()
    }

    fn names(pod: &PodSpec) -> Vec<&str> {
        let volumes = pod.volumes.iter().flatten();
        volumes.map(|volume| volume.name.as_str()).collect()
    }

    #[test]
    fn the_job_looks_for_signatures_in_the_registry_even_if_the_image_is_mounted() {
        let signers = ImageSignaturesSpec { config_map: "signers".to_owned() };
        let cluster = TrustedExecutionClusterSpec {
            image_signatures: Some(signers),
            ..TrustedExecutionClusterSpec::default()
        };
        let pod_of = |access, pull_secret| {
            let deploy = Deploy { image_access: access, ..Deploy::default() };
            let job = job(&image(pull_secret), Some(&cluster), &[], &deploy);
            job.spec.unwrap().template.spec.unwrap()
        };
        let signed = "--signed-by /etc/image-signers";
        let secret = "--pull-secret /etc/pull-secret/.dockerconfigjson";
        let read = pod_of(ImageAccess::Registry(Vec::new()), None);
        assert_eq!(arguments(&read), format!(" {signed}"));
        assert_eq!(names(&read), ["scratch", "api-token", "image-signers"]);
        let mounted = pod_of(ImageAccess::Volume, Some("login"));
        assert_eq!(arguments(&mounted), format!(" {signed} {secret} --image-dir /image"));
        let volumes = ["scratch", "api-token", "image-signers", "image", "pull-secret"];
        assert_eq!(names(&mounted), volumes);
    }

    #[test]
    fn the_name_of_a_job_is_that_of_existing_clusters_and_fits() {
        let reference = "quay.io/fedora/fedora-coreos@sha256:3d6772b4f84ed47595d72a2c4c5ffd15f5bb72c7507fe26f2aaee2c69d5633ba";
        let object = |reference: &str| {
            let spec =
                ApprovedImageSpec { image: reference.to_owned(), ..ApprovedImageSpec::default() };
            ApprovedImage::new("os", spec)
        };
        let name = job_name(&object(reference));
        assert!(name.starts_with("compute-pcrs-0c9692cb40-"), "{name}");
        assert!(name.starts_with("compute-pcrs-") && name.len() <= MAX_LABEL, "{name}");
        assert!(name.contains("-quay-io-fedora-fedora-coreos-"), "{name}");
        assert_ne!(name, job_name(&object(&reference.replace("quay", "other"))));
        let mut off = object(reference);
        off.spec.boot = Some(BootSpec::default());
        assert_ne!(name, job_name(&off), "its Job does not use the label");
    }

    #[test]
    fn the_job_is_told_how_the_image_boots_and_publishes_for_no_other_way() {
        let mut image = image(None);
        let boot = serde_json::json!({"kernel": "boot/vmlinuz 1", "secureBoot": "Disabled",
            "firmwareStarts": "a", "shimStarts": "b", "shimProfile": "16.1", "grubProfile": "2.12",
            "stubProfile": "257", "grubDevice": "hd1,gpt1", "grubRoot": "-x"});
        image.spec.boot = Some(serde_json::from_value(boot).unwrap());
        let job = job(&image, None, &[], &Deploy::default());
        let pod = job.spec.unwrap().template.spec.unwrap();
        let flags = "--ignore-label\n--kernel=boot/vmlinuz 1\n--firmware-starts=a\n--shim-starts=b\n\
                     --shim-profile=16.1\n--grub-profile=2.12\n--stub-profile=257\n\
                     --secure-boot=off\n--grub-device=hd1,gpt1\n--grub-root=-x";
        let read = reader(&pod).args.as_ref().unwrap().join("\n");
        assert!(read.contains(flags), "{read}");
        let published = pod.containers[0].args.as_ref().unwrap();
        let expected: Vec<_> = flags.split('\n').map(|flag| format!("--boot={flag}")).collect();
        assert!(published.ends_with(&expected), "{published:?}");
    }

    #[test]
    fn an_image_is_read_from_its_registry_with_its_own_pull_secret() {
        let flags = ["--mirror", "a=b"].map(str::to_owned).to_vec();
        let pod = pod_of(ImageAccess::Registry(flags.clone()), None);
        assert_eq!(arguments(&pod), " --mirror a=b");
        assert_eq!(names(&pod), ["scratch", "api-token"]);
        let pod = pod_of(ImageAccess::Registry(flags), Some("registry-login"));
        let file = "/etc/pull-secret/.dockerconfigjson";
        let expected = format!(" --pull-secret {file} --mirror a=b");
        assert_eq!(arguments(&pod), expected);
        assert_eq!(names(&pod), ["scratch", "api-token", "pull-secret"]);
        assert_eq!(pod.image_pull_secrets, None);
    }

    #[test]
    fn an_image_is_mounted_where_that_is_asked_for() {
        let pod = pod_of(ImageAccess::Volume, Some("registry-login"));
        assert_eq!(arguments(&pod), " --image-dir /image");
        assert_eq!(names(&pod), ["scratch", "api-token", "image"]);
        let mounts = reader(&pod).volume_mounts.clone().unwrap();
        assert_eq!(mounts[1].mount_path, "/image");
        assert_eq!(pod.image_pull_secrets.unwrap()[0].name, "registry-login");
    }

    #[test]
    fn a_mounted_image_with_a_secret_leaves_the_program_those_of_its_account() {
        let named = |name: &str| LocalObjectReference { name: name.to_owned() };
        let own = [named("ours"), named("registry-login")];
        let secrets = |access, pull_secret| {
            let deploy = Deploy { image_access: access, ..Deploy::default() };
            let job = job(&image(pull_secret), None, &own, &deploy);
            job.spec.unwrap().template.spec.unwrap().image_pull_secrets
        };
        let both = [named("ours"), named("registry-login")].to_vec();
        assert_eq!(secrets(ImageAccess::Volume, Some("registry-login")), Some(both));
        // The account's own are added to a pod that names none.
        assert_eq!(secrets(ImageAccess::Volume, None), None);
        assert_eq!(secrets(ImageAccess::default(), Some("registry-login")), None);
    }

    #[test]
    fn what_reads_an_image_has_no_token_and_what_has_one_reads_no_image() {
        for access in [ImageAccess::Volume, ImageAccess::default()] {
            let pod = pod_of(access, Some("registry-login"));
            assert_eq!(pod.automount_service_account_token, Some(false));
            let mounted = |container: &Container| {
                let mounts = container.volume_mounts.iter().flatten();
                mounts.map(|mount| mount.name.clone()).collect::<Vec<_>>()
            };
            let read = mounted(reader(&pod));
            assert!(!read.contains(&"api-token".to_owned()), "{read:?}");
            assert_eq!(mounted(&pod.containers[0]), ["scratch", "api-token"]);
            let told = pod.containers[0].args.as_ref().unwrap();
            assert_eq!(told[..3], ["publish", "--approved-image", "fedora"]);
        }
    }

    #[test]
    fn a_job_runs_where_pods_may_run_and_with_what_its_containers_may_take() {
        let said = r#"{"log": "debug", "nodeSelector": {"a": "b"}, "tolerations": [{"key": "infra"}],
            "affinity": {"nodeAffinity": {}}, "resources": {
                "measure": {"limits": {"memory": "2Gi"}},
                "compute-pcrs": {"limits": {"memory": "1Gi"}}}}"#;
        let deploy = Deploy { settings: said.parse().unwrap(), ..Deploy::default() };
        let pod = job(&image(None), None, &[], &deploy).spec.unwrap().template.spec.unwrap();
        assert_eq!(pod.node_selector, Some(text_map([("a", "b")])));
        assert_eq!(pod.tolerations.as_ref().unwrap()[0].key.as_deref(), Some("infra"));
        assert!(pod.affinity.as_ref().unwrap().node_affinity.is_some());
        for container in [reader(&pod), &pod.containers[0]] {
            let level = pod::variable("TEC_LOG", "debug");
            assert!(container.env.as_ref().unwrap().contains(&level), "{container:?}");
        }
        let memory = |container: &Container| {
            let limits = container.resources.clone().unwrap().limits.unwrap();
            (container.name.clone(), limits["memory"].0.clone())
        };
        let of = |name: &str, memory: &str| (name.to_owned(), memory.to_owned());
        assert_eq!(memory(reader(&pod)), of("measure", "2Gi"));
        assert_eq!(memory(&pod.containers[0]), of("compute-pcrs", "1Gi"));
    }

    #[test]
    fn the_pod_has_no_privileges() {
        let pod = pod_of(ImageAccess::default(), None);
        assert_eq!(pod.service_account_name.as_deref(), Some("compute-pcrs"));
        assert_eq!(pod.restart_policy.as_deref(), Some("Never"));
        assert_eq!(pod.security_context.unwrap().run_as_non_root, Some(true));
        let security = pod.containers[0].security_context.clone().unwrap();
        assert_eq!(security.read_only_root_filesystem, Some(true));
        assert_eq!(security.allow_privilege_escalation, Some(false));
    }
}
