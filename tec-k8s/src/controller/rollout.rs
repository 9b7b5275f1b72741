//! Deployments, rolled out one after the other.
//!
//! ```text
//!   key broker ─► attestation-key-register ─► register-server
//! ```
//! A Deployment that changes keeps its pods until the ones before it have rolled out: a version whose key
//! broker does not start is not rolled out any further, and nodes learn about a server only once it is
//! running. New Deployments and mere corrections are applied immediately.
//!
//! A Deployment that another operator created for the same cluster object is taken over: its fields become
//! ours, so that those that are no longer desired are removed. Otherwise they would stay beside ours, and the
//! API server refuses some pairs, such as a volume with two sources or `Recreate` with `rollingUpdate`.

use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::ResourceExt as _;
use serde_json::json;
use tec_core::digest::Sha256Digest;
use tec_core::port::{PortError, PortErrorKind};

use super::child::apply;
use super::context::Context;
use crate::api::{ConditionKind, FIELD_MANAGER, Reason, TrustedExecutionCluster};
use crate::client::port_error;
use crate::render::Object;
use crate::signal::Event;

/// Digest of the desired state when it was last applied.
const WANTED: &str = "trusted-execution-clusters.io/wanted";

/// Progress of the rollout of a cluster object's Deployments.
#[derive(Debug, Default)]
pub(super) struct Rollout {
    /// The first Deployment that is not done, and what is missing.
    waits_for: Option<(String, String)>,
    is_stuck: bool,
    /// The Deployments that wait for it, in their order.
    held_back: Vec<String>,
}

impl Rollout {
    /// Applies the next Deployment, unless it has to wait.
    pub(super) async fn apply(
        &mut self,
        ctx: &Context,
        cluster: &TrustedExecutionCluster,
        wanted: &Deployment,
    ) -> Result<(), PortError> {
        let name = wanted.name_any();
        let digest = serde_json::to_vec(wanted).map(Sha256Digest::of);
        let digest = digest.map_err(|error| {
            PortError::new(PortErrorKind::Internal, format!("write {name}")).because(error)
        })?;
        let digest = digest.to_string();
        let live = match ctx.caches.deployments.get(&name) {
            Some(known) => Some(known.as_ref().clone()),
            // Another operator's Deployment has none of our labels.
            None => found(ctx, &name).await?,
        };
        let is_as_before = |live: &Deployment| live.annotations().get(WANTED) == Some(&digest);
        if self.waits_for.is_some() && live.as_ref().is_some_and(|live| !is_as_before(live)) {
            self.held_back.push(name);
            return Ok(());
        }
        if let Some(live) = &live {
            take_over(ctx, cluster, live).await?;
        }
        let mut wanted = wanted.clone();
        wanted.annotations_mut().insert(WANTED.to_owned(), digest);
        let applied = apply(ctx, cluster, &Object::from(wanted)).await?;
        let applied: Deployment = applied.try_parse().map_err(|error| {
            PortError::new(PortErrorKind::Invalid, format!("read {name}")).because(error)
        })?;
        if self.waits_for.is_none()
            && let Some(missing) = missing(&applied)
        {
            self.is_stuck = stuck(&applied).is_some();
            self.waits_for = Some((name, missing));
        }
        Ok(())
    }

    /// What the rollout waits for, and what waits; `None` if all is done.
    pub(super) fn waiting(&self) -> Option<String> {
        let (name, missing) = self.waits_for.as_ref()?;
        let held_back = match &*self.held_back {
            [] => String::new(),
            held_back => format!("; held back until then, in order: {}", held_back.join(", ")),
        };
        Some(format!("waits for {name}: {missing}{held_back}"))
    }

    /// The condition to set.
    pub(super) fn said(&self) -> (ConditionKind, Reason, String) {
        let reason = match (&self.waits_for, self.is_stuck) {
            (None, _) => Reason::UpgradeComplete,
            (Some(_), false) => Reason::UpgradeInProgress,
            (Some(_), true) => Reason::UpgradeFailed,
        };
        (ConditionKind::Upgrade, reason, self.waiting().unwrap_or_default())
    }
}

