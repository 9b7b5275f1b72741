//! Builds the page from what a store holds.

use std::collections::{HashMap, HashSet};

use tec_core::attest::Attempt;
use tec_core::explain::{EventFinding, ExpectedComponent, component_name};
use tec_core::id::ImageName;
use tec_core::machine::Machine;

use super::{Change, Mark, Page, REFUSALS, Refusal, Row, Span, Track};

/// How many machines the timeline shows.
const TRACKS: usize = 20;

/// A machine with its name for people.
pub type Seen = (Machine, Option<String>);

/// The page of a trust anchor: machines, live images, and attempts, the newest first.
pub fn standing(machines: &[Seen], images: &[ImageName], attempts: &[Attempt]) -> Page {
    let mut of: HashMap<_, Vec<&Attempt>> = HashMap::new();
    // Evidence without a signature says nothing of the machine whose name it bears.
    for attempt in attempts.iter().filter(|one| !one.unsigned) {
        of.entry(attempt.machine).or_default().push(attempt);
    }
    let last = |seen: &Seen| of.get(&Some(seen.0.id)).and_then(|own| own.first().copied());
    let rows: Vec<Row> = machines.iter().map(|seen| row(seen, last(seen))).collect();
    let released = attempts.iter().filter(|attempt| attempt.ladder.is_released()).count();
    let mut refused: Vec<_> = attempts.iter().filter(|one| one.ladder.code.is_some()).collect();
    // What anybody can send comes last, so that it hides no refusal of a machine.
    let known: HashSet<_> = machines.iter().map(|(machine, _)| Some(machine.id)).collect();
    refused.sort_by_key(|one| one.unsigned || !known.contains(&one.machine));
    let (tracks, axis) = timeline(machines, attempts);
    let flow = [
        ("Trust anchor", "checks every boot".to_owned()),
        ("Images", format!("{} approved", images.len())),
        ("Machines", format!("{} registered", rows.len())),
        ("Keys", format!("{released} released in the last {} attempts", attempts.len())),
    ];
    Page {
        title: "Trusted machines".to_owned(),
        flow: flow.map(|(name, what)| [name.to_owned(), what]).into(),
        images: images.iter().map(ToString::to_string).collect(),
        machines: rows,
        refusals: refused.into_iter().take(REFUSALS).map(|one| refusal(one, machines)).collect(),
        tracks,
        axis,
        ..Page::default()
    }
}

fn name((machine, name): &Seen) -> String {
    name.clone().unwrap_or_else(|| machine.id.to_string())
}

fn row(seen: &Seen, last: Option<&Attempt>) -> Row {
    let (mark, result, images) = last.map_or_else(
        || (Mark::Waiting, "no attempt yet".to_owned(), Vec::new()),
        |last| {
            let (mark, result) = verdict(last);
            let closest = last.ladder.mismatch.as_ref().and_then(|found| found.closest.as_ref());
            let state = last.booted.as_ref().or(closest);
            let images = state.into_iter().flat_map(tec_core::boot::BootState::images);
            (mark, result, images.map(ToString::to_string).collect())
        },
    );
    let at = last.map_or_else(String::new, |last| last.at.to_string());
    Row { machine: name(seen), at, mark, result, images, ..Row::default() }.of(seen.0.state)
}

fn verdict(attempt: &Attempt) -> (Mark, String) {
    match attempt.ladder.code {
        Some(code) => (Mark::No, format!("refused {code}")),
        None if attempt.ladder.is_released() => (Mark::Ok, "key released".to_owned()),
        None => (Mark::Ok, "attested".to_owned()),
    }
}

/// The refused attempts, and which components differ from the closest approved state.
pub fn refusal(attempt: &Attempt, machines: &[Seen]) -> Refusal {
    let known = machines.iter().find(|(machine, _)| Some(machine.id) == attempt.machine);
    let mut who = known.map_or_else(|| "unknown machine".to_owned(), name);
    if attempt.unsigned {
        who = format!("unsigned, in the name of {who}");
    }
    let mut changes = Vec::new();
    if let Some(found) = &attempt.ladder.mismatch {
        let registers = std::iter::once((found.pcr, &found.events, &found.missing));
        let others = found.others.iter().map(|other| (other.pcr, &other.events, &other.missing));
        for (pcr, events, missing) in registers.chain(others) {
            let differing = events.iter().filter(|one| one.expected.is_some() || one.surplus);
            changes.extend(differing.map(|one| differs(one, &pcr.to_string())));
            changes.extend(missing.iter().map(|one| lacks(one, &pcr.to_string())));
        }
    }
    let code = attempt.ladder.code;
    let failed = attempt.ladder.first_failure();
    Refusal {
        who,
        at: attempt.at.to_string(),
        code: code.map_or_else(String::new, |code| code.to_string()),
        why: failed
            .map(|step| step.detail.clone())
            .filter(|why| !why.is_empty())
            .unwrap_or_else(|| code.map_or_else(String::new, |code| code.title().to_owned())),
        changes,
        next: format!("tec explain {}", attempt.id),
    }
}

fn differs(finding: &EventFinding, pcr: &str) -> Change {
    let event = &finding.event;
    let said = event.detail.clone().unwrap_or_else(|| event.kind.clone());
    let measured = event.digest.to_string();
    match &finding.expected {
        Some(expected) => Change { measured, ..lacks(expected, pcr) },
        None => Change {
            what: format!("additional event {}, PCR {pcr}", event.number),
            file: said,
            approved: "nothing".to_owned(),
            measured,
        },
    }
}

fn lacks(expected: &ExpectedComponent, pcr: &str) -> Change {
    Change {
        what: format!("{}, PCR {pcr}", component_name(&expected.component)),
        file: expected.file.clone().unwrap_or_default(),
        approved: expected.digest.to_string(),
        measured: "nothing".to_owned(),
    }
}

fn timeline(machines: &[Seen], attempts: &[Attempt]) -> (Vec<Track>, Vec<String>) {
    let (Some(newest), Some(oldest)) = (attempts.first(), attempts.last()) else {
        return (Vec::new(), Vec::new());
    };
    let begin = oldest.at.unix_seconds();
    let length = (newest.at.unix_seconds() - begin).max(1);
    let span = |attempt: &Attempt| {
        let (mark, title) = verdict(attempt);
        let from = (attempt.at.unix_seconds() - begin).clamp(0, length) * 1000 / length;
        let title = format!("{} {title}", attempt.at);
        Span { from: u32::try_from(from).unwrap_or(0), length: 8, mark, title }
    };
    let tracks = machines.iter().filter_map(|seen| {
        let own = attempts.iter().filter(|one| one.machine == Some(seen.0.id) && !one.unsigned);
        let spans: Vec<_> = own.map(span).collect();
        (!spans.is_empty()).then(|| Track { name: name(seen), spans })
    });
    let middle = oldest.at.plus_seconds(length / 2);
    let axis = [oldest.at, middle, newest.at].map(|at| at.to_string());
    (tracks.take(TRACKS).collect(), axis.into())
}

#[cfg(test)]
mod tests;
