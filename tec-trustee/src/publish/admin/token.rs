//! Admin tokens, one per call.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use ed25519_dalek::pkcs8::{DecodePrivateKey as _, EncodePrivateKey as _, EncodePublicKey as _};
use ed25519_dalek::{Signer as _, SigningKey};
use rand_core::CryptoRng;
use serde_json::{Map, Value};
use tec_core::port::Clock;
use tec_core::secret::{SecretArray, SecretBytes};

/// Lifetime of a token in seconds; the KBS tolerates another 60 (Trustee, KBS admin API).
pub const MAX_TOKEN_SECONDS: i64 = 300;
/// The role that may do everything (Trustee, KBS admin API).
const ROLE: &str = "admin";

/// The key of an admin: Ed25519, since every version can verify that (Trustee, KBS admin API).
///
/// Tokens carry `role`, `iat` and `exp`. They carry `aud` only if that is configured.
#[derive(derive_more::Debug)]
pub struct AdminKey {
    #[debug(skip)]
    key: SigningKey,
    audience: Option<String>,
}

/// The text is not a private key for admin tokens.
#[derive(Debug, thiserror::Error)]
#[error("the admin key is not an Ed25519 private key in PEM (PKCS #8)")]
#[non_exhaustive]
pub struct AdminKeyFormatError;

impl AdminKey {
    /// Reads the key from a PEM file, such as `private.key` of the Secret `trustee-auth`.
    ///
    /// # Errors
    /// A key of another type, or invalid PEM.
    pub fn from_pem(pem: &SecretBytes) -> Result<Self, AdminKeyFormatError> {
        let pem = pem.expose("the admin key is read");
        let pem = std::str::from_utf8(pem).map_err(|_| AdminKeyFormatError)?;
        let key = SigningKey::from_pkcs8_pem(pem).map_err(|_| AdminKeyFormatError)?;
        Ok(Self { key, audience: None })
    }

    /// A new key.
    pub fn generate(rng: &mut dyn CryptoRng) -> Self {
        let seed = SecretArray::<32>::random(rng);
        let key = SigningKey::from_bytes(seed.expose("it becomes the signing key"));
        Self { key, audience: None }
    }

    /// The private key in PEM (PKCS #8), to be stored.
    pub fn private_pem(&self) -> SecretBytes {
        // A key of 32 bytes always encodes.
        let pem = self.key.to_pkcs8_pem(LineEnding::LF);
        SecretBytes::new(pem.map(|pem| pem.as_bytes().to_vec()).unwrap_or_default())
    }

    /// Adds the claim `aud`, for a KBS that requires one (v0.21 and later).
    pub fn with_audience(mut self, audience: impl Into<String>) -> Self {
        self.audience = Some(audience.into());
        self
    }

    /// The public key in PEM, for the configuration of the KBS.
    pub fn public_pem(&self) -> String {
        // A key of 32 bytes always encodes.
        self.key.verifying_key().to_public_key_pem(LineEnding::LF).unwrap_or_default()
    }

    /// A token that is valid from now for [`MAX_TOKEN_SECONDS`].
    pub(super) fn token(&self, clock: &dyn Clock) -> String {
        let now = clock.now();
        let mut claims = Map::from_iter([
            ("role".to_owned(), Value::from(ROLE)),
            ("iat".to_owned(), now.unix_seconds().into()),
            ("exp".to_owned(), now.plus_seconds(MAX_TOKEN_SECONDS).unix_seconds().into()),
        ]);
        if let Some(audience) = &self.audience {
            claims.insert("aud".to_owned(), audience.as_str().into());
        }
        let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let header = encode(r#"{"alg":"EdDSA","typ":"JWT"}"#);
        let signed = format!("{header}.{}", encode(&Value::Object(claims).to_string()));
        let signature = self.key.sign(signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.to_bytes()))
    }
}
