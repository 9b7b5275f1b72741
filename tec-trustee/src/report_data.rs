//! What evidence binds: a digest over the nonce and the session key (KBS attestation protocol 0.4.0).
//!
//! Canonical JSON (RFC 8785), then SHA-384. The nonce is included as its base64 text, not decoded. The
//! session key is included as the JSON value sent in `tee-pubkey`.

use serde_json::Value;
use sha2::Digest as _;

/// Digest algorithm of report data. The default is SHA-384; a server selects another one only through
/// `selected-hash-algorithm`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HashAlgorithm {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    #[default]
    Sha384,
    /// SHA-512.
    Sha512,
}

impl HashAlgorithm {
    /// All algorithms, in the order in which a client offers them.
    pub const ALL: [Self; 3] = [Self::Sha256, Self::Sha384, Self::Sha512];

    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
        }
    }

    /// Finds an algorithm by its name, ignoring case.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.as_str().eq_ignore_ascii_case(name))
    }

    /// Hashes `data`.
    pub fn digest(self, data: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha256 => sha2::Sha256::digest(data).to_vec(),
            Self::Sha384 => sha2::Sha384::digest(data).to_vec(),
            Self::Sha512 => sha2::Sha512::digest(data).to_vec(),
        }
    }
}

/// The runtime data has no canonical form.
#[derive(Debug, thiserror::Error)]
#[error("the runtime data has no canonical JSON form")]
#[non_exhaustive]
pub struct ReportDataError(#[source] serde_json::Error);

/// Report data of the primary evidence. `additional` is the text of `additional_evidence`, empty if
/// there is none.
///
/// Digests shorter than 48 bytes are padded with zeros and longer ones truncated, as attesters do to fit
/// report data into their hardware's field; a TPM takes the first 32 bytes.
///
/// ```
/// use tec_trustee::report_data::{HashAlgorithm, primary};
/// let key = serde_json::json!({"kty": "EC", "crv": "P-256"});
/// let a = primary("bm9uY2U=", &key, "", HashAlgorithm::Sha384)?;
/// let b = primary("bm9uY2U=", &key, "{}", HashAlgorithm::Sha384)?;
/// assert_ne!(a, b);
/// # Ok::<(), tec_trustee::report_data::ReportDataError>(())
/// ```
///
/// # Errors
/// When the value cannot be canonicalized.
pub fn primary(
    nonce: &str,
    tee_pubkey: &Value,
    additional: &str,
    algorithm: HashAlgorithm,
) -> Result<[u8; 48], ReportDataError> {
    let runtime_data = serde_json::json!({
        "additional-evidence": additional, "nonce": nonce, "tee-pubkey": tee_pubkey,
    });
    let canonical = serde_json_canonicalizer::to_vec(&runtime_data).map_err(ReportDataError)?;
    let digest = algorithm.digest(&canonical);
    let mut report_data = [0; 48];
    for (to, from) in report_data.iter_mut().zip(digest) {
        *to = from;
    }
    Ok(report_data)
}

#[cfg(test)]
mod tests {
    use sha2::Sha384;

    use super::*;

    #[test]
    fn the_digest_is_over_the_canonical_text() {
        let key = serde_json::json!({"y": "Y", "x": "X", "kty": "EC", "crv": "P-256",
            "alg": "ECDH-ES+A256KW"});
        let text = concat!(
            r#"{"additional-evidence":"","nonce":"bm9uY2U=","tee-pubkey":"#,
            r#"{"alg":"ECDH-ES+A256KW","crv":"P-256","kty":"EC","x":"X","y":"Y"}}"#
        );
        let expected: [u8; 48] = Sha384::digest(text).into();
        let data = primary("bm9uY2U=", &key, "", HashAlgorithm::Sha384).unwrap();
        assert_eq!(data, expected);
    }

    #[test]
    fn short_digests_are_padded_and_long_ones_cut() {
        let key = serde_json::json!({});
        let short = primary("n", &key, "", HashAlgorithm::Sha256).unwrap();
        assert_eq!(&short[32..], &[0; 16]);
        let canonical = br#"{"additional-evidence":"","nonce":"n","tee-pubkey":{}}"#;
        let long = primary("n", &key, "", HashAlgorithm::Sha512).unwrap();
        assert_eq!(long[..], HashAlgorithm::Sha512.digest(canonical)[..48]);
    }

    #[test]
    fn names_are_found_in_either_case() {
        assert_eq!(HashAlgorithm::by_name("SHA384"), Some(HashAlgorithm::Sha384));
        assert_eq!(HashAlgorithm::by_name("sm3"), None);
    }
}
