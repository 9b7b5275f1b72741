//! The sealed passphrase of the Clevis pin `trustee`: a compact JWE (clevis-pin-trustee; RFC 7516).
//!
//! ```text
//! base64url({"alg":"dir","clevis":{…},"enc":"A256GCM"}) . (empty) . iv . ciphertext . tag
//! ```
//! The header says where the key is. It can be read without the key, but proves nothing until the passphrase
//! is opened.
//!
//! ```
//! use tec_core::ignition::PinConfig;
//! use tec_core::secret::{SecretArray, SecretBytes};
//! use tec_trustee::clevis::{SealedPassphrase, seal};
//! # use rand_core::SeedableRng as _;
//! # let mut rng = rand_chacha::ChaCha20Rng::seed_from_u64(1);
//! let config = PinConfig::parse(
//!     r#"{"servers":[{"url":"http://kbs:8080"}],
//!         "path":"default/7c9e6679-7425-40de-944b-e07fc1f90ae7/root"}"#,
//! )?;
//! let key = SecretArray::new([7; 32]);
//! let passphrase = SecretBytes::new(b"correct horse".to_vec());
//! let text = seal(&config.to_header(), &key, &passphrase, &mut rng)?;
//! let sealed = SealedPassphrase::parse(&text)?;
//! assert_eq!(sealed.config(), &config.to_header());
//! assert!(sealed.open(&key)?.ct_eq(&passphrase));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rand_core::CryptoRng;
use serde::{Deserialize, Serialize};
use tec_core::ignition::{HeaderConfig, ParsePinConfigError};
use tec_core::secret::{SecretArray, SecretBytes};

use crate::jwe::{A256GCM, JweError, Sealed, decode, decode_array, gcm_open, gcm_seal};

/// Largest sealed text: a header with a few CA bundles, and a passphrase.
const MAX_TEXT: usize = 1024 * 1024;
/// Largest protected header.
const MAX_HEADER: usize = 512 * 1024;
/// Largest passphrase.
const MAX_PASSPHRASE: usize = 64 * 1024;

