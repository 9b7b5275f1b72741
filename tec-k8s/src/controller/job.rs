//! The Job that computes what an image measures. One for each reference, however many objects name
//! it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::batch::v1::JobSpec;
use k8s_openapi::api::core::v1::Container;
use k8s_openapi::api::core::v1::ImageVolumeSource;
use k8s_openapi::api::core::v1::LocalObjectReference;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::api::core::v1::Volume;
use k8s_openapi::api::core::v1::VolumeMount;
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use kube::api::ListParams;
use kube::api::ObjectMeta;
use kube::api::PostParams;
use sha1::Digest as _;
use tec_core::port::PortError;

use super::context::Context;
use super::report::owner_of;
use crate::api::ApprovedImage;
use crate::client::port_error;
use crate::render::Component;

/// Labels of the existing operator (upstream-operator 1.4).
const KIND_LABEL: (&str, &str) = ("kind", "compute-pcrs");
const IMAGE_LABEL: &str = "approved-image";
/// Longest value of a label, and longest name of a Job whose pods are labelled with it (RFC 1123).
const MAX_LABEL: usize = 63;
/// Where the image lies in the pod.
const IMAGE_DIR: &str = "/image";
/// Pods that are tried before the Job counts as failed.
const RETRIES: i32 = 2;
/// A Job that takes longer failed.
const LONGEST_SECONDS: i64 = 3600;

/// How a Job stands.
pub(super) enum JobState {
    Running,
    /// Its pod does not start.
    Pending(String),
    Done,
    Failed(String),
}

/// `compute-pcrs-<sha1[:10] of the reference>-<the reference, sanitised>`, cut to 63 characters
/// (upstream-operator 1.4).
pub(super) fn name(reference: &str) -> String {
    let digest = sha1::Sha1::digest(reference.as_bytes());
    let mut whole = "compute-pcrs-".to_owned();
    for byte in digest.iter().take(5) {
        // Writing to a String cannot fail.
        let _ = write!(whole, "{byte:02x}");
    }
    whole.push('-');
    let word = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    whole.extend(reference.chars().map(word));
    let cut: String = whole.chars().take(MAX_LABEL).collect();
    cut.trim_end_matches('-').to_owned()
}

/// How the Job of a reference stands; `None` where there is none.
pub(super) async fn state(ctx: &Context, reference: &str) -> Result<Option<JobState>, PortError> {
    let name = name(reference);
    let job = ctx.objects::<Job>().get_opt(&name).await;
    let job = job.map_err(|error| port_error(format!("look up the Job {name}"), error))?;
    let Some(job) = job.filter(|job| job.metadata.deletion_timestamp.is_none()) else {
        return Ok(None);
    };
    let status = job.status.unwrap_or_default();
    let mut conditions = status
        .conditions
        .iter()
        .flatten()
        .filter(|c| c.status == "True");
    if let Some(end) = conditions.find(|c| c.type_ == "Complete" || c.type_ == "Failed") {
        return Ok(Some(match end.type_.as_str() {
            "Complete" => JobState::Done,
            _ => JobState::Failed(
                end.message
                    .clone()
                    .unwrap_or_else(|| "its Job failed".to_owned()),
            ),
        }));
    }
    if status.completion_time.is_some() {
        return Ok(Some(JobState::Done));
    }
    Ok(Some(match waiting_pod(ctx, &name).await? {
        Some(why) => JobState::Pending(why),
        None => JobState::Running,
    }))
}

/// Why a pod of the Job does not start.
async fn waiting_pod(ctx: &Context, job: &str) -> Result<Option<String>, PortError> {
    let of_job = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={job}"));
    let pods = ctx.objects::<Pod>().list(&of_job).await;
    let pods = pods.map_err(|error| port_error(format!("list the pods of {job}"), error))?;
    let statuses = pods.items.into_iter().filter_map(|pod| pod.status);
    let pending = statuses.filter(|status| status.phase.as_deref() == Some("Pending"));
    let containers = pending.flat_map(|status| status.container_statuses.unwrap_or_default());
    let waiting = containers.filter_map(|container| container.state?.waiting);
    Ok(waiting
        .filter(|waiting| waiting.reason.as_deref() != Some("ContainerCreating"))
        .map(|waiting| {
            let parts = [waiting.reason, waiting.message];
            parts.into_iter().flatten().collect::<Vec<_>>().join(": ")
        })
        .next())
}

