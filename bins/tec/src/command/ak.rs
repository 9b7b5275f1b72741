//! `tec ak`.

use std::path::Path;

use clap::Subcommand;
use tec_core::ak::{AkCandidate, AkRecord, Fingerprint, ManualMatcher};
use tec_core::code::Code;
use tec_core::flow;
use tec_core::flow::{AkOutcome, AkPorts, AkSubmission, ClaimLimits, ProvisionPorts};
use tec_core::port::AkRegistry;
use tec_core::store::Store;
use tec_support::diskkey::DiskKeys;
use tec_support::exit::{CodedError, OK};
use tec_support::{SystemClock, SystemEntropy};

use super::{coded, word};
use crate::args::{DryRun, OfMachine};
use crate::output::{Output, table};
use crate::state::open_existing;

#[derive(Debug, Subcommand)]
pub(crate) enum AkCommand {
    /// List them.
    List(OfMachine),
    /// Bind a key that waits to its machine.
    Approve {
        /// Which.
        key: Fingerprint,
        /// Form of the machine's disk key, where it has none yet.
        #[arg(long, env = "TEC_DISK_KEYS", value_enum, default_value_t)]
        disk_keys: DiskKeys,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Take a key back; the machine may then register another one.
    Revoke {
        /// Which.
        key: Fingerprint,
        #[command(flatten)]
        dry_run: DryRun,
    },
}

pub(crate) async fn ak(state_dir: &Path, command: AkCommand, output: Output) -> anyhow::Result<u8> {
    let store = open_existing(state_dir)?;
    match command {
        AkCommand::List(OfMachine { machine }) => {
            let keys = AkRegistry::list(&*store, machine)
                .await
                .map_err(coded(Code::StoreUnavailable, "list the attestation keys"))?;
            output.print(&keys, |keys| key_table(keys))?;
        }
        AkCommand::Approve { key, disk_keys, dry_run } => {
            let record = find(&store, key).await?;
            if !dry_run.dry_run {
                approve(&store, record, disk_keys).await?;
            }
            say(output, "approved", dry_run.dry_run, key)?;
        }
        AkCommand::Revoke { key, dry_run } => {
            find(&store, key).await?;
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

fn key_table(keys: &[AkRecord]) -> String {
    let row = |record: &AkRecord| {
        [
            record.fingerprint().to_string(),
            record.machine.to_string(),
            word(&record.state),
            record.ek.map_or_else(|| "-".to_owned(), |ek| ek.to_string()),
        ]
    };
    table(["KEY", "MACHINE", "STATE", "PROVEN BY EK"], &keys.iter().map(row).collect::<Vec<_>>())
}

async fn find(store: &Store, key: Fingerprint) -> anyhow::Result<AkRecord> {
    AkRegistry::find(store, &key)
        .await
        .map_err(coded(Code::StoreUnavailable, format!("look up key {key}")))?
        .ok_or_else(|| CodedError::new(Code::AkNotBound, format!("there is no key {key}")).into())
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
        format!("make the disk key of machine {machine}"),
    ))?;
    Ok(())
}

fn say(output: Output, done: &str, dry_run: bool, key: Fingerprint) -> anyhow::Result<()> {
    let value = serde_json::json!({ "key": key, "action": done, "dry_run": dry_run });
    output.print(&value, |_| format!("key {key} {}{done}", if dry_run { "would be " } else { "" }))
}
