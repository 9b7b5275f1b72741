//! What a quoted register does not match, as it is kept and told.

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
    /// Whether it is not what the closest state has here.
    pub(super) fn differs(&self) -> bool {
        self.expected.is_some() || self.surplus
    }

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

/// A further pinned register that differs from the closest state, and what of it does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RegisterFindings {
    /// The register.
    pub pcr: PcrIndex,
    /// The quoted value.
    pub quoted: Sha256Digest,
    /// The events that differ, if a log came.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<EventFinding>,
    /// Components that the closest state measures and the log lacks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<ExpectedComponent>,
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
    /// Other pinned registers that differ from the closest state. Switched-off Secure Boot, for one,
    /// shows in several, and the first is not the one that names it.
    #[serde(rename = "other_registers", default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<RegisterFindings>,
    /// Where each pinned register is that of some state, but no state has them all: whose.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub apart: Vec<RegisterStates>,
    /// Why states are refused that the live images may be in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

impl PcrMismatch {
    /// One line: each register that differs, and its first component that does.
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

/// What of a register differs.
fn differing(pcr: PcrIndex, events: &[EventFinding], missing: &[ExpectedComponent]) -> String {
    let named = |component: &ExpectedComponent| match &component.file {
        Some(file) => format!("{} ({file})", component_name(&component.component)),
        None => component_name(&component.component).into_owned(),
    };
    let replaced = |finding: &EventFinding| finding.expected.as_ref().map(named);
    let mut others: Vec<_> = events.iter().filter_map(replaced).collect();
    // GRUB's commands, for one, all have one name.
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
