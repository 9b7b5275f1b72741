//! `tec explain`: the ladder of gates of one attempt.

use std::fmt::Write as _;
use std::path::Path;

use clap::Args;
use tec_core::attest::Attempt;
use tec_core::boot::BootState;
use tec_core::code::Code;
use tec_core::explain::{EventFinding, ExpectedComponent, PcrMismatch, RegisterStates, StepState};
use tec_core::id::{AttemptId, MachineId};
use tec_core::pcr::PcrIndex;
use tec_core::port::AttemptLog;
use tec_core::store::Store;
use tec_support::exit::{CodedError, OK};

use super::coded;
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

/// One line for lists.
pub(super) fn one_line(attempt: &Attempt) -> String {
    let verdict = match attempt.ladder.code {
        Some(code) => format!("refused {code}"),
        None if attempt.ladder.is_released() => "released".to_owned(),
        None => "attested".to_owned(),
    };
    format!("attempt {} {} {verdict}", attempt.id, attempt.at)
}

/// The whole ladder for people.
pub(crate) fn render(attempt: &Attempt) -> String {
    let machine =
        attempt.machine.map_or_else(|| "unknown machine".to_owned(), |id| format!("machine {id}"));
    let mut text = format!("{machine}  {}\n", one_line(attempt));
    for (number, step) in attempt.ladder.steps.iter().enumerate() {
        let mark = match step.state {
            StepState::Passed => "ok",
            StepState::Failed => "NO",
            _ => "--",
        };
        let label = step.gate.label();
        let _ = writeln!(
            text,
            " {mark} {:2}  {label}: {}",
            number + 1,
            detail(step.state, &step.detail)
        );
    }
    if let Some(state) = attempt.booted.as_ref().filter(|state| state.is_mixed()) {
        text += "  between images:\n";
        text += &render_parts(state);
    }
    if let Some(mismatch) = &attempt.ladder.mismatch {
        text += &render_mismatch(mismatch);
    }
    if let Some(code) = attempt.ladder.code {
        let _ = write!(
            text,
            "{code} {}\n  cause: {}\n  fix:   {}\n  more:  docs/errors/{code}.md",
            code.title(),
            code.cause(),
            code.fix()
        );
    }
    text
}

fn detail(state: StepState, detail: &str) -> &str {
    if state == StepState::NotReached { "not reached" } else { detail }
}

/// Which registers depend on which part, and which images have it.
fn render_parts(state: &BootState) -> String {
    let mut text = String::new();
    for part in state.parts() {
        let images: Vec<_> = part.images.iter().map(ToString::to_string).collect();
        let _ = writeln!(
            text,
            "    {} (PCR {}): {}",
            part.components.join(" and "),
            list(&part.pcrs),
            images.join(" or ")
        );
    }
    text
}

fn list(pcrs: &[PcrIndex]) -> String {
    let numbers: Vec<_> = pcrs.iter().map(ToString::to_string).collect();
    numbers.join(", ")
}

fn render_mismatch(mismatch: &PcrMismatch) -> String {
    let mut text = format!("  PCR {} = {}\n", mismatch.pcr, mismatch.quoted);
    if let Some(closest) = &mismatch.closest {
        let _ = writeln!(text, "  closest: {closest}");
    }
    for RegisterStates { pcr, states, .. } in &mismatch.apart {
        let states: Vec<_> = states.iter().map(ToString::to_string).collect();
        let _ = writeln!(text, "  PCR {pcr} alone: {}", states.join("; "));
    }
    if let Some(trouble) = &mismatch.trouble {
        let _ = writeln!(text, "  not known: {trouble}");
    }
    text += &render_findings(&mismatch.events, &mismatch.missing);
    for other in &mismatch.others {
        let _ = writeln!(text, "  differing, too: PCR {} = {}", other.pcr, other.quoted);
        text += &render_findings(&other.events, &other.missing);
    }
    text
}

fn render_findings(events: &[EventFinding], missing: &[ExpectedComponent]) -> String {
    let mut text: String = events.iter().map(render_event).collect();
    for missing in missing {
        let file = missing.file.as_deref().unwrap_or("-");
        let _ = writeln!(text, "    missing: {} ({file})", missing.component);
    }
    text
}

fn render_event(finding: &EventFinding) -> String {
    let event = &finding.event;
    let known: Vec<_> = finding
        .known_as
        .iter()
        .map(|known| {
            let ended = if known.live { "" } else { ", approval ended" };
            format!("{} of {}{ended}", known.component, known.image)
        })
        .collect();
    let known = if known.is_empty() { "of no image".to_owned() } else { known.join("; ") };
    let said = event.detail.as_deref().unwrap_or("");
    let besides = if finding.surplus { ", besides" } else { "" };
    let mut text =
        format!("    event {:3}  {}  {said}  = {known}{besides}\n", event.number, event.kind);
    if let Some(expected) = &finding.expected {
        let file = expected.file.as_deref().unwrap_or("-");
        let _ = writeln!(
            text,
            "      differs: {} ({file})\n        expected {}\n        measured {}",
            expected.component, expected.digest, event.digest
        );
    }
    text
}
