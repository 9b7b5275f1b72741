//! The page from what a store holds.

use tec_core::attest::Attempt;
use tec_core::explain::{EventFinding, ExpectedComponent, component_name};
use tec_core::id::ImageName;
use tec_core::machine::Machine;

use super::{Change, Mark, Page, Refusal, Row, Span, Track};

/// How many machines are shown; refused ones come first.
const MACHINES: usize = 200;
/// How many refusals are shown in full.
const REFUSALS: usize = 20;
/// How many machines the timeline shows.
const TRACKS: usize = 20;

/// A machine with its name for people.
pub type Seen = (Machine, Option<String>);

/// The page of a trust anchor: machines, live images, and attempts with the newest first.
pub fn standing(machines: &[Seen], images: &[ImageName], attempts: &[Attempt]) -> Page {
    let mut rows: Vec<Row> = machines.iter().map(|seen| row(seen, attempts)).collect();
    rows.sort_by_key(|row| match row.mark {
        Mark::No => 0,
        Mark::Waiting => 1,
        Mark::Ok => 2,
    });
    let shown = rows.len().min(MACHINES);
    let released = attempts.iter().filter(|attempt| attempt.ladder.is_released()).count();
    let refused = attempts.iter().filter(|attempt| attempt.ladder.code.is_some());
    let (tracks, axis) = timeline(machines, attempts);
    let flow = [
        ("Trust anchor", "checks every boot".to_owned()),
        ("Images", format!("{} approved", images.len())),
        ("Machines", format!("{} registered, {shown} shown", rows.len())),
        ("Keys", format!("{released} released in the last {} attempts", attempts.len())),
    ];
    rows.truncate(MACHINES);
    Page {
        title: "Trusted machines".to_owned(),
        flow: flow.map(|(name, what)| [name.to_owned(), what]).into(),
        images: images.iter().map(ToString::to_string).collect(),
        machines: rows,
        refusals: refused.take(REFUSALS).map(|attempt| refusal(attempt, machines)).collect(),
        tracks,
        axis,
        ..Page::default()
    }
}

fn name((machine, name): &Seen) -> String {
    name.clone().unwrap_or_else(|| machine.id.to_string())
}

fn row(seen: &Seen, attempts: &[Attempt]) -> Row {
    let machine = &seen.0;
    // Evidence without a signature says nothing of the machine whose name it bears.
    let mut own = attempts.iter().filter(|one| one.machine == Some(machine.id) && !one.unsigned);
    let last = own.next();
    let state = format!("{:?}", machine.state).to_lowercase();
    let (mark, result, images) = last.map_or_else(
        || (Mark::Waiting, "no attempt yet".to_owned(), Vec::new()),
        |last| {
            let (mark, result) = verdict(last);
            let closest = last.ladder.mismatch.as_ref().and_then(|found| found.closest.as_ref());
            let state = last.booted.as_ref().or(closest);
            let images = state.into_iter().flat_map(|state| state.images());
            (mark, result, images.map(ToString::to_string).collect())
        },
    );
    let at = last.map_or_else(String::new, |last| last.at.to_string());
    Row { machine: name(seen), state, at, mark, result, images }
}

fn verdict(attempt: &Attempt) -> (Mark, String) {
    match attempt.ladder.code {
        Some(code) => (Mark::No, format!("refused {code}")),
        None if attempt.ladder.is_released() => (Mark::Ok, "key released".to_owned()),
        None => (Mark::Ok, "attested".to_owned()),
    }
}

/// What was refused, and which components differ from the closest approved state.
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
mod tests {
    use serde_json::json;

    use super::*;

    const ID: &str = "7c9e6679-7425-40de-944b-e07fc1f90ae7";

    fn refused(unsigned: bool) -> Attempt {
        let (expected, measured) = ("a".repeat(64), "b".repeat(64));
        let mut ladder = serde_json::to_value(tec_core::explain::Ladder::new()).unwrap();
        ladder["code"] = json!("TEC-A412");
        ladder["mismatch"] = json!({ "pcr": 4, "quoted": measured, "events": [{
            "event": { "number": 3, "pcr": 4, "digest": measured, "kind": "EV_IPL",
                       "detail": "<script>alert(1)</script>" },
            "known_as": [],
            "expected": { "component": "Pcr4Vmlinuz", "file": "boot/<b>", "digest": expected },
        }, {
            "event": { "number": 4, "pcr": 4, "digest": measured, "kind": "EV_IPL",
                       "detail": "<script>alert(2)</script>" },
            "known_as": [],
            "surplus": true,
        }] });
        serde_json::from_value(json!({
            "id": "b29cc891-b221-4b22-a410-2f39998fa3d9", "at": "2026-11-21T10:57:11Z",
            "machine": ID, "ak": null, "unsigned": unsigned, "ladder": ladder,
        }))
        .unwrap()
    }

    fn seen() -> Seen {
        let machine = json!({
            "id": ID, "registered_by": "admin", "registered_at": "2026-11-21T10:57:11Z",
            "state": "active",
        });
        (serde_json::from_value(machine).unwrap(), Some("worker-7".to_owned()))
    }

    #[test]
    fn a_refusal_shows_what_changed_and_escapes_the_log() {
        let page = standing(&[seen()], &[], &[refused(false)]);
        assert_eq!(page.machines[0].mark, Mark::No);
        let [kernel, more] = page.refusals[0].changes.as_slice() else { panic!("two changes") };
        assert_eq!(kernel.what, "kernel, PCR 4");
        assert_eq!(
            (kernel.approved.as_str(), more.approved.as_str()),
            (&*"a".repeat(64), "nothing")
        );
        let html = page.render();
        assert!(!html.contains("<script") && !html.contains("<b>boot"), "{html}");
        assert!(
            html.contains("&lt;script&gt;alert(2)") && html.contains("boot/&lt;b&gt;"),
            "{html}"
        );
    }

    #[test]
    fn evidence_that_anybody_could_send_changes_no_machine() {
        let page = standing(&[seen()], &[], &[refused(true)]);
        assert_eq!(page.machines[0].mark, Mark::Waiting);
        assert!(page.refusals[0].who.starts_with("unsigned"));
    }
}
