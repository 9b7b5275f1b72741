//! `tec explain`: the attestation checks of one attempt.

use clap::Args;
use serde::Serialize;
use tec_core::attest::Attempt;
use tec_core::code::Code;
use tec_core::id::{AttemptId, MachineId};
use tec_support::exit::{CodedError, OK};

use crate::anchor::Anchor;
use crate::args::MachineRef;
use crate::attempt::{page, render};
use crate::known::{is_unknown, unknown};
use crate::output::Output;

/// At least as many attempts as are kept of one machine, signed or not.
const OF_ONE: usize = 64;

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
    let text = |of: &Page| format!("{}\n  more:  {}", page(code), of.more);
    Some(output.print(&Page::of(code), text).map(|()| OK))
}

/// A UUID may name an attempt or a machine; attempts are looked up first.
pub(super) async fn find(anchor: &Anchor, subject: Option<&str>) -> anyhow::Result<Attempt> {
    let failed = || anchor.failed("look up the attempts");
    if let Some(id) = subject.and_then(|text| text.parse::<AttemptId>().ok())
        && let Some(attempt) = anchor.attempts.find(&id).await.map_err(failed())?
    {
        return Ok(attempt);
    }
    let machine = match subject {
        Some(text) => Some(named(anchor, text).await?),
        None => None,
    };
    // A machine that is unknown or was removed may still have attempts.
    let latest = if machine.is_some() { OF_ONE } else { 1 };
    let mut latest = anchor.attempts.latest(machine, latest).await.map_err(failed())?;
    // Anyone can send evidence without a signature in a machine's name.
    let signed = latest.iter().position(|attempt| !attempt.unsigned).unwrap_or_default();
    if signed < latest.len() {
        return Ok(latest.swap_remove(signed));
    }
    let Some(id) = machine else {
        return Err(CodedError::new(Code::NoAttempt, "no boot of any machine is recorded").into());
    };
    match anchor.find(&MachineRef { machine: id.to_string() }).await {
        Ok(known) => {
            let mut lines = vec![format!(
                "no boot of machine {} is recorded: it never reached the key broker",
                known.label()
            )];
            lines.extend(known.standing(anchor.program()));
            Err(CodedError::new(Code::NoAttempt, lines.join("\n")).into())
        }
        Err(error) if is_unknown(&error) => {
            Err(unknown(format!("no machine and no attempt has the id {id}")).into())
        }
        Err(error) => Err(error),
    }
}

/// The machine with this ID, an ID that starts with these digits, or this name.
async fn named(anchor: &Anchor, text: &str) -> anyhow::Result<MachineId> {
    anchor.id_of(&MachineRef { machine: text.to_owned() }).await.map_err(|error| {
        if !is_unknown(&error) {
            return error;
        }
        anyhow::anyhow!(
            "cannot explain {text:?}: it is not the ID or name of a machine, the ID of an attempt, \
             or an error code (list machines with `{} machine list`)",
            anchor.program()
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
