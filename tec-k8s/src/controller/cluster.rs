//! The cluster object: its children, corrected whenever they differ, and its status.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt as _;
use serde_json::json;
use tec_core::boot::LiveImages;
use tec_core::code::Code;
use tec_core::pcr::PcrIndex;
use tec_core::port::{PortError, chain};

use super::broker;
use super::broker::available_since;
use super::child::apply;
use super::context::Context;
use super::queue::Next;
use super::report::{Said, resumed};
use super::rollout;
use super::rollout::Rollout;
use super::sync::live_images;
use super::{certificate, endorsement, token};
use crate::api::{
    BrokerKind, ConditionKind, PinsKind, Reason, TlsServer, Transport, TrustedExecutionCluster,
};
use crate::render::Object;
use crate::signal::Event;

/// The token signer expires eventually, and no event reports it.
const LOOK_AGAIN: Duration = Duration::from_hours(6);

/// Reconciles the cluster.
pub(super) async fn reconcile(ctx: &Context, name: &str) -> Result<Next, PortError> {
    wake_if_another_counts(ctx);
    let Some(cluster) = ctx.caches.clusters.get(name) else {
        return Ok(Next::Wait);
    };
    if cluster.metadata.deletion_timestamp.is_some() {
        let said = vec![(ConditionKind::Installed, Reason::Uninstalling, String::new())];
        write(ctx, &cluster, said).await?;
        return Ok(Next::Wait);
    }
    if let Some(first) = ctx.cluster().filter(|first| first.uid() != cluster.uid()) {
        let message = format!("{} is older; one namespace has one cluster", first.name_any());
        ctx.event(&*cluster, Event::NonUnique, &message).await;
        let said = vec![
            (ConditionKind::Installed, Reason::NonUnique, message),
            (ConditionKind::Ready, Reason::NonUnique, String::new()),
        ];
        write(ctx, &cluster, said).await?;
        return Ok(Next::Wait);
    }
    if cluster.is_paused() {
        let known = cluster.status.as_ref().map(|status| &status.conditions);
        ctx.say_paused(&*cluster, known).await?;
        return Ok(Next::Wait);
    }
    if let Err(error) = ctx.registry.remember_again().await {
        let error = chain(&error);
        tracing::warn!(error, "the cluster object does not remember the authority");
    }
    let mut rollout = Rollout::default();
    let installed = install(ctx, &cluster, &mut rollout).await;
    let mut said = verdicts(ctx, &cluster, &rollout, installed.as_ref().err());
    said.extend(resumed(cluster.status.as_ref().map(|status| &status.conditions)));
    warn_of_plain_http(ctx, &cluster).await;
    if installed.is_ok()
        && !is_said(&cluster, ConditionKind::Installed, Reason::InstallationCompleted)
    {
        ctx.event(&*cluster, Event::Installed, Event::Installed.help()).await;
    }
    rollout::warn_of_stuck(ctx, &cluster).await;
    write(ctx, &cluster, said).await?;
    ctx.publish.notify_one();
    let again = ctx.memory().authority.as_ref().and_then(|spoken| spoken.again);
    installed.map(|()| Next::After(again.unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN)))
}

/// The cluster object that counts determines what applies to machines, keys and images.
fn wake_if_another_counts(ctx: &Context) {
    let cluster = ctx.cluster();
    let counts =
        cluster.map(|cluster| (cluster.uid(), cluster.metadata.generation, cluster.is_paused()));
    let counts = format!("{counts:?}");
    let mut memory = ctx.memory();
    if memory.counting == counts {
        return;
    }
    memory.counting = counts;
    drop(memory);
    ctx.wake_all();
}

