//! Which component of which image a quoted register does not match.

use serde::Deserialize;
use serde::Serialize;

use crate::attest::LoggedEvent;
use crate::attest::PinnedPcrs;
use crate::attest::VerifiedEvidence;
use crate::boot::BootState;
use crate::boot::BootStates;
use crate::boot::LiveImages;
use crate::boot::NearState;
use crate::boot::fits;
use crate::boot::nearest;
use crate::boot::of_image;
use crate::digest::Sha256Digest;
use crate::id::ImageName;
use crate::image::ApprovedImage;
use crate::image::ImageEvent;
use crate::pcr::PcrIndex;
use crate::time::Timestamp;

/// An image that measures the same digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ComponentMatch {
    /// The image.
    pub image: ImageName,
    /// The component, for example `Pcr4Shim`.
    pub component: String,
    /// Its file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Whether the image's approval stands.
    pub live: bool,
}

/// What the closest state would have measured here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExpectedComponent {
    /// The component.
    pub component: String,
    /// Its file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Digest that was expected.
    pub digest: Sha256Digest,
}

/// One event of the register that does not match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EventFinding {
    /// The event as logged.
    pub event: LoggedEvent,
    /// Images that measure the same; empty for what nobody knows.
    pub known_as: Vec<ComponentMatch>,
    /// What the closest state has in this place, where it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<ExpectedComponent>,
    /// Whether the closest state has nothing in this place.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub surplus: bool,
}

impl EventFinding {
    /// The image that it is known from, where only images have it whose approval ended.
    fn ended_image(&self) -> Option<&ImageName> {
        let first = self.known_as.first()?;
        let all_ended = self.known_as.iter().all(|known| !known.live);
        all_ended.then_some(&first.image)
    }
}

/// A pinned register by itself, and the states that have its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RegisterStates {
    /// The register.
    pub pcr: PcrIndex,
    /// The states; at least one.
    pub states: Vec<BootState>,
}

/// Registers whose quoted values are those of no state of the approved images.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PcrMismatch {
    /// The first pinned register that differs from the closest state.
    pub pcr: PcrIndex,
    /// The quoted value.
    pub quoted: Sha256Digest,
    /// The state that comes closest: one of live images if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closest: Option<BootState>,
    /// When an image matches in full: why its approval does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// The events, if a log came.
    pub events: Vec<EventFinding>,
    /// Components that the closest state measures and the log lacks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<ExpectedComponent>,
    /// Other pinned registers that differ from the closest state.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<PcrIndex>,
    /// Where each pinned register is that of some state, but no state has them all: whose.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub apart: Vec<RegisterStates>,
    /// Why states are refused that the live images may be in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

impl PcrMismatch {
    /// One line: the register, and the component that differs.
    pub fn summary(&self) -> String {
        let pcr = self.pcr;
        if let Some(ended) = &self.ended {
            return format!("PCR {pcr} is that of an image whose approval ended: {ended}");
        }
        let component = self
            .differing()
            .unwrap_or_else(|| format!("PCR {pcr} does not match any approved image"));
        if self.apart.is_empty() {
            return component;
        }
        let told = |register: &RegisterStates| {
            let state = register.states.first().map(ToString::to_string);
            format!("PCR {} of {}", register.pcr, state.unwrap_or_default())
        };
        let apart: Vec<_> = self.apart.iter().map(told).collect();
        format!("{component}; {} do not occur together", apart.join(", "))
    }

    /// The first component that differs.
    fn differing(&self) -> Option<String> {
        let pcr = self.pcr;
        let named = |component: &ExpectedComponent| {
            let file = component.file.as_deref().unwrap_or("no file known");
            format!("PCR {pcr}: {} ({file})", component.component)
        };
        let mut findings = self.events.iter();
        let differs = findings.find_map(|finding| Some((finding, finding.expected.as_ref()?)));
        if let Some((finding, component)) = differs {
            let how = match finding.ended_image() {
                Some(image) => format!("is that of {image}, whose approval ended"),
                None => "differs".to_owned(),
            };
            return Some(format!("{} {how}", named(component)));
        }
        if let Some(component) = self.missing.first() {
            return Some(format!("{} was not measured", named(component)));
        }
        let surplus = self.events.iter().find(|finding| finding.surplus)?;
        Some(match surplus.known_as.first() {
            Some(known) => format!("PCR {pcr}: {} was measured besides", known.component),
            None => format!("PCR {pcr}: a component that no image has was measured"),
        })
    }
}

