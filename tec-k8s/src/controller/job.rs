//! The Job that computes what an image measures: one for each reference and way to boot it, however many objects
//! name these.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ContainerState, LocalObjectReference, Pod};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, PostParams};
use tec_core::port::PortError;

use super::context::Context;
use crate::api::ApprovedImage;
use crate::client::port_error;
use crate::render;
use crate::render::job_name;

/// State of a Job.
pub(super) enum JobState {
    Running,
    /// Its pod does not start.
    Pending(String),
    Done,
    Failed(String),
}

/// The state of an image's Job; `None` if there is none.
pub(super) async fn state(
    ctx: &Context,
    image: &ApprovedImage,
) -> Result<Option<JobState>, PortError> {
    let name = job_name(image);
    let job = ctx.objects::<Job>().get_opt(&name).await;
    let job = job.map_err(|error| port_error(format!("look up the Job {name}"), error))?;
    let Some(job) = job.filter(|job| job.metadata.deletion_timestamp.is_none()) else {
        return Ok(None);
    };
    let status = job.status.unwrap_or_default();
    let mut conditions = status.conditions.iter().flatten().filter(|c| c.status == "True");
    if let Some(end) = conditions.find(|c| c.type_ == "Complete" || c.type_ == "Failed") {
        if end.type_ == "Complete" {
            return Ok(Some(JobState::Done));
        }
        // The program reports more than the Job, which counts attempts.
        let why = last_words(ctx, &name).await?.or_else(|| end.message.clone());
        let why = why.unwrap_or_else(|| "its Job failed".to_owned());
        return Ok(Some(JobState::Failed(why)));
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
    let states = container_states(ctx, job, "Pending").await?;
    let waiting = states.into_iter().filter_map(|state| state.waiting);
    // What the kubelet reports for containers whose turn has not come.
    let early = ["ContainerCreating", "PodInitializing"].map(Some);
    Ok(waiting
        .filter(|waiting| !early.contains(&waiting.reason.as_deref()))
        .map(|waiting| {
            let parts = [waiting.reason, waiting.message];
            parts.into_iter().flatten().collect::<Vec<_>>().join(": ")
        })
        .next())
}

/// The termination message of the program in a failed pod.
async fn last_words(ctx: &Context, job: &str) -> Result<Option<String>, PortError> {
    let states = container_states(ctx, job, "Failed").await?;
    let ends = states.into_iter().filter_map(|state| state.terminated);
    Ok(ends.filter_map(|end| end.message).find(|message| !message.is_empty()))
}

/// Containers of a Job's pods that are in this phase.
async fn container_states(
    ctx: &Context,
    job: &str,
    phase: &str,
) -> Result<Vec<ContainerState>, PortError> {
    let of_job = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={job}"));
    let pods = ctx.objects::<Pod>().list(&of_job).await;
    let pods = pods.map_err(|error| port_error(format!("list the pods of {job}"), error))?;
    let statuses = pods.items.into_iter().filter_map(|pod| pod.status);
    let in_phase = statuses.filter(|status| status.phase.as_deref() == Some(phase));
    let containers = in_phase.flat_map(|status| {
        let first = status.init_container_statuses.unwrap_or_default();
        let then = status.container_statuses.unwrap_or_default();
        first.into_iter().chain(then)
    });
    Ok(containers.filter_map(|container| container.state).collect())
}

/// Creates the Job of an image; an existing one is left as it is.
pub(super) async fn create(ctx: &Context, image: &ApprovedImage) -> Result<(), PortError> {
    let cluster = ctx.cluster();
    let cluster = cluster.as_ref().map(|cluster| &cluster.spec);
    let own = own_pull_secrets(ctx).await?;
    let job = render::job(image, cluster, &own, &ctx.parts.deploy);
    match ctx.objects::<Job>().create(&PostParams::default(), &job).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(port_error(format!("create the Job {}", job.name_any()), error)),
    }
}

/// The Secrets with which the operator's image was pulled: the packages add them to every account. Empty
/// outside a pod.
async fn own_pull_secrets(ctx: &Context) -> Result<Vec<LocalObjectReference>, PortError> {
    let name = &ctx.parts.identity;
    let pod = ctx.objects::<Pod>().get_opt(name).await;
    let pod = pod.map_err(|error| port_error(format!("look up the pod {name}"), error))?;
    Ok(pod.and_then(|pod| pod.spec?.image_pull_secrets).unwrap_or_default())
}

/// Removes the Job of an image, with its pods.
pub(super) async fn remove(ctx: &Context, image: &ApprovedImage) -> Result<(), PortError> {
    let name = job_name(image);
    if ctx.caches.jobs.get(&name).is_none() {
        return Ok(());
    }
    match ctx.objects::<Job>().delete(&name, &DeleteParams::background()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(port_error(format!("remove the Job {name}"), error)),
    }
}
