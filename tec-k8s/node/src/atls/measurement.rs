//! Expected values of registers.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use serde::Deserialize;
use serde::de::{Error as _, MapAccess, Visitor};
use tec_core::digest::Sha256Digest;
use tec_core::pcr::{PcrIndex, PcrValues};

/// Whether the peer is refused if the value differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The peer is refused.
    Enforce,
    /// The difference is only reported.
    Warn,
}

/// Expected content of one register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// The value.
    pub expected: Sha256Digest,
    /// What happens if the value differs.
    pub severity: Severity,
}

/// A register has a value other than the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("PCR {index} is {found}, expected {expected}")]
#[non_exhaustive]
pub struct Mismatch {
    /// The register.
    pub index: PcrIndex,
    /// The expected value.
    pub expected: Sha256Digest,
    /// The actual value.
    pub found: Sha256Digest,
}

/// All enforced registers that differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatches(Vec<Mismatch>);

impl Mismatches {
    /// The differences, in register order; never empty.
    pub fn all(&self) -> &[Mismatch] {
        &self.0
    }
}

impl fmt::Display for Mismatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("untrusted measurements")?;
        let mut separator = ": ";
        for one in &self.0 {
            write!(f, "{separator}{one}")?;
            separator = "; ";
        }
        Ok(())
    }
}

impl std::error::Error for Mismatches {}

/// The text is not a valid set of measurements.
#[derive(Debug, thiserror::Error)]
#[error("the measurements cannot be read")]
#[non_exhaustive]
pub struct MeasurementError {
    /// The cause, with line and column.
    #[source]
    pub source: serde_json::Error,
}

/// Expected values by register; other registers may have any value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measurements(BTreeMap<PcrIndex, Expectation>);

impl Measurements {
    /// Parses `{"4": {"expected": "<64 hex>", "warnOnly": false}, "9": "<64 hex>"}`. A bare value is
    /// enforced, as is one without `warnOnly`.
    ///
    /// # Errors
    /// [`MeasurementError`] for unknown members, a register that occurs twice, and anything that is
    /// not a digest.
    pub fn from_json(json: &[u8]) -> Result<Self, MeasurementError> {
        serde_json::from_slice(json).map_err(|source| MeasurementError { source })
    }

    /// Adds or replaces an expectation.
    pub fn with(mut self, index: PcrIndex, expectation: Expectation) -> Self {
        self.0.insert(index, expectation);
        self
    }

    /// Lets a register have any value: for callers that check it themselves.
    pub fn without(mut self, index: PcrIndex) -> Self {
        self.0.remove(&index);
        self
    }

    /// The expectations, in register order.
    pub fn registers(&self) -> impl Iterator<Item = (PcrIndex, Expectation)> {
        self.0.iter().map(|(index, expectation)| (*index, *expectation))
    }

    /// Compares all registers; returns those that differ but only warn.
    pub fn compare(&self, values: &PcrValues) -> Result<Vec<Mismatch>, Mismatches> {
        let (mut refused, mut warnings) = (Vec::new(), Vec::new());
        for (index, expectation) in &self.0 {
            let found = *values.value(*index);
            let expected = expectation.expected;
            if found == expected {
                continue;
            }
            let list = match expectation.severity {
                Severity::Enforce => &mut refused,
                Severity::Warn => &mut warnings,
            };
            list.push(Mismatch { index: *index, expected, found });
        }
        if refused.is_empty() { Ok(warnings) } else { Err(Mismatches(refused)) }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Wire {
    Bare(Sha256Digest),
    Full(WireFull),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireFull {
    expected: Sha256Digest,
    #[serde(rename = "warnOnly", default)]
    warn_only: bool,
}

impl From<Wire> for Expectation {
    fn from(wire: Wire) -> Self {
        let (expected, warn_only) = match wire {
            Wire::Bare(expected) => (expected, false),
            Wire::Full(full) => (full.expected, full.warn_only),
        };
        Self { expected, severity: if warn_only { Severity::Warn } else { Severity::Enforce } }
    }
}

struct MeasurementVisitor;

impl<'de> Visitor<'de> for MeasurementVisitor {
    type Value = Measurements;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of measurements by register")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Measurements, A::Error> {
        let mut all = BTreeMap::new();
        while let Some((key, value)) = map.next_entry::<String, Wire>()? {
            let index = key
                .parse::<u8>()
                .ok()
                .and_then(|number| PcrIndex::new(number).ok())
                .ok_or_else(|| A::Error::custom(format!("{key:?} is not a register")))?;
            if all.insert(index, value.into()).is_some() {
                return Err(A::Error::custom(format!("PCR {index} is named twice")));
            }
        }
        Ok(Measurements(all))
    }
}

impl<'de> Deserialize<'de> for Measurements {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MeasurementVisitor)
    }
}

