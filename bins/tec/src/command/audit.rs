//! `tec audit`.

use std::path::Path;

use tec_core::code::Code;
use tec_core::port::AuditEvent;
use tec_support::exit::CodedError;
use tec_support::exit::OK;

use super::word;
use crate::cli::AuditCommand;
use crate::output::Output;
use crate::output::table;
use crate::state::open_existing;

pub(crate) async fn audit(
    state_dir: &Path,
    command: AuditCommand,
    output: Output,
) -> anyhow::Result<u8> {
    let store = open_existing(state_dir)?;
    match command {
        AuditCommand::List { after, limit } => {
            let events = store.audit_events(after, limit).map_err(coded)?;
            output.print(&events, |events| {
                let row = |(number, event): &(u64, AuditEvent)| {
                    [
                        number.to_string(),
                        event.at.to_string(),
                        word(&event.action),
                        event.machine.map_or_else(|| "-".to_owned(), |id| id.to_string()),
                        event.subject.clone(),
                    ]
                };
                let rows: Vec<_> = events.iter().map(row).collect();
                table(["NO", "AT", "ACTION", "MACHINE", "SUBJECT"], &rows)
            })?;
        }
        AuditCommand::Verify => {
            let events = store.verify_audit().map_err(coded)?;
            let value = serde_json::json!({ "events": events, "intact": true });
            output.print(&value, |_| format!("{events} events, the chain is intact"))?;
        }
    }
    Ok(OK)
}

fn coded(error: tec_core::store::StoreError) -> CodedError {
    let code: Code = error.code();
    CodedError::caused(code, "read the audit log", error)
}
