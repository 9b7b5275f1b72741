//! What was done to machines, for `tec machine` and `kubectl tec machine`.

use tec_core::code::Code;
use tec_core::flow;
use tec_core::id::MachineId;
use tec_core::port::{ClockLog, PortErrorKind};
use tec_support::SystemClock;
use tec_support::exit::CodedError;

use crate::output::Output;

/// Readmits the TPM of a machine.
pub(crate) async fn readmit(
    clocks: &dyn ClockLog,
    unavailable: Code,
    id: MachineId,
    output: Output,
) -> anyhow::Result<()> {
    match flow::readmit_tpm(clocks, &SystemClock, id).await {
        Ok(()) => say(output, "readmitted", false, &[id]),
        Err(error) if error.kind() == PortErrorKind::NotFound => Err(no_clock(id).into()),
        Err(error) => {
            let context = format!("readmit the TPM of machine {id}");
            Err(CodedError::caused(error.code().unwrap_or(unavailable), context, error).into())
        }
    }
}

/// There is nothing to readmit.
pub(crate) fn no_clock(id: MachineId) -> CodedError {
    let context = format!("no quote of machine {id} was accepted here");
    CodedError::new(Code::MachineUnknown, context)
}

/// Prints what was done to machines, or would be.
pub(crate) fn say(
    output: Output,
    done: &str,
    dry_run: bool,
    ids: &[MachineId],
) -> anyhow::Result<()> {
    let value = serde_json::json!({ "machines": ids, "action": done, "dry_run": dry_run });
    output.print(&value, |_| {
        let would = if dry_run { "would be " } else { "" };
        match ids {
            [] => format!("no machine {would}{done}"),
            ids => ids
                .iter()
                .map(|id| format!("machine {id} {would}{done}"))
                .collect::<Vec<_>>()
                .join("\n"),
        }
    })
}
