//! `tec explain`: the attestation checks of one attempt.

use clap::Args;
use serde_json::json;
use tec_core::attest::Attempt;
use tec_core::code::Code;
use tec_core::id::{AttemptId, MachineId};
use tec_support::exit::{CodedError, OK};

use crate::anchor::{Anchor, Place};
use crate::args::MachineRef;
use crate::attempt::{OF_ONE, page, render};
use crate::known::{Unknown, is_unknown, unknown};
use crate::output::Output;

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// ID or name of a machine, ID of an attempt, or an error code (default: the latest attempt).
    pub(crate) subject: Option<String>,
}

pub(crate) async fn explain(
    anchor: &Anchor,
    args: ExplainArgs,
    output: &Output,
) -> anyhow::Result<u8> {
    let attempt = find(anchor, args.subject.as_deref()).await?;
    let standing = match attempt.machine {
        Some(machine) => {
            let machine = MachineRef { machine: machine.to_string() };
            // It may have been removed.
            anchor.find(&machine).await.map(|known| known.standing(anchor.program()))
        }
        None => Ok(Vec::new()),
    };
    let mut lines = standing.unwrap_or_default();
    output.print(&attempt, |attempt| {
        lines.push(render(attempt));
        lines.join("\n")
    })?;
    Ok(OK)
}

/// Prints the page of an error code, if the subject is one: this needs neither a state directory nor a
/// cluster.
pub(crate) fn explain_code(args: &ExplainArgs, output: &Output) -> Option<anyhow::Result<u8>> {
    let code = args.subject.as_deref()?.parse::<Code>().ok()?;
    let (title, cause, fix, more) = (code.title(), code.cause(), code.fix(), code.family().look);
    let value = json!({ "code": code, "title": title, "cause": cause, "fix": fix, "more": more });
    let printed = output.print(&value, |_| format!("{}\n  more:  {more}", page(code)));
    Some(printed.map(|()| OK))
}

/// A UUID may name an attempt or a machine.
pub(super) async fn find(anchor: &Anchor, subject: Option<&str>) -> anyhow::Result<Attempt> {
    let failed = || anchor.failed("look up the attempts");
    let Some(subject) = subject else {
        let latest = anchor.attempts.latest(None, 1).await.map_err(failed())?.pop();
        let none = || CodedError::new(Code::NoAttempt, "no boot of any machine is recorded");
        return Ok(latest.ok_or_else(none)?);
    };
    let id = named(anchor, subject).await?;
    let known = match anchor.find(&MachineRef { machine: id.to_string() }).await {
        Err(error) if is_unknown(&error) => None,
        known => Some(known?),
    };
    // In a namespace, this lists the records of all machines.
    let is_attempt = known.is_none() || matches!(anchor.place, Place::Directory(..));
    if let (true, Ok(id)) = (is_attempt, subject.parse::<AttemptId>())
        && let Some(attempt) = anchor.attempts.find(&id).await.map_err(failed())?
    {
        return Ok(attempt);
    }
    // A machine that is unknown or was removed may still have attempts.
    let mut latest = anchor.attempts.latest(Some(id), OF_ONE).await.map_err(failed())?;
    // Anyone can send evidence without a signature in a machine's name.
    let signed = latest.iter().position(|attempt| !attempt.unsigned).unwrap_or_default();
    if signed < latest.len() {
        return Ok(latest.swap_remove(signed));
    }
    let Some(known) = known else {
        return Err(unknown(format!("no machine and no attempt has the id {id}")).into());
    };
    let why = known.last_seen.as_ref().map_or_else(
        || "it never reached the key broker".to_owned(),
        |seen| format!("it was {}", seen.sentence()),
    );
    let mut lines = vec![format!("no boot of machine {} is recorded: {why}", known.label())];
    lines.extend(known.standing(anchor.program()));
    Err(CodedError::new(Code::NoAttempt, lines.join("\n")).into())
}

/// The machine with this ID, an ID that starts with these digits, or this name.
async fn named(anchor: &Anchor, text: &str) -> anyhow::Result<MachineId> {
    anchor.meant(text).await?.map_err(|none| match none {
        Unknown::None(_) => anyhow::anyhow!(
            "cannot explain {text:?}: it is not the ID or name of a machine, the ID of an attempt, \
             or an error code (list machines with `{} machine list`)",
            anchor.program()
        ),
        several @ Unknown::Several(..) => unknown(several.to_string()).into(),
    })
}
