//! `tec audit` on a state directory.

use std::path::Path;
use std::time::Duration;

use tec_core::code::Code;
use tec_core::port::AttemptLog as _;
use tec_core::store::{AuditEntry, AuditVerdict, Store, StoreError};
use tec_support::exit::{CodedError, FAILED, OK};

use super::coded as unavailable;
use super::machine::wanted;
use crate::attempt::attempt_table;
use crate::audit::{AuditCommand, LineArgs, Wanted, cells};
use crate::output::{Output, Table, raw};
use crate::state::open_existing;

/// Lines are read in pages of this size.
const PAGE: usize = 1000;

/// Polling interval for new lines.
const FOLLOW: Duration = Duration::from_millis(500);

pub(crate) async fn audit(
    state_dir: &Path,
    command: AuditCommand,
    output: &Output,
) -> anyhow::Result<u8> {
    let store = open_existing(state_dir)?;
    match command {
        AuditCommand::List(args) => {
            let machine = wanted(&store, args.of.clone()).await?;
            let wanted = Wanted::new(&args, machine);
            if args.follow {
                return follow(&store, &wanted).await;
            }
            let entries = latest(&store, &wanted, &args)?;
            let values: Vec<_> = entries.iter().map(value).collect();
            let head = ["NO", "AT", "ACTION", "MACHINE", "SUBJECT"];
            output.table(&values, &Table::new(&head, entries.iter().map(row)))?;
        }
        AuditCommand::Attempts { of, limit } => {
            let machine = wanted(&store, of).await?;
            let listed = store.latest(machine, limit).await;
            let listed =
                listed.map_err(unavailable(Code::StoreUnavailable, "list the attempts"))?;
            output.table(&listed, &attempt_table(&listed))?;
        }
        AuditCommand::Verify => return verify(&store, output),
    }
    Ok(OK)
}

/// The selected lines, latest first.
fn latest(store: &Store, wanted: &Wanted, args: &LineArgs) -> anyhow::Result<Vec<AuditEntry>> {
    let (mut found, mut before) = (Vec::new(), u64::MAX);
    loop {
        let page = store.audit_latest(before, PAGE).map_err(coded)?;
        let Some(last) = page.last() else { break };
        before = last.sequence;
        let is_end = wanted.is_before(&last.event);
        found.extend(page.into_iter().filter(|entry| wanted.has(&entry.event)));
        if is_end || found.len() >= args.limit {
            break;
        }
    }
    found.truncate(args.limit);
    Ok(found)
}

/// Prints lines as they are written, as one JSON object per line.
async fn follow(store: &Store, wanted: &Wanted) -> anyhow::Result<u8> {
    let last = store.audit_latest(u64::MAX, 1).map_err(coded)?;
    let mut after = last.first().map_or(0, |entry| entry.sequence);
    loop {
        let page = store.audit_events(after, PAGE).map_err(coded)?;
        for entry in page.iter().filter(|entry| wanted.has(&entry.event)) {
            raw(&value(entry).to_string())?;
        }
        match page.last() {
            Some(last) => after = last.sequence,
            None => tokio::time::sleep(FOLLOW).await,
        }
    }
}

fn value(entry: &AuditEntry) -> serde_json::Value {
    serde_json::json!({ "sequence": entry.sequence, "hash": entry.hash, "event": entry.event })
}

fn row(entry: &AuditEntry) -> Vec<String> {
    let number = std::iter::once(entry.sequence.to_string());
    number.chain(cells(&entry.event)).collect()
}

fn verify(store: &Store, output: &Output) -> anyhow::Result<u8> {
    match store.verify_audit().map_err(coded)? {
        AuditVerdict::Intact { events, head } => {
            let value = serde_json::json!({ "intact": true, "events": events, "head": head });
            output.print(&value, |_| format!("{events} audit lines, chain intact, head {head}"))?;
            Ok(OK)
        }
        AuditVerdict::Broken { sequence } => {
            let value = serde_json::json!({ "intact": false, "sequence": sequence });
            output.print(&value, |_| {
                format!("chain broken: audit line {sequence} is not as it was written")
            })?;
            Ok(FAILED)
        }
    }
}

pub(super) fn coded(error: StoreError) -> CodedError {
    let code: Code = error.code();
    CodedError::caused(code, "read the audit log", error)
}
