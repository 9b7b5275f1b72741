//! `tec explain`: the attestation checks of one attempt.

use std::path::Path;

use clap::Args;
use serde::Serialize;
use tec_core::attest::Attempt;
use tec_core::code::Code;
use tec_core::id::{AttemptId, MachineId};
use tec_core::port::{AttemptLog, MachineRegistry};
use tec_core::store::Store;
use tec_support::exit::{CodedError, OK};

use super::coded;
use super::machine::id_of;
use crate::args::MachineRef;
use crate::attempt::{page, render};
use crate::output::Output;
use crate::state::open_existing;

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// ID or name of a machine, ID of an attempt, or an error code (default: the latest attempt).
    pub(crate) subject: Option<String>,
}

pub(crate) async fn explain(
    state_dir: &Path,
    args: ExplainArgs,
    output: &Output,
) -> anyhow::Result<u8> {
    let store = open_existing(state_dir)?;
    let attempt = find(&store, args.subject.as_deref()).await?;
    output.print(&attempt, render)?;
    Ok(OK)
}

/// Prints the page of an error code, if the subject is one: this needs neither a state directory nor a
/// cluster.
pub(crate) fn explain_code(args: &ExplainArgs, output: &Output) -> Option<anyhow::Result<u8>> {
    let code = args.subject.as_deref()?.parse::<Code>().ok()?;
    let text = |of: &Page| format!("{}\n  more:  {}", page(code), of.more);
    Some(output.print(&Page::of(code), text).map(|()| OK))
}

/// A UUID may name an attempt or a machine; attempts are looked up first.
pub(super) async fn find(store: &Store, subject: Option<&str>) -> anyhow::Result<Attempt> {
    let unavailable = || coded(Code::StoreUnavailable, "look up the attempts");
    if let Some(id) = subject.and_then(|text| text.parse::<AttemptId>().ok())
        && let Some(attempt) = AttemptLog::find(store, &id).await.map_err(unavailable())?
    {
        return Ok(attempt);
    }
    let machine = match subject {
        Some(text) => Some(named(store, text).await?),
        None => None,
    };
    // A machine that is unknown or was removed may still have attempts.
    if let Some(attempt) = store.latest(machine, 1).await.map_err(unavailable())?.pop() {
        return Ok(attempt);
    }
    if let Some(id) = &machine
        && MachineRegistry::find(store, id).await.map_err(unavailable())?.is_none()
    {
        let context = format!("no machine and no attempt has the id {id}");
        return Err(CodedError::new(Code::MachineUnknown, context).into());
    }
    let whose = subject.map_or_else(|| "any machine".to_owned(), |text| format!("machine {text}"));
    Err(CodedError::new(Code::NoAttempt, format!("no boot of {whose} is recorded")).into())
}

/// The machine with this ID, an ID that starts with these digits, or this name.
async fn named(store: &Store, text: &str) -> anyhow::Result<MachineId> {
    id_of(store, &MachineRef { machine: text.to_owned() }).await.map_err(|_| {
        anyhow::anyhow!(
            "cannot explain {text:?}: it is not the ID or name of a machine, the ID of an attempt, \
             or an error code (list machines with `tec machine list`)"
        )
    })
}

/// The page of a code, without an attempt.
#[derive(Serialize)]
struct Page {
    code: Code,
    title: &'static str,
    cause: &'static str,
    fix: &'static str,
    more: &'static str,
}

impl Page {
    fn of(code: Code) -> Self {
        let more = code.family().look;
        Self { code, title: code.title(), cause: code.cause(), fix: code.fix(), more }
    }
}
