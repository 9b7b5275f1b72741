//! What a quoted register does not match, as it is kept and told.

use serde::Deserialize;
use serde::Serialize;

use crate::attest::LoggedEvent;
use crate::boot::BootState;
use crate::digest::Sha256Digest;
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
