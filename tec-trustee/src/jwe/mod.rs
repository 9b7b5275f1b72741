//! The encrypted response of a KBS: flattened JSON JWE (KBS attestation protocol 0.4.0; RFC 7516;
//! RFC 7518).
//!
//! ```text
//! tee-pubkey ─ agree / OAEP ─► key encryption ─► content key ─ A256GCM ─► ciphertext
//!                              AAD = ASCII of base64url(protected header)
//! ```
//! The existing client does not keep the bytes of the protected header: it parses and rewrites it. So the
//! header is written compactly, in the order `alg`, `enc`, `epk` with `crv`, `kty`, `x`, `y`, which survives
//! both sorted and insertion-ordered maps. Decryption uses the text as received.
//!
//! ```
//! use tec_core::secret::SecretBytes;
//! use tec_trustee::jwe::{Curve, EcPrivateKey, encrypt};
//! # use rand_core::SeedableRng as _;
//! # let mut rng = rand_chacha::ChaCha20Rng::seed_from_u64(1);
//! let session_key = EcPrivateKey::generate(Curve::P256, &mut rng);
//! let secret = SecretBytes::new(b"disk key".to_vec());
//! let jwe = encrypt(&session_key.public(), &secret, &mut rng)?;
//! assert!(session_key.decrypt(&jwe)?.ct_eq(&secret));
//! # Ok::<(), tec_trustee::jwe::JweError>(())
//! ```

mod ec;
mod kdf;
mod key;
#[cfg(test)]
mod tests;

use aes_gcm::aead::AeadInOut as _;
use aes_gcm::{Aes256Gcm, KeyInit as _};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rand_core::CryptoRng;
use serde::{Deserialize, Serialize};
use tec_core::secret::{SecretArray, SecretBytes};
use zeroize::Zeroizing;

pub use self::ec::EcPrivateKey;
pub use self::kdf::concat_kdf;
pub use self::key::{Curve, EcKeyAlgorithm, EcPublicJwk, RsaKeyAlgorithm, RsaPublicJwk, TeePubKey};

/// Largest secret: far above any disk key, far below what would cause trouble.
pub const MAX_SECRET: usize = 1024 * 1024;
/// Largest protected header in base64url: with P-521 it has 400 characters.
const MAX_PROTECTED: usize = 4096;
/// Bytes of an AES-256 key wrapped by AES-KW (RFC 3394, section 2.2.1).
const WRAPPED_KEY: usize = 40;
/// Bytes of the initialization vector of A256GCM (RFC 7518, section 5.3).
pub(crate) const IV: usize = 12;
/// Bytes of the tag of A256GCM (RFC 7518, section 5.3).
pub(crate) const TAG: usize = 16;
/// The only content encryption of the protocol.
pub(crate) const A256GCM: &str = "A256GCM";
const ECDH_ES_A256KW: &str = "ECDH-ES+A256KW";

/// A JWE in flattened JSON form; all members are base64url without padding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Jwe {
    /// Header, integrity-protected.
    pub protected: String,
    /// Content key, encrypted to the recipient.
    pub encrypted_key: String,
    /// Initialization vector.
    pub iv: String,
    /// The secret, encrypted.
    pub ciphertext: String,
    /// Authentication tag.
    pub tag: String,
}

