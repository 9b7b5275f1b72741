//! `tec explain`: the ladder of gates of one attempt.

use std::path::Path;

use clap::Args;
use tec_core::attest::Attempt;
use tec_core::code::Code;
use tec_core::id::{AttemptId, MachineId};
use tec_core::port::AttemptLog;
use tec_core::store::Store;
use tec_support::exit::{CodedError, OK};

use super::coded;
use crate::attempt::render;
use crate::output::Output;
use crate::state::open_existing;

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// Machine id or attempt id; without it, the last attempt of all.
    pub(crate) subject: Option<String>,
}

pub(crate) async fn explain(
    state_dir: &Path,
    args: ExplainArgs,
    output: Output,
) -> anyhow::Result<u8> {
    let store = open_existing(state_dir)?;
    let attempt = find(&store, args.subject.as_deref()).await?;
    output.print(&attempt, render)?;
    Ok(OK)
}

/// A UUID may name an attempt or a machine; attempts are looked up first.
async fn find(store: &Store, subject: Option<&str>) -> anyhow::Result<Attempt> {
    let unavailable = || coded(Code::StoreUnavailable, "look up the attempts");
    if let Some(id) = subject.and_then(|text| text.parse::<AttemptId>().ok())
        && let Some(attempt) = AttemptLog::find(store, &id).await.map_err(unavailable())?
    {
        return Ok(attempt);
    }
    let machine = subject
        .map(|text| {
            text.parse::<MachineId>().map_err(|error| {
                CodedError::caused(Code::MachineUnknown, format!("explain {text:?}"), error)
            })
        })
        .transpose()?;
    let latest = store.latest(machine, 1).await.map_err(unavailable())?;
    latest.into_iter().next().ok_or_else(|| {
        let whose = subject.map_or_else(|| "no machine".to_owned(), |text| format!("{text} never"));
        CodedError::new(
            Code::ServerUnreachable,
            format!("{whose} sent evidence to this server, so the node did not reach it"),
        )
        .into()
    })
}