/// Creates the Job of an image; one that exists is left as it is.
pub(super) async fn create(ctx: &Context, image: &ApprovedImage) -> Result<(), PortError> {
    let job = rendered(ctx, image);
    match ctx
        .objects::<Job>()
        .create(&PostParams::default(), &job)
        .await
    {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(port_error(
            format!("create the Job {}", job.name_any()),
            error,
        )),
    }
}

/// Removes the Job of a reference, with its pods.
pub(super) async fn remove(ctx: &Context, reference: &str) -> Result<(), PortError> {
    let name = name(reference);
    if ctx.caches.jobs.get(&name).is_none() {
        return Ok(());
    }
    match ctx
        .objects::<Job>()
        .delete(&name, &DeleteParams::background())
        .await
    {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(port_error(format!("remove the Job {name}"), error)),
    }
}

fn rendered(ctx: &Context, image: &ApprovedImage) -> Job {
    // The name of an object may be longer than a label.
    let label: String = image.name_any().chars().take(MAX_LABEL).collect();
    let label = label.trim_end_matches(['-', '.']).to_owned();
    let kind = (KIND_LABEL.0.to_owned(), KIND_LABEL.1.to_owned());
    let labels = BTreeMap::from([kind, (IMAGE_LABEL.to_owned(), label)]);
    Job {
        metadata: ObjectMeta {
            name: Some(name(&image.spec.image)),
            labels: Some(labels.clone()),
            owner_references: owner_of(image).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(JobSpec {
            active_deadline_seconds: Some(LONGEST_SECONDS),
            backoff_limit: Some(RETRIES),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(labels),
                    ..ObjectMeta::default()
                }),
                spec: Some(pod(ctx, image)),
            },
            ..JobSpec::default()
        }),
        ..Job::default()
    }
}

fn pod(ctx: &Context, image: &ApprovedImage) -> PodSpec {
    let arguments = [
        "job",
        "--approved-image",
        &image.name_any(),
        "--image-dir",
        IMAGE_DIR,
    ];
    let pull_secret = image.spec.pull_secret.clone();
    PodSpec {
        containers: vec![Container {
            args: Some(arguments.map(str::to_owned).to_vec()),
            image: Some(ctx.parts.deploy.images.compute_pcrs.clone()),
            name: Component::ComputePcrs.deployment().to_owned(),
            volume_mounts: Some(vec![VolumeMount {
                mount_path: IMAGE_DIR.to_owned(),
                name: "image".to_owned(),
                read_only: Some(true),
                ..VolumeMount::default()
            }]),
            ..Container::default()
        }],
        image_pull_secrets: pull_secret.map(|name| vec![LocalObjectReference { name }]),
        restart_policy: Some("Never".to_owned()),
        service_account_name: Some(Component::ComputePcrs.service_account().to_owned()),
        volumes: Some(vec![Volume {
            image: Some(ImageVolumeSource {
                pull_policy: Some("IfNotPresent".to_owned()),
                reference: Some(image.spec.image.clone()),
            }),
            name: "image".to_owned(),
            ..Volume::default()
        }]),
        ..PodSpec::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_job_is_that_of_existing_clusters_and_fits() {
        let reference = "quay.io/fedora/fedora-coreos@sha256:3d6772b4f84ed47595d72a2c4c5ffd15f5bb72c7507fe26f2aaee2c69d5633ba";
        let name = name(reference);
        assert!(
            name.starts_with("compute-pcrs-") && name.len() <= MAX_LABEL,
            "{name}"
        );
        assert!(name.contains("-quay-io-fedora-fedora-coreos-"), "{name}");
        assert_ne!(name, super::name(&reference.replace("quay", "other")));
    }
}
