//! Decides which key broker nodes reach, and switches from one kind to the other.
//!
//! ```text
//!   spec.keyBroker ─► objects of that kind are applied
//!        its Deployment is available ─► kbs-service selects its pods ─► the other kind is removed
//! ```
//! Both kinds use the same Service, port and certificate, and both read disk keys from Secrets, so nodes
//! notice nothing.

use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use tec_core::port::{PortError, PortErrorKind};

use super::context::Context;
use super::files::files;
use crate::api::{BrokerKind, TrustedExecutionCluster};
use crate::client::port_error;
use crate::render;
use crate::render::{KBS_SERVICE, Object, RenderError, component_of};

/// Everything that belongs to the cluster object. Nodes continue to reach the other key broker until this one
/// is available.
pub(super) async fn objects(
    ctx: &Context,
    cluster: &TrustedExecutionCluster,
) -> Result<Vec<Object>, PortError> {
    let kind = cluster.key_broker();
    let files = files(ctx, cluster, kind).await?;
    let objects = render::cluster(cluster, &ctx.parts.deploy, &files);
    let mut objects = objects.map_err(unrenderable)?;
    let serving = serving(ctx, kind);
    if serving != kind {
        objects.retain(|object| object.kind() != "Service" || object.name() != KBS_SERVICE);
        objects.push(render::broker_service(cluster, serving).map_err(unrenderable)?);
    }
    Ok(objects)
}

/// Removes what belongs only to the other kind, once nodes reach this one.
pub(super) async fn remove_other(
    ctx: &Context,
    cluster: &TrustedExecutionCluster,
) -> Result<(), PortError> {
    let kind = cluster.key_broker();
    let other = other(kind);
    let is_ours = |name: &str| {
        let deployment = ctx.caches.deployments.get(name)?;
        let mut owners = deployment.owner_references().iter();
        owners.find(|owner| Some(&owner.uid) == cluster.uid().as_ref()).map(drop)
    };
    if is_ours(component_of(other).deployment()).is_none() || serving(ctx, kind) != kind {
        return Ok(());
    }
    let objects = render::only_of(other, cluster, &ctx.parts.deploy).map_err(unrenderable)?;
    for object in &objects {
        remove(ctx, object).await?;
    }
    tracing::info!(removed = ?other, serves = ?kind, "nodes reach another key broker");
    Ok(())
}

async fn remove(ctx: &Context, object: &Object) -> Result<(), PortError> {
    let api = ctx.objects_like(object);
    match api.delete(object.name(), &DeleteParams::background()).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => {
            let what = format!("remove {} {}", object.kind(), object.name());
            return Err(port_error(what, error));
        }
    }
    Ok(())
}

/// The kind whose pods nodes reach: the desired one, unless only the other one is available.
fn serving(ctx: &Context, wanted: BrokerKind) -> BrokerKind {
    let is_available = |kind| {
        let deployment = ctx.caches.deployments.get(component_of(kind).deployment());
        deployment.is_some_and(|deployment| available_since(&deployment).is_some())
    };
    let other = other(wanted);
    if !is_available(wanted) && is_available(other) { other } else { wanted }
}

/// Time since which a Deployment has been available; `None` while it is not.
pub(super) fn available_since(deployment: &Deployment) -> Option<String> {
    let conditions = deployment.status.as_ref()?.conditions.as_ref()?;
    let available = conditions.iter().find(|c| c.type_ == "Available" && c.status == "True")?;
    let since = available.last_transition_time.as_ref().map(|time| time.0.to_string());
    Some(format!("{:?} {}", deployment.uid(), since.unwrap_or_default()))
}

fn other(kind: BrokerKind) -> BrokerKind {
    match kind {
        BrokerKind::Trustee => BrokerKind::Builtin,
        BrokerKind::Builtin => BrokerKind::Trustee,
    }
}

fn unrenderable(error: RenderError) -> PortError {
    PortError::new(PortErrorKind::Invalid, "render the objects of the cluster").because(error)
}
