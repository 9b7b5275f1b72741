//! Formats an attestation attempt for people, as printed by `tec explain`.

use std::fmt::Write as _;

use serde::Serialize;
use tec_core::attest::Attempt;
use tec_core::boot::BootState;
use tec_core::code::Code;
use tec_core::explain::{
    EventFinding, ExpectedComponent, Gate, PcrMismatch, RegisterStates, StepState, component_name,
};
use tec_core::pcr::PcrIndex;
use tec_core::port::Clock as _;
use tec_core::time::Timestamp;
use tec_support::SystemClock;
use tec_support::age::age;

use crate::output::Table;

/// At least as many attempts as are kept of one machine, signed or not.
pub(crate) const OF_ONE: usize = 64;

/// Attempts as a table.
pub(crate) fn attempt_table(attempts: &[Attempt]) -> Table {
    Table::new(&["ATTEMPT", "AT", "MACHINE", "RESULT"], attempts.iter().map(row))
}

fn row(attempt: &Attempt) -> Vec<String> {
    let machine = attempt.machine.map_or_else(|| "-".to_owned(), |id| id.to_string());
    vec![attempt.id.to_string(), attempt.at.to_string(), machine, verdict(attempt)]
}

/// When a machine was last seen, and with which result.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LastSeen {
    pub(crate) at: Timestamp,
    pub(crate) result: String,
    #[serde(skip)]
    pub(crate) is_refused: bool,
    /// Since when the machine has been seen with this result in this boot, if more than once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) count: Option<u64>,
    /// Why no event log explained its registers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) event_log_unused: Option<String>,
}

impl LastSeen {
    pub(crate) fn of(attempt: &Attempt) -> Self {
        let repeats = attempt.repeats;
        Self {
            at: attempt.at,
            result: verdict(attempt),
            is_refused: attempt.ladder.code.is_some(),
            since: repeats.map(|all| all.first),
            count: repeats.map(|all| all.count),
            event_log_unused: event_log_unused(attempt).map(str::to_owned),
        }
    }

    /// An attempt of which only the time and the code of its refusal are known.
    pub(crate) fn at(at: Timestamp, code: Option<&str>) -> Self {
        let result = code.map_or_else(|| "attested".to_owned(), |code| format!("refused {code}"));
        Self {
            at,
            result,
            is_refused: code.is_some(),
            since: None,
            count: None,
            event_log_unused: None,
        }
    }

    pub(crate) fn age(&self) -> String {
        age(SystemClock.now(), self.at)
    }

    /// For example `last seen 4m ago, attested (40 times since 2026-11-26T01:02:03Z)`.
    pub(crate) fn sentence(&self) -> String {
        let repeats = self.since.zip(self.count);
        let repeats = repeats.map(|(since, count)| format!(" ({count} times since {since})"));
        let repeats = repeats.unwrap_or_default();
        let log = self.event_log_unused.as_ref();
        let log = log.map(|why| format!("\nevent log: {why}; {WITHOUT_LOG}")).unwrap_or_default();
        format!("last seen {} ago, {}{repeats}{log}", self.age(), self.result)
    }
}

/// What it means that values alone decided.
const WITHOUT_LOG: &str = "an attacker may then change what the image does not state";

/// Why the registers were judged without an event log; `None` if they were not, or if a log explained them.
pub(crate) fn event_log_unused(attempt: &Attempt) -> Option<&str> {
    let mut steps = attempt.ladder.steps.iter();
    let step = steps.find(|step| step.gate == Gate::EventLog)?;
    (step.state == StepState::Skipped).then_some(&step.detail)
}

/// A line about machines without a usable event log; `None` if there are none.
pub(crate) fn without_event_log(machines: usize) -> Option<String> {
    (machines > 0).then(|| {
        format!(
            "WARNING: machines that sent no usable event log: {machines}; values alone decided, and \
             {WITHOUT_LOG}"
        )
    })
}

fn verdict(attempt: &Attempt) -> String {
    match attempt.ladder.code {
        Some(code) => format!("refused {code}"),
        None if attempt.ladder.is_released() => "released".to_owned(),
        None => "attested".to_owned(),
    }
}

/// One line for lists.
pub(crate) fn one_line(attempt: &Attempt) -> String {
    let repeats = attempt.repeats;
    let repeats = repeats.map(|all| format!(", {} times since {}", all.count, all.first));
    let repeats = repeats.unwrap_or_default();
    format!("attempt {} {} {}{repeats}", attempt.id, attempt.at, verdict(attempt))
}

/// All attestation checks, formatted for people.
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
        if step.gate == Gate::Pcrs && !attempt.unpinned.is_empty() {
            let _ = writeln!(text, " !!     WARNING: {}", attempt.unpinned);
        }
    }
    if let Some(state) = attempt.booted.as_ref().filter(|state| state.is_mixed()) {
        text += "  between images:\n";
        text += &render_parts(state);
    }
    if let Some(mismatch) = &attempt.ladder.mismatch {
        text += &render_mismatch(mismatch);
    }
    if let Some(code) = attempt.ladder.code {
        text += &page(code);
    }
    if !attempt.measured.is_empty() {
        let _ = write!(
            text,
            "\n  or, if this boot is as it should be: tec image approve NAME --from-attempt {}",
            attempt.id
        );
    }
    text
}

fn detail(state: StepState, detail: &str) -> &str {
    if state == StepState::NotReached { "not reached" } else { detail }
}

/// The page of an error code: what the code alone implies.
pub(crate) fn page(code: Code) -> String {
    format!("{code} {}\n  cause: {}\n  fix:   {}", code.title(), code.cause(), code.fix())
}

/// Which registers depend on which part, and which images contain that part.
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
        let _ = writeln!(text, "  unknown: {trouble}");
    }
    text += &render_findings(&mismatch.events, &mismatch.missing);
    for other in &mismatch.others {
        let _ = writeln!(text, "  also differs: PCR {} = {}", other.pcr, other.quoted);
        text += &render_findings(&other.events, &other.missing);
    }
    text
}

fn render_findings(events: &[EventFinding], missing: &[ExpectedComponent]) -> String {
    let mut text: String = events.iter().map(render_event).collect();
    for missing in missing {
        let file = missing.file.as_deref().unwrap_or("-");
        let _ = writeln!(text, "    missing: {} ({file})", component_name(&missing.component));
    }
    text
}

fn render_event(finding: &EventFinding) -> String {
    let event = &finding.event;
    let known: Vec<_> = finding
        .known_as
        .iter()
        .map(|known| {
            let ended = if known.live { "" } else { ", no longer approved" };
            format!("{} of {}{ended}", component_name(&known.component), known.image)
        })
        .collect();
    let known = if known.is_empty() { "in no image".to_owned() } else { known.join("; ") };
    let said = event.detail.as_deref().unwrap_or("");
    let besides = if finding.surplus { ", in addition" } else { "" };
    let mut text =
        format!("    event {:3}  {}  {said}  = {known}{besides}\n", event.number, event.kind);
    if let Some(expected) = &finding.expected {
        let file = expected.file.as_deref().unwrap_or("-");
        let _ = writeln!(
            text,
            "      differs: {} ({file})\n        expected {}\n        measured {}",
            component_name(&expected.component),
            expected.digest,
            event.digest
        );
    }
    text
}
