//! ECDH-ES with AES-256 key wrap on P-256 and P-521 (RFC 7518, section 4.6).

use std::fmt;

use aes_gcm::KeyInit as _;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use p256::elliptic_curve::Generate as _;
use rand_core::CryptoRng;
use serde::Deserialize;
use tec_core::secret::SecretArray;
use zeroize::Zeroizing;

use super::kdf::concat_kdf;
use super::{
    A256GCM, Curve, ECDH_ES_A256KW, EcKeyAlgorithm, EcPublicJwk, JweError, TeePubKey, WRAPPED_KEY,
    decode,
};

/// The private key of a session. Zeroized on drop.
pub struct EcPrivateKey(Secret);

enum Secret {
    P256(p256::SecretKey),
    P521(p521::SecretKey),
}

impl fmt::Debug for EcPrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EcPrivateKey({}, [redacted])", self.curve().as_str())
    }
}

impl EcPrivateKey {
    /// Draws a new key.
    pub fn generate(curve: Curve, rng: &mut dyn CryptoRng) -> Self {
        Self(match curve {
            Curve::P256 => Secret::P256(p256::SecretKey::generate_from_rng(rng)),
            Curve::P521 => Secret::P521(p521::SecretKey::generate_from_rng(rng)),
        })
    }

    /// Reads a private JWK (RFC 7517), as `jose jwk gen -i '{"alg":"ECDH-ES+A256KW"}'` makes it.
    ///
    /// # Errors
    /// What is no EC key on P-256 or P-521 with its private half.
    pub fn from_jwk(json: &[u8]) -> Result<Self, JweError> {
        #[derive(Deserialize)]
        struct Jwk<'a> {
            kty: &'a str,
            crv: Curve,
            d: String,
        }
        let jwk: Jwk<'_> = serde_json::from_slice(json).map_err(JweError::Header)?;
        let d = Zeroizing::new(jwk.d);
        if jwk.kty != "EC" {
            return Err(JweError::Member { member: "kty" });
        }
        let wrong = || JweError::Member { member: "d" };
        let scalar = Zeroizing::new(decode("d", &d, jwk.crv.width())?);
        Ok(Self(match jwk.crv {
            Curve::P256 => Secret::P256(p256::SecretKey::from_slice(&scalar).map_err(|_| wrong())?),
            Curve::P521 => Secret::P521(p521::SecretKey::from_slice(&scalar).map_err(|_| wrong())?),
        }))
    }

    #[cfg(test)]
    pub(super) fn from_scalar_for_tests(scalar: &[u8; 32]) -> Self {
        Self(Secret::P256(p256::SecretKey::from_slice(scalar).unwrap()))
    }

    /// Its curve.
    pub fn curve(&self) -> Curve {
        match self.0 {
            Secret::P256(_) => Curve::P256,
            Secret::P521(_) => Curve::P521,
        }
    }

    /// Its public half as the `tee-pubkey` that goes into report data.
    pub fn public(&self) -> TeePubKey {
        let (x, y) = self.coordinates();
        TeePubKey::Ec(EcPublicJwk { crv: self.curve(), alg: EcKeyAlgorithm::EcdhEsA256Kw, x, y })
    }

    fn coordinates(&self) -> (String, String) {
        let point = match &self.0 {
            Secret::P256(key) => key.public_key().to_sec1_bytes(),
            Secret::P521(key) => key.public_key().to_sec1_bytes(),
        };
        // 0x04 ‖ X ‖ Y (SEC 1, section 2.3.3)
        let coordinates = point.get(1..).unwrap_or_default();
        let (x, y) = coordinates.split_at(coordinates.len() / 2);
        (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y))
    }

    /// The x coordinate of the shared point, full width; `None` for what is no point of the curve.
    pub(super) fn agree(&self, sec1: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        match &self.0 {
            Secret::P256(key) => {
                let peer = p256::PublicKey::from_sec1_bytes(sec1).ok()?;
                let shared = key.diffie_hellman(&peer);
                Some(Zeroizing::new(shared.raw_secret_bytes().to_vec()))
            }
            Secret::P521(key) => {
                let peer = p521::PublicKey::from_sec1_bytes(sec1).ok()?;
                let shared = key.diffie_hellman(&peer);
                Some(Zeroizing::new(shared.raw_secret_bytes().to_vec()))
            }
        }
    }
}

/// 0x04 ‖ X ‖ Y from the members of a JWK. Coordinates must have the full width.
pub(super) fn sec1_point(curve: Curve, x: &str, y: &str) -> Result<Vec<u8>, JweError> {
    let mut point = vec![4];
    for (member, text) in [("x", x), ("y", y)] {
        let coordinate = decode(member, text, curve.width())?;
        if coordinate.len() != curve.width() {
            return Err(JweError::Member { member });
        }
        point.extend(coordinate);
    }
    Ok(point)
}

pub(super) fn check(key: &EcPublicJwk) -> Result<(), JweError> {
    let point = sec1_point(key.crv, &key.x, &key.y)?;
    let valid = match key.crv {
        Curve::P256 => p256::PublicKey::from_sec1_bytes(&point).is_ok(),
        Curve::P521 => p521::PublicKey::from_sec1_bytes(&point).is_ok(),
    };
    if valid { Ok(()) } else { Err(JweError::PublicKey) }
}

/// Wraps the content key for `key`. Returns the protected header and the wrapped key.
pub(super) fn wrap_for(
    key: &EcPublicJwk,
    content_key: &SecretArray<32>,
    rng: &mut dyn CryptoRng,
) -> Result<(String, Vec<u8>), JweError> {
    let point = sec1_point(key.crv, &key.x, &key.y)?;
    let ephemeral = EcPrivateKey::generate(key.crv, rng);
    let z = ephemeral.agree(&point).ok_or(JweError::PublicKey)?;
    let kek: Zeroizing<[u8; 32]> = concat_kdf(&z, ECDH_ES_A256KW.as_bytes(), b"", b"");
    let mut wrapped = [0; WRAPPED_KEY];
    aes_kw::KwAes256::new((&*kek).into())
        .wrap_key(content_key.expose("wrap the content key"), &mut wrapped)
        .map_err(|_| JweError::Encrypt)?;
    let (x, y) = ephemeral.coordinates();
    let crv = key.crv.as_str();
    // Written by hand because the order is part of the contract; see the module documentation.
    let header = format!(
        r#"{{"alg":"{ECDH_ES_A256KW}","enc":"{A256GCM}","epk":{{"crv":"{crv}","kty":"EC","x":"{x}","y":"{y}"}}}}"#
    );
    Ok((header, wrapped.to_vec()))
}