async fn install(
    ctx: &Context,
    cluster: &TrustedExecutionCluster,
    rollout: &mut Rollout,
) -> Result<(), PortError> {
    if let Err(skew) = ctx.clock_agrees() {
        // A wrong clock would issue certificates that are refused, and replace good ones. Revocations still
        // go out.
        configure(ctx, cluster).await?;
        return Err(skew);
    }
    token::ensure(ctx, cluster).await?;
    endorsement::ensure_key(ctx, cluster).await?;
    // Durable before anything serves with them, or reports them to nodes.
    certificate::issue(ctx, cluster).await?;
    let objects = broker::objects(ctx, cluster).await?;
    let mut first = None;
    for object in &objects {
        let applied = match object {
            Object::Deployment(wanted) => rollout.apply(ctx, cluster, wanted).await,
            object => apply(ctx, cluster, object).await.map(drop),
        };
        if let Err(error) = applied {
            tracing::warn!(
                object.kind = object.kind(),
                object.name = object.name(),
                error = chain(&error),
                "not applied"
            );
            ctx.event(cluster, Event::ApplyFailed, &chain(&error)).await;
            // The others are applied all the same.
            first.get_or_insert(error);
        }
    }
    if let Some(error) = first {
        return Err(error);
    }
    broker::remove_other(ctx, cluster).await?;
    // The keys for reaching the Trustees now exist.
    configure(ctx, cluster).await?;
    endorsement::check_roots(ctx, cluster).await
}

async fn configure(ctx: &Context, cluster: &TrustedExecutionCluster) -> Result<(), PortError> {
    let publish = cluster.spec.publish.clone().unwrap_or_default();
    let configured = ctx.parts.trust.configure(cluster, &publish).await;
    // A Trustee that cannot be read right now tells nothing about the others.
    let is_known = configured.as_ref().err().is_none_or(|error| !error.is_retryable());
    ctx.memory().is_configured |= is_known;
    configured
}

fn verdicts(
    ctx: &Context,
    cluster: &TrustedExecutionCluster,
    rollout: &Rollout,
    error: Option<&PortError>,
) -> Said {
    let (address, unknown) = address(cluster);
    let (installed, why) = match error {
        Some(error) => {
            let code = error.code().map(|code| format!("{code}: "));
            (Reason::Installing, code.unwrap_or_default() + &chain(error))
        }
        None => (Reason::InstallationCompleted, String::new()),
    };
    let is_down = |deployment: &Deployment| available_since(deployment).is_none();
    let down: Vec<String> =
        ctx.caches.deployments.all().iter().filter(|d| is_down(d)).map(|d| d.name_any()).collect();
    let lagging: Vec<String> = ctx
        .memory()
        .targets
        .iter()
        .filter(|target| !target.converged)
        .map(|target| target.name.clone())
        .collect();
    let (tls, plain) = tls(cluster);
    let (ready, missing) = if let Some(error) = error {
        let is_clock = error.code() == Some(Code::ClockSkewed);
        (if is_clock { Reason::ClockSkewed } else { Reason::ApplyFailed }, why.clone())
    } else if tls == Reason::PlainHttpUndecided {
        (tls, plain.clone())
    } else if let Some(waiting) = rollout.waiting() {
        (Reason::Progressing, waiting)
    } else if !down.is_empty() {
        (Reason::Progressing, format!("not available: {}", down.join(", ")))
    } else if !lagging.is_empty() {
        (Reason::Publishing, format!("not up to date: {}", lagging.join(", ")))
    } else if address != Reason::AddressFound {
        (address, unknown.clone())
    } else {
        (Reason::AsDesired, String::new())
    };
    let authority = ctx.memory().authority.as_ref().map(|spoken| spoken.said.clone());
    let mut said = vec![
        (ConditionKind::KnownTrusteeAddress, address, unknown),
        (ConditionKind::Installed, installed, why),
        (ConditionKind::Tls, tls, plain),
        audit_durable(cluster),
        (ConditionKind::Ready, ready, missing),
    ];
    // After an error some Deployments may not have been examined.
    said.extend((error.is_none() || rollout.waiting().is_some()).then(|| rollout.said()));
    said.extend(authority);
    said
}

/// Whether nodes can get the addresses of key brokers, and what to change if not.
fn address(cluster: &TrustedExecutionCluster) -> (Reason, String) {
    match (&cluster.spec.public_trustee_addr, cluster.additional_trustees()) {
        (_, Err(error)) => {
            let said = format!("no machine is registered: {}", chain(&error));
            (Reason::InvalidAdditionalTrustee, said)
        }
        (None, Ok(_)) => (Reason::NoAddressFound, "set spec.publicTrusteeAddr".to_owned()),
        (Some(_), Ok(_)) => (Reason::AddressFound, String::new()),
    }
}