/// Finds the state of live images that all pinned registers fit at once.
///
/// # Errors
/// What differs from the nearest state, beginning with the first pinned register that does. An
/// image whose approval ended is told as such where it fits as a whole.
pub fn explain_pcrs(
    evidence: &VerifiedEvidence,
    images: &[ApprovedImage],
    pinned: PinnedPcrs,
    now: Timestamp,
    states: &dyn BootStates,
) -> Result<BootState, Box<PcrMismatch>> {
    let live = LiveImages::at(images, now);
    let admitted = states.admit(&live, &evidence.pcrs, pinned);
    if let Some(state) = admitted.into_iter().next() {
        return Ok(state);
    }
    let whole = |image: &&ApprovedImage| !image.is_live(now) && fits(image, &evidence.pcrs, pinned);
    let ended = images.iter().find(whole);
    let near = match ended {
        Some(image) => Some(of_image(image, pinned)),
        None => states
            .nearest(&live, evidence, pinned)
            .or_else(|| nearest(images.iter(), evidence, pinned)),
    };
    let mut mismatch = against(near.as_ref(), evidence, images, pinned, now);
    mismatch.ended = ended.and_then(|image| why_ended(image, now));
    mismatch.apart = apart(evidence, &live, pinned, states);
    mismatch.trouble = states.trouble(&live, pinned);
    Err(Box::new(mismatch))
}

/// Per pinned register the states that have its value; empty where one of them has none.
fn apart(
    evidence: &VerifiedEvidence,
    live: &LiveImages<'_>,
    pinned: PinnedPcrs,
    states: &dyn BootStates,
) -> Vec<RegisterStates> {
    let alone = |pcr| {
        let states = states.admit(live, &evidence.pcrs, PinnedPcrs::only(pcr));
        (!states.is_empty()).then_some(RegisterStates { pcr, states })
    };
    let all: Option<Vec<_>> = pinned.iter().map(alone).collect();
    all.unwrap_or_default()
}

/// What differs from a state.
fn against(
    near: Option<&NearState>,
    evidence: &VerifiedEvidence,
    images: &[ApprovedImage],
    pinned: PinnedPcrs,
    now: Timestamp,
) -> PcrMismatch {
    let differs = |pcr: &PcrIndex| {
        let expected = near.and_then(|near| near.pcr(*pcr));
        expected.is_none_or(|expected| expected.value != *evidence.pcrs.value(*pcr))
    };
    let mut differing = pinned.iter().filter(differs);
    let first = differing.next().or_else(|| pinned.iter().next());
    let pcr = first.unwrap_or(PcrIndex::BOOT_MANAGER);
    let expected: &[ImageEvent] = near
        .and_then(|near| near.pcr(pcr))
        .map_or(&[], |e| e.events.as_slice());
    let (events, missing) = match evidence.logged(pcr) {
        Some(logged) => align(&logged, expected, images, now),
        None => (Vec::new(), Vec::new()),
    };
    PcrMismatch {
        pcr,
        quoted: *evidence.pcrs.value(pcr),
        closest: near.map(|near| near.state.clone()),
        ended: None,
        events,
        missing,
        others: differing.collect(),
        apart: Vec::new(),
        trouble: None,
    }
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

/// Sets both lists side by side: what they begin and end with alike is the same, and between these
/// the events are told against the expected components place by place.
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

    let finding = |(place, event): (usize, &&LoggedEvent)| {
        let in_middle = place >= head && place < logged.len() - tail;
        let counterpart = expected.iter().take(expected.len() - tail).nth(place);
        let differing = counterpart.filter(|c| in_middle && c.hash != event.digest);
        EventFinding {
            event: (*event).clone(),
            known_as: known_as(event, images, now),
            expected: differing.map(component),
            surplus: in_middle && counterpart.is_none(),
        }
    };
    let findings = logged.iter().enumerate().map(finding).collect();
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

fn known_as(event: &LoggedEvent, images: &[ApprovedImage], now: Timestamp) -> Vec<ComponentMatch> {
    let mut matches = Vec::new();
    for image in images {
        let events = image.expected.pcr(event.pcr).map_or(&[][..], |e| &e.events);
        if let Some(same) = events.iter().find(|e| e.hash == event.digest) {
            matches.push(ComponentMatch {
                image: image.name.clone(),
                component: same.id.clone(),
                file: same.source.clone(),
                live: image.is_live(now),
            });
        }
    }
    matches
}

#[cfg(test)]
mod tests;
