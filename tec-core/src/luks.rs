//! Disk keys: generation, the JSON form in which a KBS holds them, and the headers of disks that they open.

pub mod header;

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rand_core::CryptoRng;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::secret::{SecretArray, SecretBytes};

/// Generates the key that seals a machine's disk passphrase.
///
/// *Contract*: deterministic in the rng; each call draws a new key. Whether a key may be generated
/// at all is decided elsewhere: [`SecretStore::put_new`](crate::port::SecretStore::put_new) never
/// overwrites. *Implemented by* [`RandomLuksKey`] and [`CompatLuksKey`].
///
/// ```
/// use rand_core::CryptoRng;
/// use tec_core::luks::{LuksKeyGenerator, LuksResource};
/// use tec_core::secret::SecretArray;
///
/// /// Draws keys elsewhere.
/// #[derive(Debug)]
/// struct OwnKeys;
///
/// impl LuksKeyGenerator for OwnKeys {
///     fn generate(&self, rng: &mut dyn CryptoRng) -> LuksResource {
///         LuksResource::of_key(&SecretArray::random(rng))
///     }
/// }
/// ```
#[cfg_attr(any(test, feature = "test-util"), mockall::automock)]
pub trait LuksKeyGenerator: fmt::Debug + Send + Sync {
    /// Draws a key and returns the resource that a KBS serves.
    fn generate(&self, rng: &mut dyn CryptoRng) -> LuksResource;
}

/// The KBS resource `{"key_type":"oct","key":"…"}` as JSON bytes.
#[derive(Debug)]
pub struct LuksResource(SecretBytes);

/// The resource is not a disk key.
#[derive(Debug, thiserror::Error)]
#[error("the resource is not {{\"key_type\":\"oct\",\"key\":<32 characters, or 43 of base64url>}}")]
#[non_exhaustive]
pub struct ParseLuksResourceError;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire<'a> {
    key_type: &'a str,
    key: &'a str,
}

impl LuksResource {
    /// The resource for a 256-bit key, stored as 43 characters of base64url (RFC 4648, section 5).
    pub fn of_key(key: &SecretArray<32>) -> Self {
        let text = Zeroizing::new(URL_SAFE_NO_PAD.encode(key.expose("write the resource")));
        Self::from_key_text(&text)
    }

    /// Wraps an existing resource.
    pub fn from_bytes(resource: SecretBytes) -> Result<Self, ParseLuksResourceError> {
        content_key(&resource).map(|_| Self(resource))
    }

    fn from_key_text(key: &str) -> Self {
        // Both forms are plain ASCII without characters that need escaping in JSON.
        let json = format!(r#"{{"key_type":"oct","key":"{key}"}}"#);
        Self(SecretBytes::new(json.into_bytes()))
    }

    /// The bytes to store and serve.
    pub fn into_bytes(self) -> SecretBytes {
        self.0
    }
}

/// Reads the AES-256 key from a resource: 32 characters are the key itself (the upstream form), 43
/// characters are its base64url form.
pub fn content_key(resource: &SecretBytes) -> Result<SecretArray<32>, ParseLuksResourceError> {
    let json = resource.expose("parse the released resource");
    let wire: Wire<'_> = serde_json::from_slice(json).map_err(|_| ParseLuksResourceError)?;
    if wire.key_type != "oct" {
        return Err(ParseLuksResourceError);
    }
    let mut key = Zeroizing::new([0; 32]);
    match wire.key.len() {
        32 => key.copy_from_slice(wire.key.as_bytes()),
        43 => {
            let decoded = Zeroizing::new(
                URL_SAFE_NO_PAD.decode(wire.key).map_err(|_| ParseLuksResourceError)?,
            );
            if decoded.len() != 32 {
                return Err(ParseLuksResourceError);
            }
            key.copy_from_slice(&decoded);
        }
        _ => return Err(ParseLuksResourceError),
    }
    Ok(SecretArray::new(*key))
}

/// 256 random bits, written as 43 characters of base64url. For nodes that run this project's pin.
#[derive(Clone, Copy, Debug, Default)]
pub struct RandomLuksKey;

impl LuksKeyGenerator for RandomLuksKey {
    fn generate(&self, rng: &mut dyn CryptoRng) -> LuksResource {
        LuksResource::of_key(&SecretArray::random(rng))
    }
}

/// 192 random bits in base64, whose 32 characters are themselves the AES-256 key: the one form that
/// every existing pin understands.
#[derive(Clone, Copy, Debug, Default)]
pub struct CompatLuksKey;

impl LuksKeyGenerator for CompatLuksKey {
    fn generate(&self, rng: &mut dyn CryptoRng) -> LuksResource {
        let key = SecretArray::<24>::random(rng);
        let text = Zeroizing::new(STANDARD.encode(key.expose("write the resource")));
        LuksResource::from_key_text(&text)
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha20Rng;
    use rand_core::SeedableRng as _;

    use super::*;

    #[test]
    fn both_forms_parse_back_to_32_bytes_and_differ_per_draw() {
        let mut rng = ChaCha20Rng::seed_from_u64(1);
        let generators: [&dyn LuksKeyGenerator; 2] = [&RandomLuksKey, &CompatLuksKey];
        for generator in generators {
            let a = content_key(&generator.generate(&mut rng).into_bytes()).unwrap();
            let b = content_key(&generator.generate(&mut rng).into_bytes()).unwrap();
            assert!(!a.ct_eq(&b));
        }
    }

    #[test]
    fn the_compatible_form_is_the_documented_json() {
        let resource = CompatLuksKey.generate(&mut ChaCha20Rng::seed_from_u64(2)).into_bytes();
        let json: serde_json::Value = serde_json::from_slice(resource.expose("test")).unwrap();
        assert_eq!(json["key_type"], "oct");
        assert_eq!(json["key"].as_str().unwrap().len(), 32);
    }

    #[test]
    fn a_generator_of_others_makes_its_resource_of_a_key_or_of_checked_bytes() {
        let key = SecretArray::new([7; 32]);
        let made = LuksResource::of_key(&key).into_bytes();
        assert!(content_key(&made).unwrap().ct_eq(&key));
        let again = LuksResource::from_bytes(made).unwrap().into_bytes();
        assert!(content_key(&again).unwrap().ct_eq(&key));
        let no_key = SecretBytes::new(br#"{"key_type":"oct","key":"short"}"#.to_vec());
        LuksResource::from_bytes(no_key).unwrap_err();
    }

    #[test]
    fn other_resources_are_refused() {
        for bad in
            ["", "{}", r#"{"key_type":"rsa","key":"x"}"#, r#"{"key_type":"oct","key":"short"}"#]
        {
            assert!(content_key(&SecretBytes::new(bad.as_bytes().to_vec())).is_err());
        }
    }
}
