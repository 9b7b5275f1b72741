//! Tokens that Clevis keeps in a LUKS2 header: a flattened JWE and the key slots that it opens.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};
use tec_trustee::clevis::SealedPassphrase;

use super::DiskError;

/// Type of Clevis tokens.
pub(super) const CLEVIS: &str = "clevis";
/// Number of tokens a header can hold (LUKS2 On-Disk Format Specification, "Tokens").
const MAX_TOKENS: u32 = 32;

/// A token of the pin `trustee`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Token {
    /// Its number.
    pub id: u32,
    /// The key slots that its passphrase opens.
    pub slots: Vec<String>,
    /// The sealed passphrase, a compact JWE.
    pub sealed: String,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    tokens: BTreeMap<u32, Value>,
}

#[derive(Deserialize)]
struct Wire {
    #[serde(rename = "type")]
    kind: String,
    keyslots: Vec<String>,
    jwe: Flattened,
}

/// RFC 7516, section 7.2.2.
#[derive(Deserialize)]
struct Flattened {
    protected: String,
    #[serde(default)]
    encrypted_key: String,
    iv: String,
    ciphertext: String,
    tag: String,
}

impl Token {
    /// Parses a token; `None` if it is not one of the pin.
    pub(super) fn read(id: u32, value: &Value) -> Option<Self> {
        let wire = Wire::deserialize(value).ok()?;
        let jwe = &wire.jwe;
        let parts = [&jwe.protected, &jwe.encrypted_key, &jwe.iv, &jwe.ciphertext, &jwe.tag];
        let sealed = parts.map(String::as_str).join(".");
        let is_ours = wire.kind == CLEVIS && SealedPassphrase::parse(&sealed).is_ok();
        is_ours.then_some(Self { id, slots: wire.keyslots, sealed })
    }

    /// All tokens of the pin in the metadata of a header.
    pub(super) fn all(metadata: &[u8]) -> Result<Vec<Self>, DiskError> {
        let metadata: Metadata = serde_json::from_slice(metadata).map_err(DiskError::Metadata)?;
        let tokens = metadata.tokens.iter();
        Ok(tokens.filter_map(|(id, value)| Self::read(*id, value)).collect())
    }

    /// Whether there is a token of Clevis, for whatever pin: one may contain ours.
    pub(super) fn is_bound(metadata: &[u8]) -> Result<bool, DiskError> {
        let metadata: Metadata = serde_json::from_slice(metadata).map_err(DiskError::Metadata)?;
        Ok(metadata.tokens.values().any(|token| token["type"] == CLEVIS))
    }

    /// The lowest unused token number.
    pub(super) fn free(metadata: &[u8]) -> Result<u32, DiskError> {
        let metadata: Metadata = serde_json::from_slice(metadata).map_err(DiskError::Metadata)?;
        (0..MAX_TOKENS).find(|id| !metadata.tokens.contains_key(id)).ok_or(DiskError::Full)
    }

    /// Formats a token as Clevis does.
    pub(super) fn render(slots: &[String], sealed: &str) -> String {
        let mut parts = sealed.split('.');
        let mut next = || parts.next().unwrap_or_default();
        let (protected, encrypted_key, iv) = (next(), next(), next());
        let (ciphertext, tag) = (next(), next());
        json!({
            "type": CLEVIS,
            "keyslots": slots,
            "jwe": {
                "protected": protected,
                "encrypted_key": encrypted_key,
                "iv": iv,
                "ciphertext": ciphertext,
                "tag": tag,
            },
        })
        .to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::fake::sealed_for;
    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_is_anothers_is_left_alone() {
        let sealed = sealed_for("https://a:1");
        let ours = Token::render(&["1".to_owned()], &sealed);
        let tang = ours.replace(CLEVIS, "other");
        let metadata = format!(
            r#"{{"keyslots":{{}},"tokens":{{"0":{tang},"2":{ours},"3":{{"type":"clevis"}}}}}}"#
        );
        let token = Token { id: 2, slots: vec!["1".to_owned()], sealed };
        assert_eq!(Token::all(metadata.as_bytes()).unwrap(), [token]);
        assert_eq!(Token::free(metadata.as_bytes()).unwrap(), 1);
        assert!(matches!(Token::all(b"Version: 1"), Err(DiskError::Metadata(_))));
    }

    #[test]
    fn a_full_header_is_named() {
        let all: Vec<_> = (0..32).map(|id| format!(r#""{id}":{{}}"#)).collect();
        let metadata = format!(r#"{{"tokens":{{{}}}}}"#, all.join(","));
        assert!(matches!(Token::free(metadata.as_bytes()), Err(DiskError::Full)));
    }
}
