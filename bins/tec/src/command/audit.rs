//! `tec audit`.

use std::path::Path;

use clap::Subcommand;
use tec_core::code::Code;
use tec_core::port::AttemptLog as _;
use tec_core::store::{AuditEntry, AuditVerdict, Store};
use tec_support::exit::{CodedError, FAILED, OK};

use super::coded as unavailable;
use crate::args::{AttemptArgs, OfMachine};
use crate::attempt::attempt_table;
use crate::audit::cells;
use crate::output::{Output, table};
use crate::state::open_existing;

#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// List events, oldest first.
    List {
        /// Only events after this number.
        #[arg(long, default_value_t = 0)]
        after: u64,
        /// At most this many.
        #[arg(long, default_value_t = 1000)]
        limit: usize,
    },
    /// List the latest attempts to attest, newest first
    Attempts(AttemptArgs<OfMachine>),
    /// Check that no event was changed, removed or put in between.
    Verify,
}

pub(crate) async fn audit(
    state_dir: &Path,
    command: AuditCommand,
    output: Output,
) -> anyhow::Result<u8> {
    let store = open_existing(state_dir)?;
    match command {
        AuditCommand::List { after, limit } => {
            let entries = store.audit_events(after, limit).map_err(coded)?;
            let values: Vec<_> = entries.iter().map(value).collect();
            output.print(&values, |_| {
                let rows: Vec<_> = entries.iter().map(row).collect();
                table(["NO", "AT", "ACTION", "MACHINE", "SUBJECT"], &rows)
            })?;
        }
        AuditCommand::Attempts(args) => {
            let listed = store.latest(args.of.machine, args.limit).await;
            let listed =
                listed.map_err(unavailable(Code::StoreUnavailable, "list the attempts"))?;
            output.print(&listed, |listed| attempt_table(listed))?;
        }
        AuditCommand::Verify => {
            return verify(&store, output);
        }
    }
    Ok(OK)
}

fn value(entry: &AuditEntry) -> serde_json::Value {
    serde_json::json!({ "sequence": entry.sequence, "hash": entry.hash, "event": entry.event })
}

fn row(entry: &AuditEntry) -> [String; 5] {
    let [at, action, machine, subject] = cells(&entry.event);
    [entry.sequence.to_string(), at, action, machine, subject]
}

fn verify(store: &Store, output: Output) -> anyhow::Result<u8> {
    match store.verify_audit().map_err(coded)? {
        AuditVerdict::Intact { events, head } => {
            let value = serde_json::json!({ "intact": true, "events": events, "head": head });
            output
                .print(&value, |_| format!("{events} events, the chain is intact, head {head}"))?;
            Ok(OK)
        }
        AuditVerdict::Broken { sequence } => {
            let value = serde_json::json!({ "intact": false, "sequence": sequence });
            output.print(&value, |_| {
                format!("the chain is broken: event {sequence} is not as it was written")
            })?;
            Ok(FAILED)
        }
    }
}

fn coded(error: tec_core::store::StoreError) -> CodedError {
    let code: Code = error.code();
    CodedError::caused(code, "read the audit log", error)
}
