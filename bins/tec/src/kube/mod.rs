//! What exists on a Kubernetes cluster alone: its objects, its members, its checks.

pub(crate) mod access;
pub(crate) mod ak;
pub(crate) mod bundle;
pub(crate) mod check;
pub(crate) mod cli;
pub(crate) mod ignition;
pub(crate) mod image;
pub(crate) mod machine;
pub(crate) mod member;
mod redact;
pub(crate) mod status;

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use tec_core::code::Code;
use tec_core::image::ApprovedImage;
use tec_core::port::{PortError, PortErrorKind};
use tec_k8s::api::ConditionKind;
use tec_k8s::client::KubeRegistry;
use tec_support::SystemClock;
use tec_support::exit::CodedError;

use self::access::Cluster;
use crate::args::Access;

/// Field manager of changes that people make with this program.
const FIELD_MANAGER: &str = "kubectl-tec";

/// A namespace as a trust anchor.
pub(crate) async fn registry(access: &Access) -> anyhow::Result<KubeRegistry> {
    Ok(of(&Cluster::connect(access).await?))
}

pub(crate) fn of(cluster: &Cluster) -> KubeRegistry {
    let clock = Arc::new(SystemClock);
    KubeRegistry::new(cluster.client.clone(), &cluster.namespace, clock)
}

/// Adds a code to the error of a port.
fn failed(context: impl Into<String>) -> impl FnOnce(PortError) -> CodedError {
    let context = context.into();
    move |error| CodedError::caused(code_of(&error), context, error)
}

pub(crate) fn code_of(error: &PortError) -> Code {
    let fallback = match error.kind() {
        PortErrorKind::Denied => Code::ClusterForbidden,
        PortErrorKind::NotFound => Code::ClusterMissing,
        PortErrorKind::Conflict => Code::ClusterConflict,
        _ => Code::ClusterUnreachable,
    };
    error.code().unwrap_or(fallback)
}

/// The approved images of a namespace, and any Trustee that does not hold them all yet.
pub(crate) async fn approvals(
    access: &Access,
) -> anyhow::Result<(Vec<ApprovedImage>, Option<String>)> {
    let cluster = Cluster::connect(access).await?;
    let objects = cluster.list::<tec_k8s::api::ApprovedImage>().await?;
    let images = objects.iter().filter_map(|object| object.to_core().ok());
    let status = cluster.cluster_object().await?.status.unwrap_or_default();
    let mut lagging = status.targets.into_iter().filter(|target| !target.converged);
    Ok((images.collect(), lagging.next().map(|target| target.name)))
}

/// The condition of this type.
fn condition<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

fn is_true(conditions: &[Condition], kind: ConditionKind) -> bool {
    condition(conditions, kind.as_str()).is_some_and(|condition| condition.status == "True")
}