/// Measurements that can be replaced while they are in use.
#[derive(Debug, Default)]
pub struct LiveMeasurements(RwLock<Arc<Measurements>>);

impl LiveMeasurements {
    /// Starts with these measurements.
    pub fn new(measurements: Measurements) -> Self {
        Self(RwLock::new(Arc::new(measurements)))
    }

    /// The current measurements.
    pub fn current(&self) -> Arc<Measurements> {
        Arc::clone(&self.0.read())
    }

    /// Replaces the measurements from now on.
    pub fn replace(&self, measurements: Measurements) {
        *self.0.write() = Arc::new(measurements);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> PcrValues {
        PcrValues::new([Sha256Digest::ZERO; 24])
    }

    #[test]
    fn all_enforced_registers_that_differ_are_told_at_once() {
        let one = Sha256Digest::of("one");
        let json = format!(
            r#"{{"4": "{one}", "8": {{"expected": "{one}", "warnOnly": true}},
                 "9": {{"expected": "{one}"}}, "15": "{}"}}"#,
            Sha256Digest::ZERO
        );
        let measurements = Measurements::from_json(json.as_bytes()).unwrap();
        let refused = measurements.compare(&values()).unwrap_err();
        let indices: Vec<u8> = refused.all().iter().map(|one| one.index.into()).collect();
        assert_eq!(indices, [4, 9]);
    }

    #[test]
    fn a_register_that_only_warns_is_told_and_passes() {
        let json =
            format!(r#"{{"8": {{"expected": "{}", "warnOnly": true}}}}"#, Sha256Digest::of("x"));
        let measurements = Measurements::from_json(json.as_bytes()).unwrap();
        let warnings = measurements.compare(&values()).unwrap();
        assert_eq!(u8::from(warnings[0].index), 8);
    }

    #[test]
    fn a_register_that_somebody_else_judges_may_hold_anything() {
        let json = format!(r#"{{"15": "{}"}}"#, Sha256Digest::of("x"));
        let measurements = Measurements::from_json(json.as_bytes()).unwrap();
        assert!(measurements.compare(&values()).is_err());
        let judged_elsewhere = measurements.without(PcrIndex::CLUSTER);
        assert_eq!(judged_elsewhere.compare(&values()), Ok(Vec::new()));
    }

    #[test]
    fn unclear_measurements_are_refused() {
        let zero = Sha256Digest::ZERO;
        for json in [
            format!(r#"{{"4": "{zero}", "04": "{zero}"}}"#),
            format!(r#"{{"24": "{zero}"}}"#),
            format!(r#"{{"4": {{"expected": "{zero}", "warnonly": true}}}}"#),
            r#"{"4": "00"}"#.to_owned(),
            "[]".to_owned(),
        ] {
            assert!(Measurements::from_json(json.as_bytes()).is_err(), "{json}");
        }
    }

    #[test]
    fn replaced_measurements_count_at_once() {
        let live = LiveMeasurements::default();
        assert!(live.current().compare(&values()).is_ok());
        let expectation =
            Expectation { expected: Sha256Digest::of("x"), severity: Severity::Enforce };
        live.replace(Measurements::default().with(PcrIndex::BOOT_MANAGER, expectation));
        assert!(live.current().compare(&values()).is_err());
    }
}
