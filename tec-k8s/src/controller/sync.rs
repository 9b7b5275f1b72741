//! Publishes to the Trustees: determines which images are live, runs one round, then records which Trustee
//! has what.

use std::time::Duration;

use kube::ResourceExt as _;
use tec_core::image::ApprovedImage;
use tec_core::migrate::Deed;
use tec_core::port::{PortError, chain};

use super::context::{Context, Task};
use super::machine;
use crate::api::TargetStatus;
use crate::signal::{Event, Metric};

/// How long to collect changes that are published together.
const GATHER: Duration = Duration::from_millis(100);
/// How long the first round waits for machines whose facts cannot be read.
const LONGEST_START: Duration = Duration::from_mins(1);
/// Interval between rounds without any change, to detect a Trustee that lost something.
const AT_LEAST: Duration = Duration::from_mins(10);

/// Runs until it is dropped.
pub(super) async fn run(ctx: &Context) {
    let seen_all = async {
        while !ctx.memory().unseen.is_empty() {
            ctx.publish.notified().await;
        }
    };
    if tokio::time::timeout(LONGEST_START, seen_all).await.is_err() {
        keep_unseen(ctx);
    }
    ctx.memory().read_ahead.clear();
    loop {
        let again = match round(ctx).await {
            Ok(again) => again,
            Err(error) => {
                tracing::warn!(error = chain(&error), "nothing is published");
                Some(AT_LEAST / 10)
            }
        };
        let wait = again.unwrap_or(AT_LEAST).min(AT_LEAST);
        // Whichever comes first, a round is due.
        let _ = tokio::time::timeout(wait, ctx.publish.notified()).await;
        tokio::time::sleep(GATHER).await;
    }
}

/// Makes Trustees keep the disk keys of machines whose facts cannot be read.
fn keep_unseen(ctx: &Context) {
    let unseen = ctx.memory().unseen.clone();
    tracing::error!(machines = unseen.len(), "publishing begins although machines cannot be read");
    for name in &unseen {
        let kept = ctx.caches.machines.get(name).map(|machine| {
            let is_live =
                !machine.state().is_final() && machine.metadata.deletion_timestamp.is_none();
            match machine.machine_id().ok().filter(|_| is_live) {
                Some(id) => machine::keep(ctx, &machine, &id),
                None => Ok(()),
            }
        });
        if let Some(Err(error)) = kept {
            tracing::error!(machine.name = name, error = chain(&error), "its key is not kept");
        }
    }
}

async fn round(ctx: &Context) -> Result<Option<Duration>, PortError> {
    if ctx.is_paused() {
        return Ok(None);
    }
    // Revocations of keys and machines go out, whatever is wrong with images.
    let stated = ctx.parts.trust.set_images(live_images(ctx));
    let waiting = std::mem::take(&mut ctx.memory().unpublished);
    let round = ctx.parts.trust.round().await;
    for target in &round.targets {
        let lag = usize::try_from(target.lag).unwrap_or(usize::MAX);
        ctx.metrics.set(Metric::TargetLag, &[&target.name], lag);
        let converged = usize::from(target.converged);
        ctx.metrics.set(Metric::TargetConverged, &[&target.name], converged);
    }
    // A Trustee that is no longer in the list lacks nothing.
    let names: Vec<_> = round.targets.iter().map(name_of).collect();
    for metric in [Metric::TargetLag, Metric::TargetConverged] {
        ctx.metrics.keep_only(metric, &names);
    }
    report(ctx, &round.targets).await;
    let is_alone = ctx.cluster().is_none();
    let mut memory = ctx.memory();
    let is_news = memory.targets != round.targets;
    let names = round.targets.iter().map(name_of);
    let is_other = !memory.targets.iter().map(name_of).eq(names);
    memory.targets = round.targets;
    memory.had_round |= memory.is_configured || is_alone;
    drop(memory);
    for name in waiting {
        ctx.queue.wake(Task::Machine(name));
    }
    if is_other {
        // Machines that were published before this Trustee existed, or while there was a different one.
        for machine in ctx.caches.machines.all() {
            ctx.queue.wake(Task::Machine(machine.name_any()));
        }
    }
    let is_news = is_news || matches!(stated, Ok(true));
    if is_news && let Some(cluster) = ctx.cluster() {
        ctx.queue.wake(Task::Cluster(cluster.name_any()));
    }
    stated.map(|_| round.again)
}

/// Events for a Trustee that cannot be published to, and for one that can be again.
async fn report(ctx: &Context, targets: &[TargetStatus]) {
    let known = ctx.memory().targets.clone();
    for target in targets {
        let before = known.iter().find(|known| known.name == target.name);
        let failed = |target: &TargetStatus| target.message.is_some();
        let had_failed = before.is_some_and(failed);
        let (event, note) = match &target.message {
            Some(why) if !had_failed => (Event::PublishFailed, format!("{}: {why}", target.name)),
            None if had_failed && target.converged => {
                (Event::TrusteeConverged, target.name.clone())
            }
            _ => continue,
        };
        if let Some(cluster) = ctx.cluster() {
            ctx.event(&*cluster, event, &note).await;
        }
    }
}

fn name_of(target: &TargetStatus) -> &str {
    &target.name
}

/// Images whose boots may obtain keys now. There are none without a cluster object, which defines how they
/// count, and none if no key is released.
pub(super) fn live_images(ctx: &Context) -> Vec<ApprovedImage> {
    if ctx.cluster().is_none() || !ctx.may(Deed::Release) {
        return Vec::new();
    }
    let now = ctx.latest();
    let all = ctx.caches.images.all();
    let present = all.iter().filter(|image| image.metadata.deletion_timestamp.is_none());
    let known =
        present.filter(|image| image.digest().is_ok()).filter_map(|image| image.to_core().ok());
    known
        // Unsound images are reported on their objects, and do not affect the others.
        .filter(|image| !image.expected.pcrs.is_empty() && image.expected.is_sound())
        .filter(|image| image.is_live(now))
        .collect()
}
