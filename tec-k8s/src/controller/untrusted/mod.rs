//! Acts on machines that no longer attest well after boot, as `spec.onUntrusted` says.
//!
//! ```text
//!   AttestationRecords ─► verdict ─┐
//!   Machine ◄─ names ─► Node ──────┼─► decide ─► Machine.status.actedOn ─► Node, quarantine ─► condition
//!   machines acted on ─► room ─────┘             (the intent, first)
//! ```
//! *What it is*: one round at a time over all machines, so that the limit holds; level-triggered, and safe to
//! stop at every await, since what is about to be done is recorded before. *What it is not*: it never releases
//! a key and lifts no quarantine.
//!
//! # Security
//! The verdict comes from the AttestationRecords, which only the guard and the key broker write. Events, which
//! every kubelet can write, decide nothing here.

mod decide;
mod node;
mod tell;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tec_core::machine::MachineState;
use tec_core::migrate::Deed;
use tec_core::port::{PortError, chain};
use tec_core::time::Timestamp;
use tokio::time::Instant;

use self::decide::{Case, Decision, Deeds, Link, Room, Verdict, decide, verdict};
use self::tell::Tally;
use super::context::Context;
use super::machine::older;
use super::summary::Summary;
use crate::api::{ActedOn, Machine, TrustedExecutionCluster, UntrustedAction, is_paused};
use crate::client::port_error;

/// Interval between rounds without any change, to notice a Node that someone else changed.
const AT_LEAST: Duration = Duration::from_secs(30);
/// Changes that come together are looked at together.
const GATHER: Duration = Duration::from_millis(500);
/// A round that took long is followed by a pause so many times as long, up to a minute: looking up Nodes must
/// not keep the API server busy.
const PAUSE: u32 = 9;
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// Annotation of a Machine that the operator quarantined: the `since` of its `status.actedOn`. An admin's
/// release is not undone.
const QUARANTINED: &str = "trusted-execution-clusters.io/quarantined-as-untrusted";

/// Runs until it is dropped.
pub(super) async fn run(ctx: &Context) {
    loop {
        if is_needed(ctx) {
            rounds(ctx).await;
        }
        wait(ctx).await;
        tokio::time::sleep(GATHER).await;
    }
}

async fn wait(ctx: &Context) {
    // Whichever comes first, a round follows.
    let _ = tokio::time::timeout(AT_LEAST, ctx.untrusted.notified()).await;
}

fn acted(machine: &Machine) -> Option<&ActedOn> {
    machine.status.as_ref().and_then(|status| status.acted_on.as_ref())
}

/// Whether there is a policy, or something to undo after its removal.
fn is_needed(ctx: &Context) -> bool {
    let is_asked = |cluster: &TrustedExecutionCluster| {
        cluster.spec.on_untrusted.is_some() || tell::is_acting(cluster)
    };
    ctx.cluster().is_some_and(|cluster| {
        is_asked(&cluster) || ctx.caches.machines.all().iter().any(|one| acted(one).is_some())
    })
}

/// Rounds as long as they are needed.
async fn rounds(ctx: &Context) {
    ctx.caches.records.synced().await;
    let mut unsettled = BTreeMap::new();
    while is_needed(ctx) {
        let begin = Instant::now();
        if let Err(error) = round(ctx, &mut unsettled).await {
            tracing::warn!(error = chain(&error), "untrusted machines are looked at again");
        }
        tokio::time::sleep((begin.elapsed() * PAUSE).clamp(GATHER, LONGEST_PAUSE)).await;
        wait(ctx).await;
    }
}

async fn round(ctx: &Context, unsettled: &mut BTreeMap<String, ActedOn>) -> Result<(), PortError> {
    match ctx.cluster() {
        Some(cluster) if !cluster.is_paused() && ctx.may(Deed::ShutOut) => {
            settle(ctx, unsettled).await?;
            Round::begin(ctx, cluster, unsettled).await?.run().await
        }
        _ => Ok(()),
    }
}

/// One look at all machines.
struct Round<'a> {
    ctx: &'a Context,
    cluster: Arc<TrustedExecutionCluster>,
    /// Machines that were just acted on, as long as the cache does not show it.
    unsettled: &'a mut BTreeMap<String, ActedOn>,
    limit: usize,
    room: Room,
    may_change_nodes: bool,
    /// Before it, an attempt is too old.
    stale: Option<Timestamp>,
    tally: Tally,
}

