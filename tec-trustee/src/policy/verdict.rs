//! The result of an attestation policy: a trust vector, its tier, and further claims.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::error::PolicyError;

/// Trust claims of an AR4SI trust vector.
const CLAIMS: [&str; 8] = [
    "instance-identity",
    "configuration",
    "executables",
    "file-system",
    "hardware",
    "runtime-opaque",
    "storage-opaque",
    "sourced-data",
];

/// Tier of a trust claim or of a whole verdict; worse tiers are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum TrustTier {
    /// No statement.
    None,
    /// Good.
    Affirming,
    /// Not as expected.
    Warning,
    /// Known to be bad.
    Contraindicated,
}

impl TrustTier {
    /// Tier of a claim's value (Trustee, attestation service).
    pub fn of(value: i8) -> Self {
        match value {
            -1..=1 => Self::None,
            -32..=31 => Self::Affirming,
            -96..=95 => Self::Warning,
            _ => Self::Contraindicated,
        }
    }

    /// The word in `ear.status`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Affirming => "affirming",
            Self::Warning => "warning",
            Self::Contraindicated => "contraindicated",
        }
    }
}

/// What an attestation policy found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verdict {
    /// The trust vector: the claims that the policy set.
    pub claims: BTreeMap<String, i8>,
    /// Further claims for the token.
    pub extensions: Map<String, Value>,
}

impl Verdict {
    /// `ear.status`: the worst tier of all claims.
    pub fn status(&self) -> TrustTier {
        self.claims.values().map(|value| TrustTier::of(*value)).max().unwrap_or(TrustTier::None)
    }

    /// Makes sure that the verdict is not affirming: executables are not recognized (AR4SI 33).
    pub fn withhold(&mut self) {
        if self.status() <= TrustTier::Affirming {
            self.claims.insert("executables".to_owned(), 33);
        }
    }
}

/// The verdict from the two results; `None` if a rule is undefined.
pub(super) fn verdict_of(
    claims: Option<Value>,
    extensions: Option<Value>,
) -> Result<Verdict, PolicyError> {
    let mut verdict = Verdict::default();
    match claims {
        None => {
            // As in Trustee, an undefined rule makes no statement.
            for claim in CLAIMS {
                verdict.claims.insert(claim.to_owned(), 0);
            }
        }
        Some(Value::Object(claims)) => {
            for (name, value) in claims {
                let value = value
                    .as_i64()
                    .and_then(|value| i8::try_from(value).ok())
                    .filter(|_| CLAIMS.contains(&name.as_str()))
                    .ok_or_else(|| malformed(format!("trust_claims.{name}")))?;
                verdict.claims.insert(name, value);
            }
        }
        Some(_) => return Err(malformed("trust_claims")),
    }
    match extensions {
        None => {}
        Some(Value::Array(list)) => {
            for entry in list {
                let (name, value) = extension(entry).ok_or_else(|| malformed("extensions"))?;
                verdict.extensions.insert(name, value);
            }
        }
        Some(_) => return Err(malformed("extensions")),
    }
    Ok(verdict)
}

fn malformed(at: impl Into<String>) -> PolicyError {
    PolicyError::Result(at.into())
}

/// `{name, key, value}`; policies may not use the names of the token's own claims.
fn extension(entry: Value) -> Option<(String, Value)> {
    let Value::Object(mut entry) = entry else {
        return None;
    };
    entry.get("key")?.as_i64()?;
    let name = entry.get("name")?.as_str()?.to_owned();
    let reserved = matches!(
        name.as_str(),
        "ear.status"
            | "ear.trustworthiness-vector"
            | "ear.appraisal-policy-id"
            | "ear.veraison.annotated-evidence"
    );
    let value = entry.remove("value")?;
    (!reserved).then_some((name, value))
}
