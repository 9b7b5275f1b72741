//! Finds the components of images that the quoted registers do not match.

use std::collections::BTreeMap;

use super::{
    ComponentMatch, EventFinding, ExpectedComponent, PcrMismatch, RegisterFindings, RegisterStates,
};
use crate::boot::{
    BootState, BootStates, LiveImages, NearState, Pins, Settled, fits, is_constant, nearest,
    of_image, settled,
};
use crate::digest::Sha256Digest;
use crate::evidence::{LoggedEvent, PinnedPcrs, VerifiedEvidence};
use crate::image::{ApprovedImage, ImageEvent};
use crate::pcr::{PcrIndex, PcrValues};
use crate::time::Timestamp;

/// Maximum number of events of a register that are compared in words: those before and after the first that
/// differs. A log may have ten thousand.
const MAX_FINDINGS: usize = 256;
/// Number of them before it.
const CONTEXT: usize = 16;
/// Maximum number of images named for an event.
const MAX_KNOWN: usize = 8;

/// A boot that approved images explain.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Explained {
    /// What was booted.
    pub booted: BootState,
    /// The registers that had to match.
    pub pinned: PinnedPcrs,
    /// The registers in the form in which images state them: without what firmware and systemd measure around
    /// the boot chain.
    pub judged: PcrValues,
    /// Programs in PCR 4 that are of no image: the baseline of the machine must vouch for them.
    pub programs: Vec<LoggedEvent>,
}

/// Finds the state of live images that matches all registers that those images pin, around which there may be
/// what firmware and systemd measure.
///
/// # Errors
/// The differences from the nearest state, starting with the first differing pinned register. If an
/// image with an expired or revoked approval matches in full, it is named.
pub fn explain_pcrs(
    evidence: &VerifiedEvidence,
    images: &[ApprovedImage],
    pins: Pins,
    now: Timestamp,
    states: &dyn BootStates,
) -> Result<Explained, Box<PcrMismatch>> {
    let live = LiveImages::at(images, now);
    let admitted = |values: &PcrValues| pins.first_admitted(states, &live, values);
    if let Some((pinned, booted)) = admitted(&evidence.pcrs) {
        let judged = evidence.pcrs.clone();
        return Ok(Explained { booted, pinned, judged, programs: Vec::new() });
    }
    let mut nearest = None;
    for settled in settled(evidence, images, &live, pins, states) {
        if let Some((pinned, booted)) = admitted(&settled.evidence.pcrs) {
            let Settled { evidence, programs } = settled;
            return Ok(Explained { booted, pinned, judged: evidence.pcrs, programs });
        }
        nearest.get_or_insert(settled);
    }
    let seen = nearest.unwrap_or_else(|| Settled::plain(evidence.clone()));
    let mut mismatch = mismatch(&seen, images, pins, now, states);
    mismatch.quoted = *evidence.pcrs.value(mismatch.pcr);
    for other in &mut mismatch.others {
        other.quoted = *evidence.pcrs.value(other.pcr);
    }
    Err(Box::new(mismatch))
}

/// The differences from the nearest state.
fn mismatch(
    seen: &Settled,
    images: &[ApprovedImage],
    pins: Pins,
    now: Timestamp,
    states: &dyn BootStates,
) -> PcrMismatch {
    let (live, evidence) = (LiveImages::at(images, now), &seen.evidence);
    let with_pins = |image| Some((image, pins.of(image)?));
    let whole = |(image, pinned): &(&ApprovedImage, PinnedPcrs)| {
        !image.is_live(now) && fits(image, &evidence.pcrs, *pinned)
    };
    let ended = images.iter().filter_map(with_pins).find(whole);
    let near = match ended {
        Some((image, pinned)) => Some((pinned, of_image(image, pinned))),
        None => pins
            .nearest(states, &live, evidence)
            .or_else(|| nearest(images.iter().filter_map(with_pins), evidence)),
    };
    let (pinned, near) = near.map_or_else(|| (pins.any(&live), None), |(p, near)| (p, Some(near)));
    let mut mismatch = against(near.as_ref(), seen, images, pinned, now);
    mismatch.ended = ended.and_then(|(image, _)| why_ended(image, now));
    mismatch.apart = apart(evidence, &pins.class(&live, pinned), pinned, states);
    mismatch.trouble = pins.trouble(states, &live);
    mismatch
}

/// For each pinned register, the states that have its value; empty if any register has none.
fn apart(
    evidence: &VerifiedEvidence,
    class: &LiveImages<'_>,
    pinned: PinnedPcrs,
    states: &dyn BootStates,
) -> Vec<RegisterStates> {
    let alone = |pcr| {
        let states = states.admit(class, &evidence.pcrs, PinnedPcrs::only(pcr));
        (!states.is_empty()).then_some(RegisterStates { pcr, states })
    };
    let all: Option<Vec<_>> = pinned.iter().map(alone).collect();
    all.unwrap_or_default()
}

