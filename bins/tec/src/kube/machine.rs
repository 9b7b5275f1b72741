//! `kubectl tec machine`.

use kube::ResourceExt as _;
use serde_json::json;
use tec_core::code::Code;
use tec_core::id::MachineId;
use tec_core::machine;
use tec_core::machine::RegisteredBy;
use tec_core::port::{Clock as _, EntropyRng};
use tec_k8s::api::{ConditionKind, Machine};
use tec_support::exit::{CodedError, OK};
use tec_support::{SystemClock, SystemEntropy};

use super::access::Cluster;
use super::cli::KubeMachineCommand;
use super::{cell, cells, ignition, release};
use crate::args::DryRun;
use crate::output::{Output, table};

pub(super) async fn machine(
    cluster: &Cluster,
    command: KubeMachineCommand,
    output: Output,
) -> anyhow::Result<u8> {
    match command {
        KubeMachineCommand::List => {
            let machines = cluster.list::<Machine>().await?;
            output.print(&machines, |machines| machine_table(machines))?;
        }
        KubeMachineCommand::Show { id } => {
            output.print(&find(cluster, id).await?, detail)?;
        }
        KubeMachineCommand::Add { id, dry_run } => add(cluster, id, dry_run, output).await?,
        KubeMachineCommand::Revoke { id, dry_run } => {
            let name = find(cluster, id).await?.name_any();
            let change = json!({"spec": {"revokedAt": SystemClock.now().to_string()}});
            cluster.merge::<Machine>(&name, &change, dry_run).await?;
            say(output, "revoked", dry_run, id)?;
        }
        KubeMachineCommand::Readmit { id, dry_run } => {
            release::readmit(cluster, id, dry_run, output).await?;
        }
        KubeMachineCommand::RecoveryKey { id, identity } => {
            release::recovery_keys(cluster, id, identity.as_deref(), output).await?;
        }
        KubeMachineCommand::Remove { id, dry_run } => {
            let name = find(cluster, id).await?.name_any();
            cluster.delete::<Machine>(&name, dry_run).await?;
            say(output, "removed", dry_run, id)?;
        }
    }
    Ok(OK)
}

/// The object of a machine, whatever its name; admins name theirs as they like.
pub(super) async fn find(cluster: &Cluster, id: MachineId) -> Result<Machine, CodedError> {
    if let Some(machine) = cluster.find::<Machine>(&Machine::name_of(&id)).await? {
        return Ok(machine);
    }
    let found = cluster.list_where::<Machine>(&format!("spec.id={id}")).await?;
    found.into_iter().next().ok_or_else(|| {
        let context = format!("there is no machine {id} in {}", cluster.namespace);
        CodedError::new(Code::ClusterMissing, context)
    })
}

async fn add(
    cluster: &Cluster,
    id: Option<MachineId>,
    dry_run: DryRun,
    output: Output,
) -> anyhow::Result<()> {
    let id = id.unwrap_or_else(|| MachineId::random(&mut EntropyRng::new(&SystemEntropy)));
    // Asked first: without an address there is no config, and so no machine.
    let ignition = ignition::of_machine(cluster, id).await?;
    let new = machine::Machine::unclaimed(id, RegisteredBy::Admin, SystemClock.now());
    cluster.create(&Machine::from_core(&new), dry_run).await?;
    let added = json!({"machine": id, "ignition": ignition, "dry_run": dry_run.dry_run});
    output.print(&added, |added| {
        let done = if dry_run.dry_run { "would be registered" } else { "registered" };
        format!("machine {id} {done}; its Ignition config:\n{}", added["ignition"])
    })
}

fn say(output: Output, done: &str, dry_run: DryRun, id: MachineId) -> anyhow::Result<()> {
    let value = json!({"machine": id, "action": done, "dry_run": dry_run.dry_run});
    let would = if dry_run.dry_run { "would be " } else { "" };
    output.print(&value, |_| format!("machine {id} {would}{done}"))
}

fn machine_table(machines: &[Machine]) -> String {
    let row = |machine: &Machine| {
        let status = machine.status.clone().unwrap_or_default();
        let [ready, reason] = cells(&status.conditions, ConditionKind::Ready.as_str());
        let last = status.last_attestation.as_ref();
        [
            machine.spec.id.clone(),
            ready,
            reason,
            cell(status.image.as_ref()),
            cell(last.map(|last| &last.at)),
            cell(last.and_then(|last| last.code.as_ref())),
        ]
    };
    let rows: Vec<_> = machines.iter().map(row).collect();
    table(["MACHINE", "READY", "REASON", "IMAGE", "ATTESTED", "REFUSED"], &rows)
}

fn detail(machine: &Machine) -> String {
    let status = machine.status.clone().unwrap_or_default();
    let key = status.attestation_key.as_ref();
    let published = Some(status.published_to.join(", ")).filter(|list| !list.is_empty());
    let mut lines = vec![
        format!("machine    {}", machine.spec.id),
        format!("object     {}", machine.name_any()),
        format!("revoked    {}", cell(machine.spec.revoked_at.as_ref())),
        format!("bound key  {}", cell(key.map(|key| &key.name))),
        format!("disk key   {}", cell(status.key_secret.as_ref())),
        format!("published  {}", cell(published.as_ref())),
        format!("image      {}", cell(status.image.as_ref())),
    ];
    lines.extend(status.conditions.iter().map(|condition| {
        let (kind, is, reason) = (&condition.type_, &condition.status, &condition.reason);
        format!("{kind}={is} {reason} {}", condition.message)
    }));
    lines.join("\n")
}
