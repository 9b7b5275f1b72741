//! The outcome of a manual attempt, as programs pass it on and print it.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tec_core::id::ResourcePath;

use crate::policy::MACHINE_CLAIM;

/// Outcome of an attempt. It never holds the content of a resource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum Outcome {
    /// A token was issued.
    #[non_exhaustive]
    Token {
        /// Its claims; the signature was not checked.
        claims: Value,
    },
    /// A resource was released.
    #[non_exhaustive]
    Resource {
        /// Its path.
        path: ResourcePath,
        /// Its length in bytes.
        bytes: usize,
    },
}

impl Outcome {
    /// A token with these claims.
    pub fn token(claims: Value) -> Self {
        Self::Token { claims }
    }

    /// A resource of this length.
    pub fn resource(path: ResourcePath, bytes: usize) -> Self {
        Self::Resource { path, bytes }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let claims = match self {
            Self::Resource { path, bytes } => {
                return write!(f, "released {path}, {bytes} bytes");
            }
            Self::Token { claims } => claims,
        };
        let submods = claims.get("submods").and_then(Value::as_object);
        write!(f, "a token was issued")?;
        for (name, submod) in submods.into_iter().flatten() {
            let claim = |claim: &str| submod.get(claim).and_then(Value::as_str);
            let status = claim("ear.status").unwrap_or("unknown");
            write!(f, "\n{name}: {status}")?;
            if let Some(machine) = claim(MACHINE_CLAIM) {
                write!(f, ", machine {machine}")?;
            }
            let vector = submod.get("ear.trustworthiness-vector");
            for (name, value) in vector.and_then(Value::as_object).into_iter().flatten() {
                write!(f, "\n  {name} {value}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_token_is_told_by_status_machine_and_vector() {
        let outcome = Outcome::token(json!({"submods": {"cpu0": {
            "ear.status": "affirming", "tec.machine": "m",
            "ear.trustworthiness-vector": {"executables": 3},
        }}}));
        assert_eq!(
            outcome.to_string(),
            "a token was issued\ncpu0: affirming, machine m\n  executables 3"
        );
        assert_eq!(Outcome::token(json!({})).to_string(), "a token was issued");
    }

    #[test]
    fn both_forms_are_read_back() {
        let path = "default/a/root".parse().unwrap();
        for outcome in [Outcome::token(json!({"exp": 1})), Outcome::resource(path, 58)] {
            let json = serde_json::to_string(&outcome).unwrap();
            assert_eq!(serde_json::from_str::<Outcome>(&json).unwrap(), outcome);
        }
    }
}