/// A sealed passphrase cannot be created, read or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClevisError {
    /// The text is longer than any sealed passphrase.
    #[error("the sealed passphrase has {0} bytes, more than the limit of 1048576")]
    TooLarge(usize),
    /// The text does not have five parts, or has an encrypted key, which `dir` does not allow.
    #[error("the sealed passphrase is not a compact JWE with a direct key")]
    Form,
    /// The protected header is not the expected JSON.
    #[error("the header of the sealed passphrase is malformed")]
    Header(#[source] serde_json::Error),
    /// The header specifies another algorithm, or has critical extensions.
    #[error("the header of the sealed passphrase names algorithms that are not supported")]
    Algorithm,
    /// The `clevis` object in the header does not belong to this pin.
    #[error("the header of the sealed passphrase does not belong to the Clevis pin trustee")]
    Config(#[source] ParsePinConfigError),
    /// The configuration cannot be written as JSON.
    #[error("the configuration of the pin cannot be written")]
    Write(#[source] serde_json::Error),
    /// Sealing, opening or decoding failed.
    #[error("the sealed passphrase cannot be processed")]
    Jwe(#[source] JweError),
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    enc: String,
    clevis: serde_json::Value,
    #[serde(default)]
    crit: Option<serde_json::Value>,
    #[serde(default)]
    zip: Option<serde_json::Value>,
}

/// The `clevis` object as written: `clevis luks list` skips a slot whose header has no member with the name
/// of its pin (Clevis 19, `clevis_luks_print_pin_config`).
#[derive(Serialize)]
struct Listed<'c> {
    #[serde(flatten)]
    config: &'c HeaderConfig,
    trustee: Empty,
}

#[derive(Serialize)]
struct Empty {}

/// Seals a passphrase with the machine's key.
///
/// # Errors
/// When the passphrase is larger than 64 KiB.
pub fn seal(
    config: &HeaderConfig,
    key: &SecretArray<32>,
    passphrase: &SecretBytes,
    rng: &mut dyn CryptoRng,
) -> Result<String, ClevisError> {
    if passphrase.len() > MAX_PASSPHRASE {
        return Err(ClevisError::TooLarge(passphrase.len()));
    }
    let trustee = Empty {};
    let clevis = serde_json::to_string(&Listed { config, trustee }).map_err(ClevisError::Write)?;
    // Members in alphabetical order, so that readers that rewrite the header keep the bytes.
    let header = format!(r#"{{"alg":"dir","clevis":{clevis},"enc":"{A256GCM}"}}"#);
    if header.len() > MAX_HEADER {
        return Err(ClevisError::TooLarge(header.len()));
    }
    let protected = URL_SAFE_NO_PAD.encode(header);
    let sealed = gcm_seal(key, protected.as_bytes(), passphrase, rng).map_err(ClevisError::Jwe)?;
    Ok(format!(
        "{protected}..{}.{}.{}",
        URL_SAFE_NO_PAD.encode(sealed.iv),
        URL_SAFE_NO_PAD.encode(sealed.ciphertext),
        URL_SAFE_NO_PAD.encode(sealed.tag),
    ))
}

/// A sealed passphrase whose header was read.
#[derive(Debug)]
pub struct SealedPassphrase {
    protected: String,
    config: HeaderConfig,
    sealed: Sealed,
}

impl SealedPassphrase {
    /// Reads the text that [`seal`] or the existing pin wrote; surrounding white space is dropped.
    ///
    /// # Errors
    /// The text is not a compact JWE with `dir` and `A256GCM` of this pin.
    pub fn parse(text: &str) -> Result<Self, ClevisError> {
        if text.len() > MAX_TEXT {
            return Err(ClevisError::TooLarge(text.len()));
        }
        let mut parts = text.trim_ascii().split('.');
        let mut next = || parts.next().ok_or(ClevisError::Form);
        let (protected, encrypted_key) = (next()?, next()?);
        let (iv, ciphertext, tag) = (next()?, next()?, next()?);
        if parts.next().is_some() || !encrypted_key.is_empty() {
            return Err(ClevisError::Form);
        }
        let sealed = Sealed {
            iv: decode_array("iv", iv).map_err(ClevisError::Jwe)?,
            ciphertext: decode("ciphertext", ciphertext, MAX_PASSPHRASE)
                .map_err(ClevisError::Jwe)?,
            tag: decode_array("tag", tag).map_err(ClevisError::Jwe)?,
        };
        Ok(Self { protected: protected.to_owned(), config: read_header(protected)?, sealed })
    }

    /// Where the key is. Not authenticated until [`open`](Self::open) succeeds.
    pub fn config(&self) -> &HeaderConfig {
        &self.config
    }

    /// Opens the passphrase.
    ///
    /// # Errors
    /// When the key is a different one, or the header or content was altered.
    pub fn open(&self, key: &SecretArray<32>) -> Result<SecretBytes, ClevisError> {
        gcm_open(key, self.protected.as_bytes(), &self.sealed).map_err(ClevisError::Jwe)
    }
}

fn read_header(protected: &str) -> Result<HeaderConfig, ClevisError> {
    let json = decode("protected", protected, MAX_HEADER).map_err(ClevisError::Jwe)?;
    let header: Header = serde_json::from_slice(&json).map_err(ClevisError::Header)?;
    let plain = header.crit.is_none() && header.zip.is_none();
    if header.alg != "dir" || header.enc != A256GCM || !plain {
        return Err(ClevisError::Algorithm);
    }
    HeaderConfig::from_value(header.clevis).map_err(ClevisError::Config)
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha20Rng;
    use rand_core::SeedableRng as _;
    use tec_core::ignition::PinConfig;

    use super::*;

    fn config() -> HeaderConfig {
        let json = r#"{"servers":[{"url":"https://kbs:8080","cert":"PEM"}],
            "path":"default/7c9e6679-7425-40de-944b-e07fc1f90ae7/root","num_retries":3}"#;
        PinConfig::parse(json).unwrap().to_header()
    }

    fn sealed() -> String {
        let passphrase = SecretBytes::new(b"passphrase".to_vec());
        let mut rng = ChaCha20Rng::seed_from_u64(1);
        seal(&config(), &SecretArray::new([1; 32]), &passphrase, &mut rng).unwrap()
    }

    fn with_header(header: &str) -> String {
        let text = sealed();
        let (_, rest) = text.split_once('.').unwrap();
        format!("{}.{rest}", URL_SAFE_NO_PAD.encode(header))
    }

    #[test]
    fn the_header_is_that_of_the_existing_pin() {
        let text = sealed();
        let parts: Vec<_> = text.split('.').collect();
        assert_eq!((parts.len(), parts[1]), (5, ""));
        let header = URL_SAFE_NO_PAD.decode(parts[0]).unwrap();
        let header: serde_json::Value = serde_json::from_slice(&header).unwrap();
        assert_eq!(header["alg"], "dir");
        assert_eq!(header["enc"], "A256GCM");
        assert_eq!(header["clevis"]["pin"], "trustee");
        assert_eq!(header["clevis"]["servers"][0]["url"], "https://kbs:8080");
        assert_eq!(header["clevis"]["initdata"], serde_json::Value::Null);
        assert_eq!(header["clevis"]["num_retries"], 3);
        assert!(header["clevis"]["trustee"].is_object());
    }

    #[test]
    fn a_newline_after_the_text_is_fine() {
        let parsed = SealedPassphrase::parse(&format!("{}\n", sealed())).unwrap();
        assert_eq!(parsed.config(), &config());
        let opened = parsed.open(&SecretArray::new([1; 32])).unwrap();
        assert_eq!(opened.expose("test"), b"passphrase");
    }

    #[test]
    fn another_key_and_an_altered_header_do_not_open() {
        let parsed = SealedPassphrase::parse(&sealed()).unwrap();
        assert!(matches!(
            parsed.open(&SecretArray::new([2; 32])),
            Err(ClevisError::Jwe(JweError::Content))
        ));
        let clevis = serde_json::to_string(&config()).unwrap();
        let moved = clevis.replace("https://kbs", "https://eve");
        let text = with_header(&format!(r#"{{"alg":"dir","clevis":{moved},"enc":"A256GCM"}}"#));
        let parsed = SealedPassphrase::parse(&text).unwrap();
        assert!(parsed.open(&SecretArray::new([1; 32])).is_err());
    }

    #[test]
    fn other_forms_are_refused() {
        let clevis = serde_json::to_string(&config()).unwrap();
        for header in [
            format!(r#"{{"alg":"ECDH-ES","clevis":{clevis},"enc":"A256GCM"}}"#),
            format!(r#"{{"alg":"dir","clevis":{clevis},"enc":"A128GCM"}}"#),
            format!(r#"{{"alg":"dir","clevis":{clevis},"enc":"A256GCM","crit":["b64"]}}"#),
        ] {
            assert!(matches!(
                SealedPassphrase::parse(&with_header(&header)),
                Err(ClevisError::Algorithm)
            ));
        }
        let tang = clevis.replace("\"trustee\"", "\"tang\"");
        let tang = with_header(&format!(r#"{{"alg":"dir","clevis":{tang},"enc":"A256GCM"}}"#));
        assert!(matches!(SealedPassphrase::parse(&tang), Err(ClevisError::Config(_))));
        for form in ["", "a.b.c.d", "a..b.c.d.e", "a.b.c.d.e"] {
            assert!(SealedPassphrase::parse(form).is_err(), "{form}");
        }
    }
}
