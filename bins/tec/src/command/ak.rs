//! `tec ak`.

use std::path::Path;

use tec_core::ak::{AkCandidate, AkRecord, Fingerprint, ManualMatcher};
use tec_core::code::Code;
use tec_core::flow;
use tec_core::flow::{AkOutcome, AkPorts, AkSubmission, ClaimLimits, ProvisionPorts};
use tec_core::port::AkRegistry;
use tec_core::store::Store;
use tec_support::diskkey::DiskKeys;
use tec_support::exit::{CodedError, OK};
use tec_support::{SystemClock, SystemEntropy};

use super::machine::wanted;
use super::{coded, word};
use crate::ak::AkCommand;
use crate::machine::PREFIX;
use crate::output::{Output, Table};
use crate::state::open_existing;

pub(crate) async fn ak(
    state_dir: &Path,
    command: AkCommand,
    output: &Output,
) -> anyhow::Result<u8> {
    let store = open_existing(state_dir)?;
    match command {
        AkCommand::List { of, .. } => {
            let machine = wanted(&store, of).await?;
            let keys = AkRegistry::list(&*store, machine)
                .await
                .map_err(coded(Code::StoreUnavailable, "list the attestation keys"))?;
            output.table(&keys, &key_table(&keys))?;
        }
        AkCommand::Approve { key, disk_keys, dry_run } => {
            let record = find(&store, &key).await?;
            let key = record.fingerprint();
            if !dry_run.dry_run {
                approve(&store, record, disk_keys.unwrap_or_default()).await?;
            }
            say(output, "approved", dry_run.dry_run, key)?;
        }
        AkCommand::Revoke { key, dry_run } => {
            let key = find(&store, &key).await?.fingerprint();
            if !dry_run.dry_run {
                flow::revoke_ak(&*store, &SystemClock, key)
                    .await
                    .map_err(coded(Code::StoreUnavailable, format!("revoke key {key}")))?;
            }
            say(output, "revoked", dry_run.dry_run, key)?;
        }
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
async fn find(store: &Store, text: &str) -> anyhow::Result<AkRecord> {
    let unavailable = || coded(Code::StoreUnavailable, format!("look up key {text}"));
    let found = match text.parse::<Fingerprint>() {
        Ok(key) => {
            AkRegistry::find(store, &key).await.map_err(unavailable())?.into_iter().collect()
        }
        Err(_) if text.len() < PREFIX => Vec::new(),
        Err(_) => {
            let mut keys = AkRegistry::list(store, None).await.map_err(unavailable())?;
            keys.retain(|key| key.fingerprint().to_string().starts_with(text));
            keys
        }
    };
    let [key] = <[_; 1]>::try_from(found).map_err(|found| {
        let what = if found.is_empty() { "is not a known key" } else { "stands for several keys" };
        CodedError::new(Code::AkNotBound, format!("{text} {what}"))
    })?;
    Ok(key)
}

async fn approve(store: &Store, record: AkRecord, disk_keys: DiskKeys) -> anyhow::Result<()> {
    let key = record.fingerprint();
    let machine = record.machine;
    let ports = AkPorts::new(store, store, &ManualMatcher, store, &SystemClock)
        .with_claims(ClaimLimits::NONE);
    let candidate = AkCandidate::from_admin(record.public, record.ek);
    match flow::approve(ports, AkSubmission::new(machine, candidate)).await? {
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
    flow::provision(ports, machine).await.map_err(coded(
        Code::StoreUnavailable,
        format!("create the disk key of machine {machine}"),
    ))?;
    Ok(())
}

fn say(output: &Output, done: &str, dry_run: bool, key: Fingerprint) -> anyhow::Result<()> {
    let value = serde_json::json!({ "key": key, "action": done, "dry_run": dry_run });
    output.print(&value, |_| format!("key {key} {}{done}", if dry_run { "would be " } else { "" }))
}