impl<'a> Round<'a> {
    async fn begin(
        ctx: &'a Context,
        cluster: Arc<TrustedExecutionCluster>,
        unsettled: &'a mut BTreeMap<String, ActedOn>,
    ) -> Result<Self, PortError> {
        let policy = cluster.spec.on_untrusted.as_ref();
        let machines = ctx.caches.machines.all();
        let fleet = machines.iter().filter(|machine| {
            let is_known = machine.bound_key().is_some() && machine.spec.node_name.is_some();
            is_known && !is_final(machine)
        });
        let limit = policy.map_or(0, |policy| policy.limit(fleet.count()));
        let record_of = |machine: &Machine| {
            let shown = || acted(machine).filter(|_| !is_final(machine));
            unsettled.get(&machine.name_any()).or_else(shown).cloned()
        };
        let acted_on: Vec<_> = machines.iter().filter_map(|machine| record_of(machine)).collect();
        let needs_nodes = machines.iter().any(|machine| acted(machine).is_some())
            || policy.is_some_and(|policy| policy.actions.iter().any(|it| it.needs_node()));
        let stale = policy.and_then(|policy| policy.stale_after_seconds);
        // A wrong clock must not make a fleet look silent.
        let stale = stale.filter(|_| ctx.clock_agrees().is_ok());
        Ok(Self {
            may_change_nodes: needs_nodes && node::may_change(ctx).await?,
            stale: stale.map(|stale| ctx.now().plus_seconds(-i64::from(stale))),
            limit,
            room: Room::new(limit, &acted_on),
            tally: Tally::new(acted_on.len(), needs_nodes),
            ctx,
            cluster,
            unsettled,
        })
    }

    async fn run(&mut self) -> Result<(), PortError> {
        for machine in self.ctx.caches.machines.all() {
            if is_paused(&*machine) || is_final(&machine) || older(self.ctx, &machine).is_some() {
                continue;
            }
            // One that fails must not keep the others from being looked at.
            if let Err(error) = self.look(&machine).await {
                let machine = machine.name_any();
                tracing::warn!(machine, error = chain(&error), "its actions are tried again");
            }
        }
        let is_known = !self.tally.needs_nodes || self.may_change_nodes;
        tell::cluster(self.ctx, &self.cluster, &self.tally, self.limit, is_known).await
    }

    async fn look(&mut self, machine: &Machine) -> Result<(), PortError> {
        let cluster = Arc::clone(&self.cluster);
        let (policy, acted) = (cluster.spec.on_untrusted.as_ref(), acted(machine));
        let verdict = self.verdict(machine);
        let is_untrusted = matches!(verdict, Verdict::Untrusted(_));
        // Nodes are looked up only for what may be done now.
        let is_due = acted.is_some() || (is_untrusted && policy.is_some());
        let link = match (is_due, self.may_change_nodes) {
            (true, true) => node::link(self.ctx, machine, acted).await?,
            (true, false) => Link::NoRights,
            (false, _) => Link::Unproven(String::new()),
        };
        let is_quarantined = machine.state() == MachineState::Quarantined;
        let case = Case { verdict, acted, is_quarantined, link };
        let decision = decide(policy, &case, self.room.left(&case.link));
        if acted.is_none() && matches!(decision, Decision::Act(_) | Decision::WouldAct(_)) {
            self.room.take(&case.link);
        }
        self.tally.count(&decision, acted.is_some());
        match &decision {
            Decision::Act(deeds) => self.act(machine, acted, &case.verdict, deeds).await,
            Decision::Undo => self.undo(machine, acted, &case.verdict).await,
            other => {
                tell::machine(self.ctx, machine, &case.verdict, other, self.limit).await.map(drop)
            }
        }
    }

    fn verdict(&self, machine: &Machine) -> Verdict {
        let is_in_service =
            matches!(machine.state(), MachineState::Active | MachineState::Quarantined);
        if !is_in_service || machine.bound_key().is_none() {
            return Verdict::Unknown;
        }
        let last = Summary::for_machine(self.ctx, machine).seen;
        // The attempts of a quarantined machine say nothing, so it always looks silent.
        let counts = machine.state() == MachineState::Active || acted(machine).is_some();
        let stale = self.stale.filter(|_| counts);
        verdict(last.as_ref(), stale)
    }

