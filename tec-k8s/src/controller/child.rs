//! Applies one child of the cluster object.

use kube::ResourceExt as _;
use kube::api::{DynamicObject, Patch, PatchParams};
use tec_core::digest::Sha256Digest;
use tec_core::port::PortError;

use super::broker::available_since;
use super::context::Context;
use crate::api::{FIELD_MANAGER, TrustedExecutionCluster};
use crate::client::port_error;
use crate::render::{Object, TRUSTEE_DEPLOYMENT};
use crate::signal::{Event, Metric};

/// Name of the cluster's own Trustee in the status.
const OWN_TRUSTEE: &str = "trustee";

/// Applies one child. Additions by others stay; their changes to our fields are reverted.
pub(super) async fn apply(
    ctx: &Context,
    cluster: &TrustedExecutionCluster,
    object: &Object,
) -> Result<DynamicObject, PortError> {
    let api = ctx.objects_like(object);
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let what = format!("{} {}", object.kind(), object.name());
    let applied = api.patch(object.name(), &params, &Patch::Apply(object)).await;
    let applied = applied.map_err(|error| port_error(format!("apply {what}"), error))?;
    // A generation changes with the spec; objects without one have no status either.
    let version = match applied.metadata.generation {
        Some(generation) => format!("{:?} {generation}", applied.uid()),
        None => applied.resource_version().unwrap_or_default(),
    };
    // The desired state may change while the cluster object stays the same: that is not drift.
    let wanted = serde_json::to_vec(object).map(Sha256Digest::of);
    let same_wish = format!("{:?} {wanted:?} ", cluster.metadata.generation);
    let cause = format!("{same_wish}{version}");
    let known = ctx.memory().applied.insert(what.clone(), cause.clone());
    if known.is_some_and(|known| known != cause && known.starts_with(&same_wish)) {
        ctx.metrics.count(Metric::DriftRepairs, &[object.kind()]);
        ctx.event(cluster, Event::DriftRepaired, &what).await;
    }
    if object.name() == TRUSTEE_DEPLOYMENT {
        distrust_when_replaced(ctx).await;
    }
    Ok(applied)
}

/// A Trustee that became available again may be a new pod, which holds nothing.
async fn distrust_when_replaced(ctx: &Context) {
    let Some(deployment) = ctx.caches.deployments.get(TRUSTEE_DEPLOYMENT) else {
        return;
    };
    let since = available_since(&deployment);
    if since.is_none() {
        ctx.memory().available_since = None;
        return;
    }
    let is_new = ctx.memory().available_since != since;
    if is_new {
        ctx.memory().available_since = since;
        ctx.parts.trust.distrust(OWN_TRUSTEE).await;
        ctx.publish.notify_one();
    }
}
