//! The vault's key at rest: AES-256-GCM under a key that is stored elsewhere.
//!
//! The wrapping key is in a Secret of the cluster, the wrapped key in a file next to the vault's
//! storage. Either one alone is useless.

use std::fmt;

use aes_gcm::aead::{Aead as _, Payload};
use aes_gcm::{Aes256Gcm, KeyInit as _};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use tec_core::secret::{SecretArray, SecretBytes};

/// Name of the format; part of the authenticated data.
const FORMAT: &str = "tec-vault-key-v1";
/// AES-256 in Galois/counter mode, by its JSON Web Algorithms name (RFC 7518, section 5.3).
const ALGORITHM: &str = "A256GCM";
/// Maximum file size in bytes. A wrapped key is smaller than one kilobyte.
const MAX_FILE: usize = 16 * 1024;

/// What a wrapped key belongs to; a file that was moved elsewhere cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding<'a> {
    /// Namespace of the StatefulSet.
    pub namespace: &'a str,
    /// Name of the StatefulSet.
    pub stateful_set: &'a str,
    /// ID of the wrapping key.
    pub key_id: &'a str,
}

impl fmt::Display for Binding<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ns, set, id) = (self.namespace, self.stateful_set, self.key_id);
        write!(f, "{FORMAT}|{ns}|{set}|{id}")
    }
}

/// The file: JSON, binary members in base64.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: String,
    key_id: String,
    alg: String,
    nonce: String,
    ciphertext: String,
}

/// A wrapped key, as stored on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrappedKey(File);

/// A wrapped key cannot be read or opened.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum WrapError {
    /// Not the JSON of a wrapped key.
    #[error("the file with the wrapped key is malformed")]
    Form,
    /// Too large to be one.
    #[error("the file with the wrapped key has {0} bytes, which is too large")]
    Size(usize),
    /// Written for another wrapping key.
    #[error("the wrapped key needs the wrapping key {0:?}")]
    KeyId(String),
    /// Altered, from another StatefulSet, or under another key.
    #[error("the wrapped key is not authentic")]
    Authentic,
}

impl WrappedKey {
    /// Wraps `secret`.
    ///
    /// # Security
    /// A `nonce` may be used only once per wrapping key (NIST SP 800-38D, section 8).
    ///
    /// # Errors
    /// [`WrapError::Authentic`] if the secret is too long for the mode; no key is that long.
    pub fn seal(
        secret: &SecretBytes,
        key: &SecretArray<32>,
        nonce: [u8; 12],
        binding: &Binding<'_>,
    ) -> Result<Self, WrapError> {
        let aad = binding.to_string();
        let payload = Payload { msg: secret.expose("to wrap it"), aad: aad.as_bytes() };
        let sealed = cipher(key).encrypt(&nonce.into(), payload);
        let sealed = sealed.map_err(|_| WrapError::Authentic)?;
        Ok(Self(File {
            format: FORMAT.to_owned(),
            key_id: binding.key_id.to_owned(),
            alg: ALGORITHM.to_owned(),
            nonce: STANDARD.encode(nonce),
            ciphertext: STANDARD.encode(sealed),
        }))
    }

    /// Parses the file.
    pub fn parse(bytes: &[u8]) -> Result<Self, WrapError> {
        if bytes.len() > MAX_FILE {
            return Err(WrapError::Size(bytes.len()));
        }
        let file: File = serde_json::from_slice(bytes).map_err(|_| WrapError::Form)?;
        if file.format != FORMAT || file.alg != ALGORITHM {
            return Err(WrapError::Form);
        }
        Ok(Self(file))
    }

    /// The file's content.
    pub fn to_bytes(&self) -> Vec<u8> {
        // A struct of five strings always has a JSON form.
        serde_json::to_vec(&self.0).unwrap_or_default()
    }

    /// Opens it.
    ///
    /// # Errors
    /// [`WrapError`], which reveals nothing about the content.
    pub fn open(
        &self,
        key: &SecretArray<32>,
        binding: &Binding<'_>,
    ) -> Result<SecretBytes, WrapError> {
        if self.0.key_id != binding.key_id {
            return Err(WrapError::KeyId(self.0.key_id.clone()));
        }
        let nonce = STANDARD.decode(&self.0.nonce).map_err(|_| WrapError::Form)?;
        let nonce: [u8; 12] = nonce.try_into().map_err(|_| WrapError::Form)?;
        let sealed = STANDARD.decode(&self.0.ciphertext).map_err(|_| WrapError::Form)?;
        let aad = binding.to_string();
        let payload = Payload { msg: &sealed, aad: aad.as_bytes() };
        let opened = cipher(key).decrypt(&nonce.into(), payload);
        opened.map(SecretBytes::new).map_err(|_| WrapError::Authentic)
    }
}

fn cipher(key: &SecretArray<32>) -> Aes256Gcm {
    Aes256Gcm::new(key.expose("to wrap the vault's key").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BINDING: Binding<'_> =
        Binding { namespace: "platform", stateful_set: "vault", key_id: "k1" };

    fn wrapped() -> WrappedKey {
        let secret = SecretBytes::new(b"canary-unseal-key".to_vec());
        WrappedKey::seal(&secret, &SecretArray::new([1; 32]), [2; 12], &BINDING).unwrap()
    }

    #[test]
    fn a_wrapped_key_survives_the_disk_and_hides_its_content() {
        let bytes = wrapped().to_bytes();
        assert!(!bytes.windows(6).any(|window| window == b"canary"));
        let opened =
            WrappedKey::parse(&bytes).unwrap().open(&SecretArray::new([1; 32]), &BINDING).unwrap();
        assert!(opened.ct_eq(&SecretBytes::new(b"canary-unseal-key".to_vec())));
    }

    #[test]
    fn another_key_place_or_content_does_not_open() {
        let key = SecretArray::new([1; 32]);
        let refused = |wrapped: &WrappedKey, key, binding: &Binding<'_>| {
            wrapped.open(key, binding).unwrap_err()
        };
        let other = SecretArray::new([9; 32]);
        assert_eq!(refused(&wrapped(), &other, &BINDING), WrapError::Authentic);
        let elsewhere = Binding { namespace: "other", ..BINDING };
        assert_eq!(refused(&wrapped(), &key, &elsewhere), WrapError::Authentic);
        let rotated = Binding { key_id: "k2", ..BINDING };
        assert_eq!(refused(&wrapped(), &key, &rotated), WrapError::KeyId("k1".to_owned()));
        let mut altered = wrapped();
        altered.0.nonce = STANDARD.encode([3; 12]);
        assert_eq!(refused(&altered, &key, &BINDING), WrapError::Authentic);
    }

    #[test]
    fn what_is_no_wrapped_key_is_refused() {
        for bytes in [&b""[..], b"{}", b"null", br#"{"format":"x"}"#] {
            assert_eq!(WrappedKey::parse(bytes), Err(WrapError::Form));
        }
        let large = vec![b' '; MAX_FILE + 1];
        assert_eq!(WrappedKey::parse(&large), Err(WrapError::Size(MAX_FILE + 1)));
    }
}
