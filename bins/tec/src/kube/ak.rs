//! `tec ak` on a cluster.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use serde_json::json;
use tec_core::port::Clock as _;
use tec_k8s::api::{AttestationKey, ConditionKind, Reason, set_condition};
use tec_support::SystemClock;
use tec_support::exit::OK;

use super::access::Cluster;
use super::lookup::wanted;
use super::{cell, cells};
use crate::ak::AkCommand;
use crate::args::DryRun;
use crate::output::{Output, Table};

pub(crate) async fn ak(
    cluster: &Cluster,
    command: AkCommand,
    output: &Output,
) -> anyhow::Result<u8> {
    match command {
        AkCommand::List { of, .. } => {
            let mut keys = cluster.list::<AttestationKey>().await?;
            let wanted = wanted(cluster, of).await?.map(|id| id.to_string());
            keys.retain(|key| wanted.is_none() || key.spec.uuid == wanted);
            output.table(&keys, &key_table(&keys))?;
        }
        AkCommand::Approve { key: name, dry_run, .. } => {
            let key = cluster.get::<AttestationKey>(&name).await?;
            let status = json!({"conditions": approval(&key)?});
            cluster.apply_status::<AttestationKey>(&name, &status, dry_run).await?;
            say(output, "approved", dry_run, &name)?;
        }
        AkCommand::Revoke { key: name, dry_run } => {
            let change = json!({"spec": {"revokedAt": SystemClock.now().to_string()}});
            cluster.merge::<AttestationKey>(&name, &change, dry_run).await?;
            say(output, "revoked", dry_run, &name)?;
        }
    }
    Ok(OK)
}

/// The condition with which an admin approves the key as reviewed: a key edited later is not approved.
fn approval(key: &AttestationKey) -> anyhow::Result<Vec<Condition>> {
    let mut conditions = Vec::new();
    set_condition(
        &mut conditions,
        ConditionKind::AdminApproved,
        Reason::ApprovedByAdmin,
        "approved with kubectl tec",
        key.metadata.generation,
        SystemClock.now(),
    )?;
    Ok(conditions)
}

fn say(output: &Output, done: &str, dry_run: DryRun, name: &str) -> anyhow::Result<()> {
    let value = json!({"key": name, "action": done, "dry_run": dry_run.dry_run});
    let would = if dry_run.dry_run { "would be " } else { "" };
    output.print(&value, |_| format!("key {name} {would}{done}"))
}

fn key_table(keys: &[AttestationKey]) -> Table {
    let row = |key: &AttestationKey| {
        let status = key.status.clone().unwrap_or_default();
        let [approved, reason] = cells(&status.conditions, ConditionKind::Approved.as_str());
        let reason = if key.spec.revoked_at.is_some() {
            Reason::Revoked.as_str().to_owned()
        } else {
            reason
        };
        vec![key.name_any(), cell(key.spec.uuid.as_ref()), approved, reason]
    };
    Table::new(&["KEY", "MACHINE", "APPROVED", "REASON"], keys.iter().map(row))
}
