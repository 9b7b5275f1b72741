//! `tec ak`.

use std::fmt;

use anyhow::Context as _;
use tec_core::ak::{AkCandidate, AkRecord, Fingerprint, ManualMatcher};
use tec_core::code::Code;
use tec_core::flow;
use tec_core::flow::{AkOutcome, AkPorts, ClaimLimits, ProvisionPorts};
use tec_core::port::AkRegistry;
use tec_support::diskkey::DiskKeys;
use tec_support::exit::{CodedError, OK};
use tec_support::{SystemClock, SystemEntropy};

use super::word;
use crate::ak::{AkCommand, not_one};
use crate::anchor::{Anchor, Place};
use crate::args::DryRun;
use crate::known::PREFIX;
use crate::kube;
use crate::output::{Output, Table};

pub(crate) async fn ak(anchor: &Anchor, command: AkCommand, output: &Output) -> anyhow::Result<u8> {
    match command {
        AkCommand::List { of, .. } => {
            let machine = anchor.wanted(of).await?;
            let keys = AkRegistry::list(&*anchor.ports, machine).await;
            let keys = keys.map_err(anchor.failed("list the attestation keys"))?;
            output.table(&keys, &key_table(&keys))?;
        }
        AkCommand::Approve { key, disk_keys, dry_run } => match &anchor.place {
            Place::Directory(..) => {
                let record = find(anchor, &key).await?;
                let key = record.fingerprint();
                if !dry_run.dry_run {
                    approve(anchor, record, disk_keys.unwrap_or_default()).await?;
                }
                say(output, "approved", dry_run, &key)?;
            }
            Place::Namespace(cluster) => {
                let object = kube::ak::find(cluster, &key).await?;
                kube::ak::approve(cluster, &object, dry_run).await?;
                say(output, "approved", dry_run, &key)?;
            }
        },
        AkCommand::Revoke { key, dry_run } => match &anchor.place {
            Place::Directory(..) => {
                let key = find(anchor, &key).await?.fingerprint();
                if !dry_run.dry_run {
                    let revoked = flow::revoke_ak(&*anchor.ports, &SystemClock, key).await;
                    revoked.map_err(anchor.failed(format!("revoke key {key}")))?;
                }
                say(output, "revoked", dry_run, &key)?;
            }
            Place::Namespace(cluster) => {
                let object = kube::ak::find(cluster, &key).await?;
                kube::ak::revoke(cluster, &object, dry_run).await?;
                say(output, "revoked", dry_run, &key)?;
            }
        },
    }
    Ok(OK)
}

fn key_table(keys: &[AkRecord]) -> Table {
    let row = |record: &AkRecord| {
        vec![
            record.fingerprint().to_string(),
            record.machine.to_string(),
            word(&record.state),
            record.ek.map_or_else(|| "-".to_owned(), |ek| ek.to_string()),
        ]
    };
    Table::new(&["KEY", "MACHINE", "STATE", "PROVEN BY EK"], keys.iter().map(row)).narrow(3)
}

/// The key with this fingerprint, or with one that starts with these digits.
async fn find(anchor: &Anchor, text: &str) -> anyhow::Result<AkRecord> {
    let unavailable = || anchor.failed(format!("look up key {text}"));
    let aks: &dyn AkRegistry = &*anchor.ports;
    let found = match text.parse::<Fingerprint>() {
        Ok(key) => aks.find(&key).await.map_err(unavailable())?.into_iter().collect(),
        Err(_) if text.len() < PREFIX => Vec::new(),
        Err(_) => {
            let mut keys = aks.list(None).await.map_err(unavailable())?;
            keys.retain(|key| key.fingerprint().to_string().starts_with(text));
            keys
        }
    };
    let [key] = <[_; 1]>::try_from(found).map_err(|found| not_one(text, !found.is_empty()))?;
    Ok(key)
}

async fn approve(anchor: &Anchor, record: AkRecord, disk_keys: DiskKeys) -> anyhow::Result<()> {
    let key = record.fingerprint();
    let machine = record.machine;
    let store = &*anchor.ports;
    let ports = AkPorts::new(store, store, &ManualMatcher, store, &SystemClock)
        .with_claims(ClaimLimits::NONE);
    let candidate = AkCandidate::from_admin(record.public, record.ek);
    let approved = flow::approve(ports, machine, candidate).await;
    match approved.with_context(|| format!("cannot approve key {key} for machine {machine}"))? {
        AkOutcome::Bound(_) | AkOutcome::AlreadyBound => {}
        AkOutcome::Waiting(reason)
        | AkOutcome::AlreadyWaiting(reason)
        | AkOutcome::Rejected(reason) => {
            let context = format!("approve key {key}: {reason}");
            return Err(CodedError::new(Code::RegisterMachineTaken, context).into());
        }
    }
    let generator = disk_keys.generator();
    let ports = ProvisionPorts::new(store, &*generator, &SystemClock, &SystemEntropy);
    let provisioned = flow::provision(ports, machine).await;
    provisioned.map_err(anchor.failed(format!("create the disk key of machine {machine}")))?;
    Ok(())
}

fn say(output: &Output, done: &str, dry_run: DryRun, key: &dyn fmt::Display) -> anyhow::Result<()> {
    let (key, dry_run) = (key.to_string(), dry_run.dry_run);
    let value = serde_json::json!({ "key": key, "action": done, "dry_run": dry_run });
    output.print(&value, |_| format!("key {key} {}{done}", if dry_run { "would be " } else { "" }))
}
