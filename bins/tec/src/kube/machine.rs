//! `tec machine` on a cluster.

use kube::ResourceExt as _;
use serde_json::json;
use tec_core::code::Code;
use tec_core::id::MachineId;
use tec_core::machine;
use tec_core::machine::{MachineState, RegisteredBy};
use tec_core::port::{Clock as _, EntropyRng};
use tec_k8s::api::{ConditionKind, Machine};
use tec_support::exit::{CodedError, OK};
use tec_support::{SystemClock, SystemEntropy};

use super::access::Cluster;
use super::explain::recorded;
use super::lookup::{find, id_of, named};
use super::nodes::Nodes;
use super::{cell, cells, ignition, release};
use crate::args::{Consent, DryRun, MachineRef};
use crate::attempt::LastSeen;
use crate::consent::consented;
use crate::machine::{Final, MachineCommand};
use crate::output::{Output, Table, word};

pub(crate) async fn machine(
    cluster: &Cluster,
    command: MachineCommand,
    output: &Output,
) -> anyhow::Result<u8> {
    match command {
        MachineCommand::List(_) => {
            let machines = cluster.list::<Machine>().await?;
            let nodes = Nodes::list(cluster).await;
            output.table(&machines, &machine_table(&machines, &nodes))?;
        }
        MachineCommand::Show { machine } => {
            let nodes = Nodes::list(cluster).await;
            let machine = find(cluster, &machine).await?;
            // Newer than the status, which does not change with every attempt.
            let last = recorded(cluster, machine.machine_id()?).await?;
            let seen = last.as_ref().map(LastSeen::of);
            output.print(&machine, |machine| {
                let seen = seen.iter().map(|seen| format!("\n{}", seen.sentence()));
                seen.fold(detail(machine, &nodes), |text, line| text + &line)
            })?;
        }
        MachineCommand::Add { id, name, dry_run } => {
            add(cluster, id, name, dry_run, output).await?;
        }
        MachineCommand::Name { machine, name: new, dry_run } => {
            name(cluster, &machine, &new, dry_run, output).await?;
        }
        MachineCommand::Quarantine { machine, reason, dry_run } => {
            let machine = find(cluster, &machine).await?;
            let to = (MachineState::Quarantined, reason);
            change(cluster, &machine, to, dry_run).await?;
            say(output, "quarantined", dry_run, &machine)?;
        }
        MachineCommand::Release { machine, dry_run } => {
            let machine = find(cluster, &machine).await?;
            change(cluster, &machine, (MachineState::Active, None), dry_run).await?;
            say(output, "released", dry_run, &machine)?;
        }
        MachineCommand::Retire { machine, consent } => {
            final_change(cluster, &machine, Final::Retire, consent, output).await?;
        }
        MachineCommand::Revoke { machine, consent } => {
            final_change(cluster, &machine, Final::Revoke, consent, output).await?;
        }
        MachineCommand::Remove { machine, consent } => {
            final_change(cluster, &machine, Final::Remove, consent, output).await?;
        }
        MachineCommand::Readmit { machine, dry_run } => {
            let id = id_of(cluster, &machine).await?;
            release::readmit(cluster, id, dry_run, output).await?;
        }
        MachineCommand::RecoveryKey { machine, identity } => {
            let id = id_of(cluster, &machine).await?;
            release::recovery_keys(cluster, id, identity.as_deref(), output).await?;
        }
        // `place::misplaced` has already refused it: the operator removes them.
        MachineCommand::Prune { .. } => anyhow::bail!("the operator removes unclaimed machines"),
    }
    Ok(OK)
}

/// Moves a machine to a state, if its current state allows it.
async fn change(
    cluster: &Cluster,
    machine: &Machine,
    (state, reason): (MachineState, Option<String>),
    dry_run: DryRun,
) -> anyhow::Result<()> {
    let now = machine.state();
    if now.is_final() && state.strictness() < now.strictness() {
        let context = format!("machine {} is {} for good", machine.label(), word(&now));
        return Err(CodedError::new(Code::ClusterConflict, context).into());
    }
    let mut spec = machine.spec.patch_to(state, SystemClock.now());
    if let (Some(members), Some(reason)) = (spec.as_object_mut(), reason) {
        members.insert("quarantineReason".to_owned(), json!(reason));
    }
    let patch = json!({ "spec": spec });
    cluster.merge::<Machine>(&machine.name_any(), &patch, dry_run).await?;
    Ok(())
}

async fn final_change(
    cluster: &Cluster,
    asked: &MachineRef,
    to: Final,
    consent: Consent,
    output: &Output,
) -> anyhow::Result<()> {
    let machine = find(cluster, asked).await?;
    consented(&[to.effect(&machine.label())], consent)?;
    let dry_run = consent.dry_run;
    match to {
        Final::Retire => {
            change(cluster, &machine, (MachineState::Retired, None), dry_run).await?;
        }
        Final::Revoke => {
            change(cluster, &machine, (MachineState::Revoked, None), dry_run).await?;
        }
        Final::Remove => cluster.delete::<Machine>(&machine.name_any(), dry_run).await?,
    }
    say(output, to.done(), dry_run, &machine)
}

