//! Public keys of a session (`tee-pubkey`), with exactly the members that the KBS protocol defines.

use rand_core::CryptoRng;
use rsa::{BoxedUint, Oaep, RsaPublicKey};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use tec_core::secret::SecretArray;

use super::{JweError, decode};

/// Largest modulus of a session key, in bytes: RSA-4096.
const MAX_MODULUS: usize = 512;
/// Smallest modulus of a session key, in bytes: RSA-2048.
const MIN_MODULUS: usize = 256;

/// Curve of a session key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Curve {
    /// NIST P-256.
    #[serde(rename = "P-256")]
    P256,
    /// NIST P-521.
    #[serde(rename = "P-521")]
    P521,
}

impl Curve {
    /// The name in JWKs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::P256 => "P-256",
            Self::P521 => "P-521",
        }
    }

    /// Bytes of one coordinate (RFC 7518, section 6.2.1.2).
    pub(super) fn width(self) -> usize {
        match self {
            Self::P256 => 32,
            Self::P521 => 66,
        }
    }
}

/// Key management with an EC key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum EcKeyAlgorithm {
    /// ECDH-ES with AES-256 key wrap (RFC 7518, section 4.6).
    #[serde(rename = "ECDH-ES+A256KW")]
    EcdhEsA256Kw,
}

/// Key management with an RSA key. `RSA1_5` is not offered: its padding leaks information.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RsaKeyAlgorithm {
    /// OAEP with SHA-256 for hash and MGF1 (RFC 7518, section 4.3).
    #[serde(rename = "RSA-OAEP-256")]
    RsaOaep256,
}

impl RsaKeyAlgorithm {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::RsaOaep256 => "RSA-OAEP-256",
        }
    }
}

/// An EC session key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EcPublicJwk {
    /// Curve.
    pub crv: Curve,
    /// Key management.
    pub alg: EcKeyAlgorithm,
    /// First coordinate, base64url, full width.
    pub x: String,
    /// Second coordinate, base64url, full width.
    pub y: String,
}

/// An RSA session key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RsaPublicJwk {
    /// Key management.
    pub alg: RsaKeyAlgorithm,
    /// Modulus, base64url.
    pub n: String,
    /// Exponent, base64url.
    pub e: String,
}

/// The public key to which a response is encrypted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kty")]
#[non_exhaustive]
pub enum TeePubKey {
    /// On a NIST curve; what clients use.
    #[serde(rename = "EC")]
    Ec(EcPublicJwk),
    /// RSA.
    #[serde(rename = "RSA")]
    Rsa(RsaPublicJwk),
}

impl TeePubKey {
    /// Checks that data can be encrypted to this key: the point is on its curve, or the modulus has 2048 to
    /// 4096 bits.
    pub fn check(&self) -> Result<(), JweError> {
        match self {
            Self::Ec(key) => super::ec::check(key),
            Self::Rsa(key) => key.parse().map(drop),
        }
    }
}

impl RsaPublicJwk {
    /// A key from modulus and exponent in base64url.
    pub fn new(n: impl Into<String>, e: impl Into<String>) -> Self {
        Self { alg: RsaKeyAlgorithm::RsaOaep256, n: n.into(), e: e.into() }
    }

    fn parse(&self) -> Result<RsaPublicKey, JweError> {
        let n = decode("n", &self.n, MAX_MODULUS)?;
        let e = decode("e", &self.e, 4)?;
        let significant = n.iter().skip_while(|byte| **byte == 0).count();
        if significant < MIN_MODULUS {
            return Err(JweError::PublicKey);
        }
        let n = BoxedUint::from_be_slice_vartime(&n);
        let e = BoxedUint::from_be_slice_vartime(&e);
        RsaPublicKey::new(n, e).map_err(|_| JweError::PublicKey)
    }

    pub(super) fn wrap(
        &self,
        content_key: &SecretArray<32>,
        rng: &mut dyn CryptoRng,
    ) -> Result<Vec<u8>, JweError> {
        self.parse()?
            .encrypt(rng, Oaep::<Sha256>::new(), content_key.expose("wrap the content key"))
            .map_err(|_| JweError::Encrypt)
    }
}
