//! Names of the items that a Trustee holds, and fingerprints of their content.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tec_core::id::ResourcePath;
use tec_core::pcr::PcrIndex;

use crate::policy::pcr_reference_name;

/// The list of all trusted keys, which the upstream policy asks for.
const TRUSTED_AKS: &str = "trusted_aks";

/// Separates these fingerprints from all other uses of the hash.
const FINGERPRINT_LABEL: &[u8] = b"tec publish fingerprint v1\0";

/// Name of a reference value: 1 to 200 characters of `A-Z a-z 0-9 . _ -`, not beginning with a dot, so that
/// every storage back end accepts it (Trustee, key-value storage).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
pub struct ReferenceName(String);

impl ReferenceName {
    /// Longest name (Trustee, key-value storage: file names).
    pub const MAX: usize = 200;

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ReferenceName {
    type Err = ParseItemError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let legal = text.len() <= Self::MAX
            && text.starts_with(word)
            && text.chars().all(|c| word(c) || c == '.');
        legal.then(|| Self(text.to_owned())).ok_or_else(|| ParseItemError::new(text))
    }
}

/// One item that a Trustee holds. Items sort in the order in which they are published.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, derive_more::Display,
)]
#[serde(try_from = "String", into = "String")]
pub(super) enum Item {
    /// The attestation policy `default_cpu`.
    #[display("attestation-policy")]
    AttestationPolicy,
    /// The resource policy.
    #[display("resource-policy")]
    ResourcePolicy,
    /// A reference value.
    #[display("reference/{_0}")]
    Reference(ReferenceName),
    /// A secret.
    #[display("secret/{_0}")]
    Secret(ResourcePath),
}

/// Distinguishes content from other content of the same item: half of a SHA-256. Nobody gains anything from
/// two contents with the same fingerprint.
///
/// # Security
/// A plain hash: it hides content that nobody can guess, such as disk keys (192 bits).
#[derive(Clone, Copy, PartialEq, Eq, derive_more::Debug, derive_more::Display)]
#[debug("Fingerprint({})", hex::encode(_0))]
#[display("{}", hex::encode(_0))]
pub(super) struct Fingerprint([u8; 16]);

impl FromStr for Fingerprint {
    type Err = ParseItemError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut bytes = [0; 16];
        match hex::decode_to_slice(text, &mut bytes) {
            Ok(()) => Ok(Self(bytes)),
            Err(_) => Err(ParseItemError::new(text)),
        }
    }
}

/// The string does not name anything that a Trustee can hold.
#[derive(Debug, thiserror::Error)]
#[error("{text:?} is not the name of a policy, reference value or secret")]
#[non_exhaustive]
pub struct ParseItemError {
    /// The string, at most 64 characters of it.
    pub text: String,
}

impl ParseItemError {
    fn new(text: &str) -> Self {
        Self { text: text.chars().take(64).collect() }
    }
}

impl Item {
    /// Whether it is a policy, which is replaced and never withdrawn.
    pub(super) fn is_policy(&self) -> bool {
        matches!(self, Self::AttestationPolicy | Self::ResourcePolicy)
    }

    /// Fingerprint of this item with `content`.
    pub(super) fn fingerprint(&self, content: &[u8]) -> Fingerprint {
        let mut hasher = Sha256::new();
        hasher.update(FINGERPRINT_LABEL);
        hasher.update(self.to_string());
        hasher.update([0]);
        hasher.update(content);
        let digest: [u8; 32] = hasher.finalize().into();
        let (half, _) = digest.split_first_chunk().unwrap_or((&[0; 16], &[]));
        Fingerprint(*half)
    }
}

impl FromStr for Item {
    type Err = ParseItemError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || ParseItemError::new(text);
        match text.split_once('/') {
            None if text == "attestation-policy" => Ok(Self::AttestationPolicy),
            None if text == "resource-policy" => Ok(Self::ResourcePolicy),
            Some(("reference", name)) => Ok(Self::Reference(name.parse()?)),
            Some(("secret", path)) => Ok(Self::Secret(path.parse().map_err(|_| unknown())?)),
            _ => Err(unknown()),
        }
    }
}

impl TryFrom<String> for Item {
    type Error = ParseItemError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Item> for String {
    fn from(item: Item) -> Self {
        item.to_string()
    }
}

/// Reference values that policies of any origin ask for.
pub(super) fn common_names() -> Vec<Item> {
    let registers = PcrIndex::all().map(pcr_reference_name);
    let names = registers.chain([TRUSTED_AKS.to_owned()]);
    names.filter_map(|name| name.parse().ok()).map(Item::Reference).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_round_trip_as_text_and_sort_as_they_are_published() {
        let texts = ["attestation-policy", "resource-policy", "reference/tpm_pcr4", "secret/a/b/c"];
        let items: Vec<Item> = texts.iter().map(|text| text.parse().unwrap()).collect();
        assert!(items.is_sorted());
        for (item, text) in items.iter().zip(texts) {
            assert_eq!(item.to_string(), text);
        }
        let long = format!("reference/{}", "a".repeat(201));
        for bad in ["", "policy", "reference/", "reference/..", "reference/a/b", "secret/a", &long]
        {
            assert!(bad.parse::<Item>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_fingerprint_is_of_item_and_content() {
        let [a, b] = ["reference/a", "reference/b"].map(|text| text.parse::<Item>().unwrap());
        assert_ne!(a.fingerprint(b"x"), b.fingerprint(b"x"));
        assert_ne!(a.fingerprint(b"x"), a.fingerprint(b"y"));
        let text = a.fingerprint(b"x").to_string();
        assert_eq!(text.parse::<Fingerprint>().unwrap(), a.fingerprint(b"x"));
        assert!("00".parse::<Fingerprint>().is_err());
    }
}