async fn name(
    cluster: &Cluster,
    asked: &MachineRef,
    node_name: &str,
    dry_run: DryRun,
    output: &Output,
) -> anyhow::Result<()> {
    let machine = find(cluster, asked).await?;
    free_name(cluster, node_name, &machine.spec.id).await?;
    let patch = json!({"spec": {"nodeName": node_name}});
    let renamed = cluster.merge::<Machine>(&machine.name_any(), &patch, dry_run).await?;
    say(output, "named", dry_run, &renamed)
}

/// Refuses duplicate names, because commands would find neither machine, and IDs as names, because they would
/// hide a machine.
async fn free_name(cluster: &Cluster, name: &str, id: &str) -> Result<(), CodedError> {
    let taken = named(cluster.list::<Machine>().await?, name);
    if name.parse::<MachineId>().is_ok() || taken.iter().any(|other| other.spec.id != id) {
        let context =
            format!("cannot name machine {id} {name}: another machine has that name or ID");
        return Err(CodedError::new(Code::ClusterConflict, context));
    }
    Ok(())
}

async fn add(
    cluster: &Cluster,
    id: Option<MachineId>,
    node_name: Option<String>,
    dry_run: DryRun,
    output: &Output,
) -> anyhow::Result<()> {
    let id = id.unwrap_or_else(|| MachineId::random(&mut EntropyRng::new(&SystemEntropy)));
    // Checked first: without an address there is no config, and therefore no machine.
    let ignition = ignition::of_machine(cluster, id).await?;
    let new = machine::Machine::unclaimed(id, RegisteredBy::Admin, SystemClock.now());
    if let Some(name) = &node_name {
        free_name(cluster, name, &id.to_string()).await?;
    }
    let mut object = Machine::from_core(&new);
    object.spec.node_name = node_name;
    cluster.create(&object, dry_run).await?;
    let added = json!({"machine": id, "ignition": ignition, "dry_run": dry_run.dry_run});
    let done = if dry_run.dry_run { "would be registered" } else { "registered" };
    tracing::info!(machine = %id, "{done}");
    output.print(&added, |added| added["ignition"].to_string())
}

fn say(output: &Output, done: &str, dry_run: DryRun, machine: &Machine) -> anyhow::Result<()> {
    let value = json!({
        "machine": machine.spec.id,
        "node_name": machine.spec.node_name,
        "action": done,
        "dry_run": dry_run.dry_run,
    });
    let would = if dry_run.dry_run { "would be " } else { "" };
    output.print(&value, |_| format!("machine {} {would}{done}", machine.label()))
}

fn machine_table(machines: &[Machine], nodes: &Nodes) -> Table {
    let row = |machine: &Machine| {
        let status = machine.status.clone().unwrap_or_default();
        let [_, reason] = cells(&status.conditions, ConditionKind::Ready.as_str());
        let last = status.last_attestation.as_ref();
        vec![
            machine.spec.id.clone(),
            nodes.name_of(machine),
            word(&machine.state()),
            reason,
            cell(last.and_then(|last| last.code.as_ref())),
            cell(status.image.as_ref()),
            cell(status.last_boot.as_ref()),
            cell(last.map(|last| &last.at)),
        ]
    };
    let header = ["MACHINE", "NODE", "STATE", "REASON", "REFUSED", "IMAGE", "BOOTED", "ATTESTED"];
    Table::new(&header, machines.iter().map(row)).narrow(6)
}

fn detail(machine: &Machine, nodes: &Nodes) -> String {
    let status = machine.status.clone().unwrap_or_default();
    let key = status.attestation_key.as_ref();
    let spec = &machine.spec;
    let since =
        spec.revoked_at.as_ref().or(spec.retired_at.as_ref()).or(spec.quarantined_at.as_ref());
    let since = since.map(|since| format!(" since {since}")).unwrap_or_default();
    let published = Some(status.published_to.join(", ")).filter(|list| !list.is_empty());
    let mut lines = vec![
        format!("machine    {}", machine.spec.id),
        format!("object     {}", machine.name_any()),
        format!("node       {}", nodes.name_of(machine)),
        format!("state      {}{since}", word(&machine.state())),
        format!("bound key  {}", cell(key.map(|key| &key.name))),
        format!("disk key   {}", cell(status.key_secret.as_ref())),
        format!("published  {}", cell(published.as_ref())),
        format!("image      {}", cell(status.image.as_ref())),
        format!("booted     {}", cell(status.last_boot.as_ref())),
        format!("attested   {}", cell(status.last_attestation.as_ref().map(|last| &last.at))),
    ];
    lines.extend(status.conditions.iter().map(|condition| {
        let (kind, is, reason) = (&condition.type_, &condition.status, &condition.reason);
        format!("{kind}={is} {reason} {}", condition.message)
    }));
    lines.join("\n")
}
