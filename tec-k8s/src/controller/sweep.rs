//! What no event tells of: machines that never got a key, finalizers of an operator that is gone,
//! and the numbers of things.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::{Resource as _, ResourceExt as _};
use serde_json::json;
use tec_core::machine::MachineState;
use tec_core::migrate::Deed;
use tec_core::port::{PortError, chain};

use super::context::Context;
use crate::api::{ConditionKind, Reason};
use crate::signal::Metric;

/// How often it is looked.
const EVERY: Duration = Duration::from_secs(30);
/// Seconds after which a machine without a key goes, unless the cluster object says another number.
const UNCLAIMED_TTL: u32 = 24 * 60 * 60;
/// Finalizer that the existing operator has on the Secrets of keys (trusted-cluster-operator).
const FOREIGN_FINALIZER: &str = "trusted-execution-clusters.io/attestationkey-secret-finalizer";

/// Runs until it is dropped.
pub(super) async fn run(ctx: &Context) {
    loop {
        if !ctx.is_paused() {
            clean(ctx).await;
        }
        count(ctx);
        tokio::time::sleep(EVERY).await;
    }
}

async fn clean(ctx: &Context) {
    if let Err(error) = expire(ctx).await {
        tracing::warn!(error = chain(&error), "unclaimed machines are not removed");
    }
    if let Err(error) = release(ctx).await {
        tracing::warn!(error = chain(&error), "a finalizer stays");
    }
}

async fn expire(ctx: &Context) -> Result<(), PortError> {
    let Some(cluster) = ctx.cluster().filter(|_| ctx.may(Deed::Admit)) else {
        return Ok(());
    };
    let registration = cluster.spec.registration.as_ref();
    let ttl = registration.and_then(|registration| registration.unclaimed_ttl_seconds);
    let before = ctx.now().plus_seconds(-i64::from(ttl.unwrap_or(UNCLAIMED_TTL)));
    let mut removed = 0_u32;
    for machine in ctx.caches.machines.all() {
        removed += u32::from(ctx.registry.expire_object(&machine, before).await?);
    }
    if removed > 0 {
        tracing::info!(machines = removed, "machines without a key were removed");
    }
    Ok(())
}

/// Secrets of keys that the existing operator made cannot go by themselves.
async fn release(ctx: &Context) -> Result<(), PortError> {
    for secret in ctx.caches.secrets.all() {
        let is_stuck = secret.meta().deletion_timestamp.is_some()
            && secret.finalizers().iter().any(|known| known == FOREIGN_FINALIZER);
        if is_stuck {
            let others = secret.finalizers().iter().filter(|known| *known != FOREIGN_FINALIZER);
            let others: Vec<_> = others.collect();
            let bare = Secret { metadata: secret.metadata.clone(), ..Secret::default() };
            ctx.write_metadata(&bare, json!({ "finalizers": others })).await?;
        }
    }
    Ok(())
}

/// The numbers of things, by state.
fn count(ctx: &Context) {
    let machines = ctx.caches.machines.all();
    let in_state = |state| machines.iter().filter(|machine| machine.state() == state).count();
    for (name, state) in [
        ("active", MachineState::Active),
        ("unclaimed", MachineState::Unclaimed),
        ("quarantined", MachineState::Quarantined),
        ("revoked", MachineState::Revoked),
        ("retired", MachineState::Retired),
    ] {
        ctx.metrics.set(Metric::Machines, &[name], in_state(state));
    }
    let keys = ctx.caches.keys.all();
    let with_reason = |reason: Reason| {
        let is_it = |key: &crate::api::AttestationKey| {
            let conditions = key.status.iter().flat_map(|status| &status.conditions);
            conditions
                .filter(|condition| condition.type_ == ConditionKind::Approved.as_str())
                .any(|condition| condition.reason == reason.as_str())
        };
        keys.iter().filter(|key| is_it(key)).count()
    };
    let (bound, revoked) = (with_reason(Reason::MachineCreated), with_reason(Reason::Revoked));
    for (name, count) in [
        ("bound", bound),
        ("revoked", revoked),
        ("pending", keys.len().saturating_sub(bound + revoked)),
    ] {
        ctx.metrics.set(Metric::Keys, &[name], count);
    }
    ctx.metrics.set(Metric::Images, &["live"], live(ctx));
}

fn live(ctx: &Context) -> usize {
    let now = ctx.now();
    let all = ctx.caches.images.all();
    let known = all.iter().filter_map(|image| image.to_core().ok());
    known.filter(|image| !image.expected.pcrs.is_empty() && image.is_live(now)).count()
}