/// The differences from a state.
fn against(
    near: Option<&NearState>,
    seen: &Settled,
    images: &[ApprovedImage],
    pinned: PinnedPcrs,
    now: Timestamp,
) -> PcrMismatch {
    let evidence = &seen.evidence;
    let differs = |pcr: &PcrIndex| {
        let expected = near.and_then(|near| near.pcr(*pcr));
        expected.is_none_or(|expected| expected.value != *evidence.pcrs.value(*pcr))
    };
    let found = |pcr: PcrIndex| {
        let expected = near.and_then(|near| near.pcr(pcr));
        let expected = expected.map_or(&[][..], |expected| &expected.events);
        match logged(seen, pcr, expected) {
            Some(logged) => align(&logged, expected, images, now),
            None => (Vec::new(), Vec::new()),
        }
    };
    let mut differing = pinned.iter().filter(differs);
    let first = differing.next().or_else(|| pinned.iter().next());
    let pcr = first.unwrap_or(PcrIndex::BOOT_MANAGER);
    let (events, missing) = found(pcr);
    let others = differing.map(|pcr| {
        let (mut events, missing) = found(pcr);
        events.retain(EventFinding::differs);
        RegisterFindings { pcr, quoted: *evidence.pcrs.value(pcr), events, missing }
    });
    PcrMismatch {
        pcr,
        quoted: *evidence.pcrs.value(pcr),
        closest: near.map(|near| near.state.clone()),
        ended: None,
        events,
        missing,
        others: others.collect(),
        apart: Vec::new(),
        trouble: None,
    }
}

/// The events of a register; in PCR 4 with the programs that are of no image, if one of them may stand in the place
/// of the first of the image.
fn logged<'a>(
    seen: &'a Settled,
    pcr: PcrIndex,
    expected: &[ImageEvent],
) -> Option<Vec<&'a LoggedEvent>> {
    let mut logged = seen.evidence.logged(pcr)?;
    let first = logged.iter().position(|event| !is_constant(&event.digest, None));
    let at = first.unwrap_or(logged.len());
    let pair = logged.get(at).zip(expected.get(at));
    let is_first = pair.is_some_and(|(event, expected)| event.digest == expected.hash);
    if pcr == PcrIndex::BOOT_MANAGER && (!is_first || logged.len() < expected.len()) {
        logged.splice(at..at, &seen.programs);
    }
    Some(logged)
}

fn why_ended(image: &ApprovedImage, now: Timestamp) -> Option<String> {
    if let Some(at) = image.revoked_at {
        return Some(format!("{} was revoked at {at}", image.name));
    }
    image
        .expires_at
        .filter(|end| now >= *end)
        .map(|end| format!("the approval of {} ended at {end}", image.name))
}

/// Aligns both lists: skips their common beginning and end, and compares the events between them
/// with the expected components position by position.
fn align(
    logged: &[&LoggedEvent],
    expected: &[ImageEvent],
    images: &[ApprovedImage],
    now: Timestamp,
) -> (Vec<EventFinding>, Vec<ExpectedComponent>) {
    let same = |(l, e): &(&&LoggedEvent, &ImageEvent)| l.digest == e.hash;
    let head = logged.iter().zip(expected).take_while(same).count();
    let rest = logged.len().min(expected.len()) - head;
    let from_end = logged.iter().rev().zip(expected.iter().rev());
    let tail = from_end.take(rest).take_while(same).count();

    let known = Known::of_register(logged, images, now);
    let finding = |(place, event): (usize, &&LoggedEvent)| {
        let in_middle = place >= head && place < logged.len() - tail;
        let counterpart = expected.iter().take(expected.len() - tail).nth(place);
        let differing = counterpart.filter(|c| in_middle && c.hash != event.digest);
        EventFinding {
            event: (*event).clone(),
            known_as: known.of(event),
            expected: differing.map(component),
            surplus: in_middle && counterpart.is_none(),
        }
    };
    let from = if logged.len() > MAX_FINDINGS { head.saturating_sub(CONTEXT) } else { 0 };
    let compared = logged.iter().enumerate().skip(from).take(MAX_FINDINGS);
    let findings = compared.map(finding).collect();
    let middle_end = expected.len() - tail;
    let beyond = expected.iter().take(middle_end).skip(logged.len() - tail);
    (findings, beyond.map(component).collect())
}

fn component(event: &ImageEvent) -> ExpectedComponent {
    ExpectedComponent {
        component: event.id.clone(),
        file: event.source.clone(),
        digest: event.hash,
    }
}

/// The images that measure a digest into one register, live ones first.
struct Known(BTreeMap<Sha256Digest, Vec<ComponentMatch>>);

impl Known {
    fn of_register(logged: &[&LoggedEvent], images: &[ApprovedImage], now: Timestamp) -> Self {
        let mut known: BTreeMap<_, Vec<ComponentMatch>> = BTreeMap::new();
        let (live, ended): (Vec<_>, Vec<_>) = images.iter().partition(|image| image.is_live(now));
        let pcr = logged.first().map(|event| event.pcr);
        for image in live.into_iter().chain(ended) {
            let stated = pcr.and_then(|pcr| image.expected.pcr(pcr));
            for event in stated.map_or(&[][..], |stated| &stated.events) {
                let same = known.entry(event.hash).or_default();
                let is_named = same.last().is_some_and(|last| last.image == image.name);
                if is_named || same.len() == MAX_KNOWN {
                    continue;
                }
                same.push(ComponentMatch {
                    image: image.name.clone(),
                    component: event.id.clone(),
                    file: event.source.clone(),
                    live: image.is_live(now),
                });
            }
        }
        Self(known)
    }

    fn of(&self, event: &LoggedEvent) -> Vec<ComponentMatch> {
        self.0.get(&event.digest).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