async fn found(ctx: &Context, name: &str) -> Result<Option<Deployment>, PortError> {
    let found = ctx.objects::<Deployment>().get_opt(name).await;
    found.map_err(|error| port_error(format!("look up the Deployment {name}"), error))
}

/// Takes over the fields that another operator set when it created the Deployment. Nothing else changes until
/// it is applied.
async fn take_over(
    ctx: &Context,
    cluster: &TrustedExecutionCluster,
    live: &Deployment,
) -> Result<(), PortError> {
    let Some(entries) = handed_over(live, cluster) else {
        return Ok(());
    };
    let name = live.name_any();
    ctx.write_metadata(live, json!({ "managedFields": entries })).await?;
    tracing::info!(deployment = name, "taken over from another operator");
    Ok(())
}

/// The entries, with ours in place of those of the operator that made it a child of the cluster object;
/// `None` if we applied it already, or if no operator made it one.
fn handed_over(
    live: &Deployment,
    cluster: &TrustedExecutionCluster,
) -> Option<Vec<ManagedFieldsEntry>> {
    let mut entries = live.metadata.managed_fields.clone()?;
    let is = |entry: &ManagedFieldsEntry, operation: &str| {
        entry.operation.as_deref() == Some(operation) && entry.subresource.is_none()
    };
    let is_ours = |entry: &ManagedFieldsEntry| entry.manager.as_deref() == Some(FIELD_MANAGER);
    if entries.iter().any(|entry| is_ours(entry) && is(entry, "Apply")) {
        return None;
    }
    let owner = format!("k:{}", json!({ "uid": cluster.metadata.uid.as_ref()? }));
    let made_it = |entry: &ManagedFieldsEntry| {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
        let owners = fields.and_then(|fields| fields.get("f:metadata")?.get("f:ownerReferences"));
        is(entry, "Update") && owners.is_some_and(|owners| owners.get(&owner).is_some())
    };
    let entry = entries.iter_mut().find(|entry| made_it(entry))?;
    entry.manager = Some(FIELD_MANAGER.to_owned());
    entry.operation = Some("Apply".to_owned());
    Some(entries)
}

/// What a rollout lacks (Kubernetes, Deployments, "Complete Deployment"); `None` if no controller ever
/// processed it.
fn missing(deployment: &Deployment) -> Option<String> {
    let status = deployment.status.as_ref()?;
    let observed = status.observed_generation?;
    if let Some(why) = stuck(deployment) {
        return Some(why.to_owned());
    }
    if deployment.metadata.generation.is_some_and(|generation| observed < generation) {
        return Some("its change was not looked at yet".to_owned());
    }
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let DeploymentStatus { replicas, updated_replicas, available_replicas, .. } = status;
    let [all, new, available] =
        [replicas, updated_replicas, available_replicas].map(|count| count.unwrap_or(0));
    if new < wanted {
        Some(format!("{new} of {wanted} pods are of the new version"))
    } else if all > new {
        Some(format!("{} pods of the old version end", all.saturating_sub(new)))
    } else {
        (available < wanted).then(|| format!("{available} of {wanted} pods are available"))
    }
}

/// Why the rollout of a Deployment is stuck (Kubernetes, Deployments, "Failed Deployment").
fn stuck(deployment: &Deployment) -> Option<&str> {
    let conditions = deployment.status.as_ref()?.conditions.as_ref()?;
    let progress = conditions.iter().find(|one| one.type_ == "Progressing")?;
    let is_stuck = progress.reason.as_deref() == Some("ProgressDeadlineExceeded");
    is_stuck.then(|| progress.message.as_deref().unwrap_or_default())
}

/// Reports each Deployment whose new pods did not become ready in time, once per version.
pub(super) async fn warn_of_stuck(ctx: &Context, cluster: &TrustedExecutionCluster) {
    for deployment in ctx.caches.deployments.all() {
        let name = deployment.name_any();
        let Some(why) = stuck(&deployment) else {
            continue;
        };
        let version = format!("{:?} {:?}", deployment.uid(), deployment.metadata.generation);
        let known = ctx.memory().stuck.insert(name.clone(), version.clone());
        if known.as_ref() != Some(&version) {
            ctx.event(cluster, Event::UpgradeFailed, &format!("{name}: {why}")).await;
        }
    }
}
