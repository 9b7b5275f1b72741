//! How quoted registers differ from approved images, as stored and shown.

use serde::{Deserialize, Serialize};

use super::component::component_name;
use crate::boot::BootState;
use crate::digest::Sha256Digest;
use crate::evidence::LoggedEvent;
use crate::id::ImageName;
use crate::pcr::PcrIndex;

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
    /// Whether the image's approval is valid.
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
    /// Expected digest.
    pub digest: Sha256Digest,
}

/// One event of the register that does not match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EventFinding {
    /// The event as logged.
    pub event: LoggedEvent,
    /// Images that measure the same digest; empty if there are none.
    pub known_as: Vec<ComponentMatch>,
    /// What the closest state has at this position, if it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<ExpectedComponent>,
    /// Whether the closest state has nothing at this position.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub surplus: bool,
}

impl EventFinding {
    /// Whether it differs from what the closest state has here.
    pub(crate) fn differs(&self) -> bool {
        self.expected.is_some() || self.surplus
    }

    /// An image that has this event, if all such images have an expired or revoked approval.
    fn ended_image(&self) -> Option<&ImageName> {
        let first = self.known_as.first()?;
        let all_ended = self.known_as.iter().all(|known| !known.live);
        all_ended.then_some(&first.image)
    }
}

/// A single pinned register, and the states that have its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RegisterStates {
    /// The register.
    pub pcr: PcrIndex,
    /// The states; at least one.
    pub states: Vec<BootState>,
}

/// Another pinned register that differs from the closest state, and how it differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RegisterFindings {
    /// The register.
    pub pcr: PcrIndex,
    /// The quoted value.
    pub quoted: Sha256Digest,
    /// The events that differ, if there is a log.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<EventFinding>,
    /// Components that the closest state measures and the log lacks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<ExpectedComponent>,
}

/// Registers whose quoted values match no state of the approved images.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PcrMismatch {
    /// The first pinned register that differs from the closest state.
    pub pcr: PcrIndex,
    /// The quoted value.
    pub quoted: Sha256Digest,
    /// The closest state: one of live images if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closest: Option<BootState>,
    /// If an image matches in full: why its approval is not valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// The events, if there is a log.
    pub events: Vec<EventFinding>,
    /// Components that the closest state measures and the log lacks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<ExpectedComponent>,
    /// Other pinned registers that differ from the closest state. Disabled Secure Boot, for
    /// example, affects several, and the first is not the one that names it.
    #[serde(rename = "other_registers", default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<RegisterFindings>,
    /// If each pinned register matches some state, but no state matches all: the states of each
    /// register.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub apart: Vec<RegisterStates>,
    /// Why states that the live images may be in are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

impl PcrMismatch {
    /// One line: each differing register, with its first differing component.
    pub fn summary(&self) -> String {
        let pcr = self.pcr;
        if let Some(ended) = &self.ended {
            return format!(
                "PCR {pcr} is that of an image whose approval expired or was revoked: {ended}"
            );
        }
        let others = self.others.iter();
        let others = others.map(|other| differing(other.pcr, &other.events, &other.missing));
        let differing: Vec<_> =
            std::iter::once(differing(pcr, &self.events, &self.missing)).chain(others).collect();
        let differing = differing.join("; ");
        if self.apart.is_empty() {
            return differing;
        }
        let told = |register: &RegisterStates| {
            let state = register.states.first().map(ToString::to_string);
            format!("PCR {} of {}", register.pcr, state.unwrap_or_default())
        };
        let apart: Vec<_> = self.apart.iter().map(told).collect();
        format!("{differing}; {} do not occur together", apart.join(", "))
    }
}

/// How a register differs.
fn differing(pcr: PcrIndex, events: &[EventFinding], missing: &[ExpectedComponent]) -> String {
    let named = |component: &ExpectedComponent| match &component.file {
        Some(file) => format!("{} ({file})", component_name(&component.component)),
        None => component_name(&component.component).into_owned(),
    };
    let replaced = |finding: &EventFinding| finding.expected.as_ref().map(named);
    let mut others: Vec<_> = events.iter().filter_map(replaced).collect();
    // All GRUB commands, for example, have the same name.
    others.dedup();
    let first = events.iter().find(|finding| finding.expected.is_some());
    match (others.as_slice(), first.and_then(EventFinding::ended_image)) {
        ([], _) => {}
        ([component, ..], Some(image)) => {
            return format!(
                "PCR {pcr}: {component} is that of {image}, whose approval expired or was revoked"
            );
        }
        ([component], None) => return format!("PCR {pcr}: {component} differs"),
        (several, None) => return format!("PCR {pcr}: {} differ", several.join(", ")),
    }
    if let Some(component) = missing.first() {
        return format!("PCR {pcr}: {} was not measured", named(component));
    }
    let surplus = events.iter().find(|finding| finding.surplus);
    match surplus.map(|surplus| surplus.known_as.first()) {
        Some(Some(known)) => {
            format!("PCR {pcr}: {} was measured in addition", component_name(&known.component))
        }
        Some(None) => format!("PCR {pcr}: a component that is in no image was measured"),
        None => format!("PCR {pcr} does not match any approved image"),
    }
}