    /// Records, then acts, then reports.
    async fn act(
        &mut self,
        machine: &Machine,
        acted: Option<&ActedOn>,
        verdict: &Verdict,
        deeds: &Deeds,
    ) -> Result<(), PortError> {
        let mut record = acted.cloned().unwrap_or_else(|| ActedOn::new(self.ctx.now()));
        record.actions.clone_from(&deeds.actions);
        if let Link::Proven { name, uid } = &deeds.link {
            (record.node, record.node_uid) = (Some(name.clone()), Some(uid.clone()));
        }
        let mut machine = machine.clone();
        if acted != Some(&record) {
            // Before the answer: a write without an answer may have happened.
            self.unsettled.insert(machine.name_any(), record.clone());
            machine = write(self.ctx, &machine, json!({"actedOn": record.patch()})).await?;
        }
        let changed = match &deeds.link {
            Link::Proven { name, uid } => node::apply(self.ctx, name, uid, &deeds.actions).await,
            _ => Ok(()),
        };
        // A Node that cannot be changed must not keep the key from being withheld.
        if deeds.actions.contains(&UntrustedAction::Quarantine) {
            machine = self.quarantine(machine, &record, verdict).await?;
        }
        changed?;
        let decision = Decision::Act(deeds.clone());
        tell::machine(self.ctx, &machine, verdict, &decision, self.limit).await.map(drop)
    }

    /// Withholds the key of the next boot, once for each time that the machine became untrusted.
    async fn quarantine(
        &self,
        machine: Machine,
        record: &ActedOn,
        verdict: &Verdict,
    ) -> Result<Machine, PortError> {
        let is_done = machine.annotations().get(QUARANTINED) == Some(&record.since);
        if is_done || machine.state() != MachineState::Active {
            return Ok(machine);
        }
        let mut spec = machine.spec.patch_to(MachineState::Quarantined, self.ctx.now());
        if let (Some(members), Verdict::Untrusted(why)) = (spec.as_object_mut(), verdict) {
            members.insert("quarantineReason".to_owned(), json!(format!("untrusted: {why}")));
        }
        let patch = Patch::Merge(json!({
            "metadata": {
                "annotations": {QUARANTINED: record.since},
                "resourceVersion": machine.resource_version(),
            },
            "spec": spec,
        }));
        let (name, params) = (machine.name_any(), PatchParams::default());
        let written = self.ctx.objects::<Machine>().patch(&name, &params, &patch).await;
        let written = written.map_err(|error| port_error(format!("quarantine {name}"), error))?;
        tracing::info!(machine = name, "it is quarantined as untrusted");
        Ok(written)
    }

    /// Undoes what was done to the Node, then forgets it. A quarantine stays.
    async fn undo(
        &mut self,
        machine: &Machine,
        acted: Option<&ActedOn>,
        verdict: &Verdict,
    ) -> Result<(), PortError> {
        if let Some((name, uid)) = acted.and_then(|it| it.node.as_ref().zip(it.node_uid.as_ref())) {
            node::apply(self.ctx, name, uid, &[]).await?;
        }
        let machine =
            tell::machine(self.ctx, machine, verdict, &Decision::Undo, self.limit).await?;
        write(self.ctx, &machine, json!({"actedOn": null})).await?;
        self.unsettled.remove(&machine.name_any());
        Ok(())
    }
}

/// Whether an admin has decided about the machine for good. What was done stays, and takes no room.
fn is_final(machine: &Machine) -> bool {
    machine.metadata.deletion_timestamp.is_some()
        || !matches!(
            machine.state(),
            MachineState::Active | MachineState::Quarantined | MachineState::Unclaimed
        )
}

/// Forgets machines that the cache shows as acted on, and those that were not acted on after all.
async fn settle(ctx: &Context, unsettled: &mut BTreeMap<String, ActedOn>) -> Result<(), PortError> {
    for name in unsettled.keys().cloned().collect::<Vec<_>>() {
        let shown = ctx.caches.machines.get(&name);
        if shown.is_some_and(|machine| acted(&machine).is_some()) {
            unsettled.remove(&name);
            continue;
        }
        let found = ctx.objects::<Machine>().get_opt(&name).await;
        let found = found.map_err(|error| port_error(format!("read {name}"), error))?;
        if found.is_none_or(|machine| acted(&machine).is_none()) {
            unsettled.remove(&name);
        }
    }
    Ok(())
}

/// Changes the status of a machine that nobody else has changed since it was read.
async fn write(ctx: &Context, machine: &Machine, status: Value) -> Result<Machine, PortError> {
    let name = machine.name_any();
    let patch = Patch::Merge(json!({
        "metadata": {"resourceVersion": machine.resource_version()},
        "status": status,
    }));
    let params = PatchParams::default();
    let written = ctx.objects::<Machine>().patch_status(&name, &params, &patch).await;
    written.map_err(|error| port_error(format!("write the status of {name}"), error))
}