/// A JWE cannot be created or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JweError {
    /// A member is larger than anything this protocol needs.
    #[error("the member {0} of the JWE is too large")]
    TooLarge(&'static str),
    /// A member is not base64url without padding, or does not have the length that its type prescribes.
    #[error("the member {0} of the JWE is malformed")]
    Member(&'static str),
    /// The protected header is not the expected JSON.
    #[error("the protected header of the JWE is malformed")]
    Header(#[source] serde_json::Error),
    /// The protected header requires something that is not supported.
    #[error("the JWE uses {0}, which is not supported")]
    Unsupported(String),
    /// The recipient's key is not a key of its type, or a point is not on its curve.
    #[error("the public key of the JWE is not valid")]
    PublicKey,
    /// The content key does not unwrap: it was meant for another recipient, or it was altered.
    #[error("cannot unwrap the content key of the JWE")]
    Unwrap,
    /// The content does not authenticate.
    #[error("the content of the JWE is not authentic")]
    Content,
    /// The cipher refused to encrypt.
    #[error("the secret cannot be encrypted")]
    Encrypt,
}

/// Encrypts `secret` to `key` (KBS attestation protocol 0.4.0).
///
/// # Errors
/// The key is invalid for its type, or the secret is larger than [`MAX_SECRET`].
pub fn encrypt(
    key: &TeePubKey,
    secret: &SecretBytes,
    rng: &mut dyn CryptoRng,
) -> Result<Jwe, JweError> {
    if secret.len() > MAX_SECRET {
        return Err(JweError::TooLarge("plaintext"));
    }
    let content_key = SecretArray::<32>::random(rng);
    let (header, encrypted_key) = match key {
        TeePubKey::Ec(key) => ec::wrap_for(key, &content_key, rng)?,
        TeePubKey::Rsa(key) => {
            let header = format!(r#"{{"alg":"{}","enc":"{A256GCM}"}}"#, key.alg.as_str());
            (header, key.wrap(&content_key, rng)?)
        }
    };
    let protected = URL_SAFE_NO_PAD.encode(header);
    let sealed = gcm_seal(&content_key, protected.as_bytes(), secret, rng)?;
    Ok(Jwe {
        protected,
        encrypted_key: URL_SAFE_NO_PAD.encode(encrypted_key),
        iv: URL_SAFE_NO_PAD.encode(sealed.iv),
        ciphertext: URL_SAFE_NO_PAD.encode(sealed.ciphertext),
        tag: URL_SAFE_NO_PAD.encode(sealed.tag),
    })
}

#[derive(Debug)]
pub(crate) struct Sealed {
    pub(crate) iv: [u8; IV],
    pub(crate) ciphertext: Vec<u8>,
    pub(crate) tag: [u8; TAG],
}

pub(crate) fn gcm_seal(
    key: &SecretArray<32>,
    aad: &[u8],
    plaintext: &SecretBytes,
    rng: &mut dyn CryptoRng,
) -> Result<Sealed, JweError> {
    let mut iv = [0; IV];
    rng.fill_bytes(&mut iv);
    let cipher = Aes256Gcm::new(key.expose("encrypt content").into());
    // Encrypted in place: what remains in the buffer is ciphertext.
    let mut buffer = plaintext.expose("encrypt content").to_vec();
    let tag = cipher
        .encrypt_inout_detached(&iv.into(), aad, buffer.as_mut_slice().into())
        .map_err(|_| JweError::Encrypt)?;
    Ok(Sealed { iv, ciphertext: buffer, tag: tag.into() })
}

pub(crate) fn gcm_open(
    key: &SecretArray<32>,
    aad: &[u8],
    sealed: &Sealed,
) -> Result<SecretBytes, JweError> {
    let cipher = Aes256Gcm::new(key.expose("decrypt content").into());
    let mut buffer = Zeroizing::new(sealed.ciphertext.clone());
    cipher
        .decrypt_inout_detached(
            &sealed.iv.into(),
            aad,
            buffer.as_mut_slice().into(),
            &sealed.tag.into(),
        )
        .map_err(|_| JweError::Content)?;
    Ok(SecretBytes::new(std::mem::take(&mut *buffer)))
}

/// Decodes a member of at most `max` bytes.
pub(crate) fn decode(member: &'static str, text: &str, max: usize) -> Result<Vec<u8>, JweError> {
    if text.len() > max.saturating_mul(4).div_ceil(3) {
        return Err(JweError::TooLarge(member));
    }
    URL_SAFE_NO_PAD.decode(text).map_err(|_| JweError::Member(member))
}

/// Decodes a member of exactly `N` bytes.
pub(crate) fn decode_array<const N: usize>(
    member: &'static str,
    text: &str,
) -> Result<[u8; N], JweError> {
    decode(member, text, N)?.try_into().map_err(|_| JweError::Member(member))
}

/// The protected header as parsed. Members that change the meaning must be understood (RFC 7516, section
/// 4.1.13), so `crit` and `zip` are refused.
#[derive(Deserialize)]
struct Header {
    alg: String,
    enc: String,
    epk: Option<EcEphemeral>,
    #[serde(default)]
    crit: Option<serde_json::Value>,
    #[serde(default)]
    zip: Option<serde_json::Value>,
    #[serde(default)]
    apu: Option<String>,
    #[serde(default)]
    apv: Option<String>,
}

#[derive(Deserialize)]
struct EcEphemeral {
    kty: String,
    crv: Curve,
    x: String,
    y: String,
}

impl Header {
    fn parse(protected: &str) -> Result<Self, JweError> {
        let json = decode("protected", protected, MAX_PROTECTED)?;
        let header: Self = serde_json::from_slice(&json).map_err(JweError::Header)?;
        if header.enc != A256GCM {
            return Err(unsupported("enc", &header.enc));
        }
        if header.crit.is_some() || header.zip.is_some() {
            return Err(unsupported("a critical extension or", "zip"));
        }
        Ok(header)
    }
}

fn unsupported(parameter: &str, value: &str) -> JweError {
    let value: String = value.chars().take(64).collect();
    JweError::Unsupported(format!("{parameter} {value:?}"))
}

impl EcPrivateKey {
    /// Opens a JWE that was encrypted to this key. The protected header is authenticated exactly as received.
    ///
    /// # Errors
    /// The JWE is malformed, is meant for another key, or was altered.
    pub fn decrypt(&self, jwe: &Jwe) -> Result<SecretBytes, JweError> {
        let header = Header::parse(&jwe.protected)?;
        if header.alg != ECDH_ES_A256KW {
            return Err(unsupported("alg", &header.alg));
        }
        let content_key = self.unwrap(&header, &jwe.encrypted_key)?;
        let sealed = Sealed {
            iv: decode_array("iv", &jwe.iv)?,
            ciphertext: decode("ciphertext", &jwe.ciphertext, MAX_SECRET)?,
            tag: decode_array("tag", &jwe.tag)?,
        };
        gcm_open(&content_key, jwe.protected.as_bytes(), &sealed)
    }

    fn unwrap(&self, header: &Header, encrypted: &str) -> Result<SecretArray<32>, JweError> {
        let epk = header.epk.as_ref().ok_or(JweError::PublicKey)?;
        if epk.kty != "EC" || epk.crv != self.curve() {
            return Err(JweError::PublicKey);
        }
        let point = ec::sec1_point(epk.crv, &epk.x, &epk.y)?;
        let z = self.agree(&point).ok_or(JweError::PublicKey)?;
        let party = |member, text: &Option<String>| {
            decode(member, text.as_deref().unwrap_or_default(), MAX_PROTECTED)
        };
        let (apu, apv) = (party("apu", &header.apu)?, party("apv", &header.apv)?);
        let kek: Zeroizing<[u8; 32]> = concat_kdf(&z, ECDH_ES_A256KW.as_bytes(), &apu, &apv);
        let wrapped: [u8; WRAPPED_KEY] = decode_array("encrypted_key", encrypted)?;
        let mut key = Zeroizing::new([0; 32]);
        aes_kw::KwAes256::new((&*kek).into())
            .unwrap_key(&wrapped, key.as_mut_slice())
            .map_err(|_| JweError::Unwrap)?;
        Ok(SecretArray::new(*key))
    }
}
