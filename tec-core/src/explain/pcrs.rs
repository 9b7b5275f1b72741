//! Which component of which image a quoted register does not match.

use serde::Deserialize;
use serde::Serialize;

use crate::attest::LogEvidence;
use crate::attest::LoggedEvent;
use crate::attest::PinnedPcrs;
use crate::attest::VerifiedEvidence;
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

/// What the closest image would have measured here.
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
    /// What the closest image has in this place, where it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<ExpectedComponent>,
}

/// A register whose quoted value is that of no approved image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PcrMismatch {
    /// The register.
    pub pcr: PcrIndex,
    /// The quoted value.
    pub quoted: Sha256Digest,
    /// The image that comes closest, live or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closest: Option<ImageName>,
    /// When the closest image matches in full: why its approval does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// The events, if a log came.
    pub events: Vec<EventFinding>,
    /// Components that the closest image measures and the log lacks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<ExpectedComponent>,
}

impl PcrMismatch {
    /// One line: the register, and the component that differs.
    pub fn summary(&self) -> String {
        let pcr = self.pcr;
        if let Some(ended) = &self.ended {
            return format!("PCR {pcr} is that of an image whose approval ended: {ended}");
        }
        let differing = self
            .events
            .iter()
            .find_map(|finding| finding.expected.as_ref());
        if let Some(component) = differing.or_else(|| self.missing.first()) {
            let file = component.file.as_deref().unwrap_or("no file known");
            return format!("PCR {pcr}: {} ({file}) differs", component.component);
        }
        if self
            .events
            .iter()
            .any(|finding| finding.known_as.is_empty())
        {
            return format!("PCR {pcr}: a component that no image has was measured");
        }
        format!("PCR {pcr} does not match any approved image")
    }
}

/// Finds the approved image that all pinned registers fit at once.
///
/// # Errors
/// The first pinned register that fits no live image, told against the closest one. When each
/// register fits some image but no image fits them all, the first register that the best image
/// lacks is told.
pub fn explain_pcrs(
    evidence: &VerifiedEvidence,
    images: &[ApprovedImage],
    pinned: PinnedPcrs,
    now: Timestamp,
) -> Result<ImageName, Box<PcrMismatch>> {
    let fits = |image: &ApprovedImage, pcr: PcrIndex| {
        image
            .expected
            .pcr(pcr)
            .is_some_and(|e| e.value == *evidence.pcrs.value(pcr))
    };
    let live = |image: &&ApprovedImage| image.is_live(now);
    if let Some(image) = images
        .iter()
        .filter(live)
        .find(|image| pinned.iter().all(|pcr| fits(image, pcr)))
    {
        return Ok(image.name.clone());
    }
    let best = images
        .iter()
        .filter(live)
        .max_by_key(|image| pinned.iter().take_while(|pcr| fits(image, *pcr)).count());
    let failing = pinned
        .iter()
        .find(|pcr| !best.is_some_and(|image| fits(image, *pcr)))
        .unwrap_or(PcrIndex::BOOT_MANAGER);
    Err(Box::new(mismatch(evidence, images, failing, now)))
}

fn mismatch(
    evidence: &VerifiedEvidence,
    images: &[ApprovedImage],
    pcr: PcrIndex,
    now: Timestamp,
) -> PcrMismatch {
    let quoted = *evidence.pcrs.value(pcr);
    let logged: Vec<&LoggedEvent> = match &evidence.log {
        LogEvidence::Parsed { events, replayed } if replayed.contains(pcr) => {
            events.iter().filter(|event| event.pcr == pcr).collect()
        }
        _ => Vec::new(),
    };
    let closest = images.iter().max_by_key(|image| {
        let expected = image.expected.pcr(pcr);
        let exact = expected.is_some_and(|e| e.value == quoted);
        let common = expected.map_or(0, |e| common_events(&logged, &e.events));
        (exact, common, image.is_live(now), image.approved_at)
    });
    let ended = closest
        .filter(|image| image.expected.pcr(pcr).is_some_and(|e| e.value == quoted))
        .and_then(|image| why_ended(image, now));
    let expected: &[ImageEvent] = closest
        .and_then(|image| image.expected.pcr(pcr))
        .map_or(&[], |e| e.events.as_slice());
    let (events, missing) = align(&logged, expected, images, now);
    PcrMismatch {
        pcr,
        quoted,
        closest: closest.map(|image| image.name.clone()),
        ended,
        events,
        missing: if logged.is_empty() {
            Vec::new()
        } else {
            missing
        },
    }
}

fn common_events(logged: &[&LoggedEvent], expected: &[ImageEvent]) -> usize {
    logged
        .iter()
        .filter(|l| expected.iter().any(|e| e.hash == l.digest))
        .count()
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

/// Walks both lists; an unknown digest is told against the expected component that is due next.
fn align(
    logged: &[&LoggedEvent],
    expected: &[ImageEvent],
    images: &[ApprovedImage],
    now: Timestamp,
) -> (Vec<EventFinding>, Vec<ExpectedComponent>) {
    let mut due = expected.iter().peekable();
    let mut findings = Vec::with_capacity(logged.len());
    for event in logged {
        let as_expected = due.peek().is_some_and(|next| next.hash == event.digest);
        let counterpart = due.next();
        let expected = counterpart.filter(|_| !as_expected).map(component);
        findings.push(EventFinding {
            event: (*event).clone(),
            known_as: known_as(event, images, now),
            expected,
        });
    }
    (findings, due.map(component).collect())
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
