//! `tec kube`, which is `kubectl tec`: the same questions as of the store, asked of a cluster.
//!
//! ```text
//! Cluster: one namespace of an API server ─► objects ─► pure reports ─► Output
//! ```

pub(crate) mod access;
mod ak;
mod audit;
mod bundle;
mod check;
pub(crate) mod cli;
mod explain;
pub(crate) mod ignition;
mod image;
mod lookup;
mod machine;
mod member;
mod nodes;
mod redact;
mod release;
mod status;

use std::sync::Arc;

use clap::CommandFactory as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use tec_core::code::Code;
use tec_core::image::ApprovedImage;
use tec_core::port::{PortError, PortErrorKind};
use tec_k8s::client::KubeRegistry;
use tec_support::SystemClock;
use tec_support::exit::{CodedError, OK};

use self::access::Cluster;
use self::cli::{Access, KubeArgs, KubeCommand, Plugin};
use crate::output::Output;

/// Field manager of what people change with this program.
const FIELD_MANAGER: &str = "kubectl-tec";

/// Runs one command.
pub(crate) async fn run(args: KubeArgs, output: Output) -> anyhow::Result<u8> {
    if let KubeCommand::Completion { shell } = args.command {
        let mut plugin = Plugin::command();
        clap_complete::generate(shell, &mut plugin, "kubectl-tec", &mut std::io::stdout());
        return Ok(OK);
    }
    let cluster = Cluster::connect(&args.access).await?;
    match args.command {
        KubeCommand::Status => status::status(&cluster, output).await,
        KubeCommand::Check => check::check(&cluster, output).await,
        KubeCommand::Machine(command) => machine::machine(&cluster, command, output).await,
        KubeCommand::Member(command) => member::member(&cluster, command, output).await,
        KubeCommand::Ak(command) => ak::ak(&cluster, command, output).await,
        KubeCommand::Image(command) => image::image(&cluster, command, output).await,
        KubeCommand::Explain { subject } => explain::explain(&cluster, &subject, output).await,
        KubeCommand::Audit(command) => audit::audit(&cluster, command, output).await,
        KubeCommand::Ignition(command) => ignition::ignition(&cluster, command, output).await,
        KubeCommand::SupportBundle { file, dry_run } => {
            bundle::bundle(&cluster, &file, dry_run, output).await
        }
        KubeCommand::Completion { .. } => Ok(OK),
    }
}

/// A namespace as a trust anchor.
pub(crate) async fn registry(access: &Access) -> anyhow::Result<KubeRegistry> {
    Ok(of(&Cluster::connect(access).await?))
}

pub(crate) fn of(cluster: &Cluster) -> KubeRegistry {
    let clock = Arc::new(SystemClock);
    KubeRegistry::new(cluster.client.clone(), &cluster.namespace, clock)
}

/// Gives a port's error its code.
fn failed(context: impl Into<String>) -> impl FnOnce(PortError) -> CodedError {
    let context = context.into();
    move |error| {
        let fallback = match error.kind() {
            PortErrorKind::Denied => Code::ClusterForbidden,
            PortErrorKind::NotFound => Code::ClusterMissing,
            _ => Code::ClusterUnreachable,
        };
        CodedError::caused(error.code().unwrap_or(fallback), context, error)
    }
}

/// The approved images of a namespace, and a Trustee that does not hold what it should yet.
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

/// Status and reason of a condition, for a table.
fn cells(conditions: &[Condition], kind: &str) -> [String; 2] {
    condition(conditions, kind).map_or_else(
        || ["Unknown".to_owned(), String::new()],
        |condition| [condition.status.clone(), condition.reason.clone()],
    )
}

/// A text that may be missing, for a table.
fn cell(text: Option<&String>) -> String {
    text.map_or_else(|| "-".to_owned(), Clone::clone)
}