/// Whether every server uses TLS, and what to do if one does not.
fn tls(cluster: &TrustedExecutionCluster) -> (Reason, String) {
    let is_plain = |server: &TlsServer| cluster.tls_secret(*server).is_none();
    let plain: Vec<_> = TlsServer::ALL.into_iter().filter(is_plain).map(TlsServer::field).collect();
    if plain.is_empty() {
        let said = match cluster.spec.dangerous_plain_http {
            Some(true) => "dangerousPlainHttp has no effect: nodes pin https since TLS was on",
            _ => "",
        };
        return (Reason::TlsEverywhere, said.to_owned());
    }
    let plain = plain.join(", ");
    if cluster.transport() == Transport::DangerousPlain {
        let said = format!("dangerousPlainHttp: true, and no {plain}");
        return (Reason::DangerousPlainHttp, said);
    }
    let command = |decision: &str| {
        let name = cluster.name_any();
        format!(
            "kubectl patch trustedexecutioncluster {name} --type merge \
             --patch '{{\"spec\":{{\"dangerousPlainHttp\":{decision}}}}}'"
        )
    };
    let said = format!(
        "no {plain}: installed with plain HTTP, which its nodes pin. To switch to TLS once they pin \
         https: {}. To stay: {}",
        command("false"),
        command("true"),
    );
    (Reason::PlainHttpUndecided, said)
}

fn audit_durable(cluster: &TrustedExecutionCluster) -> (ConditionKind, Reason, String) {
    let (reason, said) = match &cluster.spec.guard_state_claim {
        _ if cluster.key_broker() == BrokerKind::Builtin => (
            Reason::AuditInEvents,
            "the built-in key broker writes audit lines to its log and as Events, which the API \
             server drops after an hour by default; to keep them, collect either"
                .to_owned(),
        ),
        Some(claim) => (Reason::VolumeClaimNamed, claim.clone()),
        None => (
            Reason::NoVolumeClaim,
            "the guard's audit chain is lost with its pod; to keep it, name a PersistentVolumeClaim \
             in spec.guardStateClaim"
                .to_owned(),
        ),
    };
    (ConditionKind::AuditDurable, reason, said)
}

fn is_said(cluster: &TrustedExecutionCluster, kind: ConditionKind, reason: Reason) -> bool {
    let mut conditions = cluster.status.iter().flat_map(|status| &status.conditions);
    conditions.any(|one| one.type_ == kind.as_str() && one.reason == reason.as_str())
}

/// Reports plain HTTP once, when it begins.
async fn warn_of_plain_http(ctx: &Context, cluster: &TrustedExecutionCluster) {
    let (reason, said) = tls(cluster);
    let mut conditions = cluster.status.iter().flat_map(|status| &status.conditions);
    let is_known = conditions.any(|condition| condition.reason == reason.as_str());
    if reason != Reason::TlsEverywhere && !is_known {
        tracing::warn!(reason = reason.as_str(), "servers speak plain HTTP");
        ctx.event(cluster, Event::PlainHttp, &said).await;
    }
}

async fn write(
    ctx: &Context,
    cluster: &TrustedExecutionCluster,
    said: Said,
) -> Result<(), PortError> {
    let known = cluster.status.as_ref().map(|status| &status.conditions);
    let targets = ctx.memory().targets.clone();
    let pins = ctx.parts.trust.pins();
    let images = live_images(ctx);
    let pinned = pins.shared(&LiveImages::at(&images, ctx.latest()));
    let pinned: Vec<PcrIndex> = pinned.iter().collect();
    let status = json!({
        "observedGeneration": cluster.metadata.generation,
        "observedOperatorVersion": env!("CARGO_PKG_VERSION"),
        "pinnedPcrs": pinned,
        "pins": PinsKind::from(pins),
        "targets": targets,
    });
    ctx.say(cluster, known, &said, status).await
}
