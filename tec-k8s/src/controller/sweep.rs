//! Handles what no event reports: machines that never got a key, finalizers of an operator that is gone, and
//! object counts.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Resource as _, ResourceExt as _};
use serde_json::json;
use tec_core::machine::MachineState;
use tec_core::migrate::Deed;
use tec_core::port::{PortError, chain};
use tec_core::time::Timestamp;

use super::context::Context;
use super::key::has_older_disk_key;
use crate::api::{ApprovedImage, AttestationKey, ConditionKind, Machine, Reason, is_paused};
use crate::signal::{Event, Metric};

/// Interval between sweeps.
const EVERY: Duration = Duration::from_secs(30);
/// Seconds after which a machine without a key is removed, unless the cluster object sets another number.
const UNCLAIMED_TTL: u32 = 24 * 60 * 60;
/// Finalizer that the existing operator has on the Secrets of keys (trusted-cluster-operator).
const FOREIGN_FINALIZER: &str = "trusted-execution-clusters.io/attestationkey-secret-finalizer";

/// Runs until it is dropped.
pub(super) async fn run(ctx: &Context) {
    loop {
        if !ctx.is_paused() && ctx.clock_agrees().is_ok() {
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
        // A disk may be sealed with it: not every such node had an attestation key.
        if has_older_disk_key(ctx, &machine) || is_paused(&*machine) {
            continue;
        }
        if ctx.registry.expire_object(&machine, before).await? {
            removed += 1;
            ctx.event(&*machine, Event::UnclaimedRemoved, Event::UnclaimedRemoved.help()).await;
        }
    }
    if removed > 0 {
        tracing::info!(machines = removed, "machines without a key were removed");
    }
    Ok(())
}

/// Secrets of keys that the existing operator created cannot be removed without help.
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

/// The object counts, by state.
fn count(ctx: &Context) {
    let machines = ctx.caches.machines.all();
    let states: Vec<_> = machines.iter().map(|machine| machine_state(machine)).collect();
    let names = ["active", "failing", "quarantined", "retired", "revoked", "unclaimed"];
    set(ctx, Metric::Machines, &names, &states);
    let keys = ctx.caches.keys.all();
    let states: Vec<_> = keys.iter().map(|key| key_state(key)).collect();
    set(ctx, Metric::Keys, &["bound", "pending", "rejected", "revoked"], &states);
    let (images, now) = (ctx.caches.images.all(), ctx.latest());
    let states: Vec<_> = images.iter().map(|image| image_state(image, now)).collect();
    set(ctx, Metric::Images, &["live", "computing", "failed", "ended"], &states);
    next_ca(ctx);
}

/// Time since which the next CA has been waiting for machines; no series if it is not waiting.
fn next_ca(ctx: &Context) {
    let since = ctx.memory().authority.as_ref().and_then(|spoken| spoken.held_since);
    let since = since.filter(|_| ctx.cluster().is_some());
    match since.and_then(|since| usize::try_from(since.unix_seconds()).ok()) {
        Some(since) => ctx.metrics.set(Metric::NextCaHeldSince, &[], since),
        None => ctx.metrics.keep_only(Metric::NextCaHeldSince, &[]),
    }
}

/// Includes counts of zero: an alert cannot evaluate a missing series.
fn set(ctx: &Context, metric: Metric, names: &[&str], states: &[&str]) {
    for name in names {
        let count = states.iter().filter(|state| *state == name).count();
        ctx.metrics.set(metric, &[name], count);
    }
}

/// Whether a condition of this type has one of these reasons.
fn says(conditions: Option<&Vec<Condition>>, kind: ConditionKind, reasons: &[Reason]) -> bool {
    let mut said = conditions.into_iter().flatten().filter(|one| one.type_ == kind.as_str());
    said.any(|one| reasons.iter().any(|reason| one.reason == reason.as_str()))
}

fn machine_state(machine: &Machine) -> &'static str {
    let conditions = machine.status.as_ref().map(|status| &status.conditions);
    let failures = [Reason::KeyLost, Reason::Duplicate, Reason::Malformed];
    match machine.state() {
        MachineState::Revoked => "revoked",
        MachineState::Retired => "retired",
        _ if says(conditions, ConditionKind::Ready, &failures) => "failing",
        MachineState::Quarantined => "quarantined",
        MachineState::Unclaimed => "unclaimed",
        MachineState::Active => "active",
        // A state that this version does not know releases no key.
        _ => "failing",
    }
}

fn key_state(key: &AttestationKey) -> &'static str {
    let conditions = key.status.as_ref().map(|status| &status.conditions);
    let is = |reasons: &[Reason]| says(conditions, ConditionKind::Approved, reasons);
    match () {
        () if is(&[Reason::MachineCreated]) => "bound",
        () if is(&[Reason::Revoked]) => "revoked",
        // No decision can help these.
        () if is(&[Reason::Rejected, Reason::Malformed, Reason::KeyChanged]) => "rejected",
        () => "pending",
    }
}

fn image_state(image: &ApprovedImage, now: Timestamp) -> &'static str {
    let conditions = image.status.as_ref().map(|status| &status.conditions);
    let is = |reasons: &[Reason]| says(conditions, ConditionKind::Committed, reasons);
    let failures = [Reason::ComputationFailed, Reason::NoDigestGiven, Reason::Malformed];
    if image.spec.revoked_at.is_some() || is(&[Reason::Expired]) {
        return "ended";
    }
    match image.to_core() {
        _ if is(&failures) => "failed",
        Ok(known) if known.expected.pcrs.is_empty() => "computing",
        Ok(known) if known.is_live(now) => "live",
        Ok(_) => "ended",
        Err(_) => "failed",
    }
}
