//! What two images measure differently.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use tec_core::digest::Sha256Digest;
use tec_core::image::{ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::pcr::{PcrIndex, PcrSet};

/// A component that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ComponentDiff {
    /// The component, for example `Pcr4Shim`.
    pub component: String,
    /// Number of the measurement among those of the component, from 0.
    pub occurrence: usize,
    /// Digest in the first image, if that has the measurement.
    pub before: Option<Sha256Digest>,
    /// Digest in the second image, if that has the measurement.
    pub after: Option<Sha256Digest>,
}

/// A register that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ExpectedDiff {
    /// The register.
    pub pcr: PcrIndex,
    /// Value of the register for the first image, if stated.
    pub before: Option<Sha256Digest>,
    /// Value of the register for the second image, if stated.
    pub after: Option<Sha256Digest>,
    /// The components that differ; none if only their order differs.
    pub components: Vec<ComponentDiff>,
}

/// Compares what two images measure: the registers that differ, and the components that cause the
/// difference.
pub fn difference(before: &ExpectedPcrs, after: &ExpectedPcrs) -> Vec<ExpectedDiff> {
    let all = before.pcrs.iter().chain(&after.pcrs);
    let registers: PcrSet = all.map(|pcr| pcr.id).collect();
    let compared = registers.iter().filter_map(|pcr| {
        let (a, b) = (before.pcr(pcr), after.pcr(pcr));
        let value = |expected: Option<&ExpectedPcr>| expected.map(|expected| expected.value);
        (value(a) != value(b)).then(|| ExpectedDiff {
            pcr,
            before: value(a),
            after: value(b),
            components: components(a, b),
        })
    });
    compared.collect()
}

/// Measurements by component and occurrence, in the order of the first image, then the second.
fn components(a: Option<&ExpectedPcr>, b: Option<&ExpectedPcr>) -> Vec<ComponentDiff> {
    let before = numbered(a);
    let after: BTreeMap<_, _> = numbered(b).into_iter().collect();
    let known: BTreeMap<_, _> = before.iter().copied().collect();
    let only_after = numbered(b).into_iter().filter(|(key, _)| !known.contains_key(key));
    let keys = before.iter().map(|(key, _)| *key).chain(only_after.map(|(key, _)| key));
    let diff = keys.map(|key| ComponentDiff {
        component: key.0.to_owned(),
        occurrence: key.1,
        before: known.get(&key).copied(),
        after: after.get(&key).copied(),
    });
    diff.filter(|component| component.before != component.after).collect()
}

fn numbered(expected: Option<&ExpectedPcr>) -> Vec<((&str, usize), Sha256Digest)> {
    let events: &[ImageEvent] = expected.map_or(&[], |expected| &expected.events);
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut numbered = Vec::with_capacity(events.len());
    for event in events {
        let count = counts.entry(&event.id).or_default();
        numbered.push(((event.id.as_str(), *count), event.hash));
        *count += 1;
    }
    numbered
}

/// The comparison in readable form.
pub fn difference_text(differences: &[ExpectedDiff]) -> String {
    if differences.is_empty() {
        return "the images measure the same\n".to_owned();
    }
    let shown = |value: Option<Sha256Digest>| {
        value.map_or_else(|| "nothing".to_owned(), |value| value.to_string())
    };
    let mut text = String::new();
    for register in differences {
        let _ = writeln!(text, "PCR {}", register.pcr);
        let _ = writeln!(text, "- {}", shown(register.before));
        let _ = writeln!(text, "+ {}", shown(register.after));
        for component in &register.components {
            let _ = writeln!(text, "  {}", component.component);
            let _ = writeln!(text, "  - {}", shown(component.before));
            let _ = writeln!(text, "  + {}", shown(component.after));
        }
    }
    text
}
