//! Public keys as SubjectPublicKeyInfo, bounded and canonical.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use picky_asn1_x509::{PublicKey as SpkiKey, SubjectPublicKeyInfo};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::fingerprint::Fingerprint;

/// Maximum size of PEM text that is parsed: an RSA-4096 key takes 800 bytes.
const MAX_PEM: usize = 4096;
/// Maximum size of the DER form: RSA-4096 takes 550 bytes.
const MAX_DER: usize = 1024;
/// Uncompressed P-256 point: 0x04 ‖ X ‖ Y (SEC 1, section 2.3.3).
const P256_POINT: usize = 65;
/// OID of the curve P-256 (RFC 5480, section 2.1.1.1).
const OID_P256: &str = "1.2.840.10045.3.1.7";

/// Kind of key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyKind {
    /// RSA with exponent 65537.
    Rsa {
        /// Size of the modulus.
        bits: u32,
    },
    /// ECC on the curve P-256.
    EcP256,
}

/// A public key that an attestation or endorsement key may have, in its one canonical DER form.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey {
    der: Vec<u8>,
    kind: KeyKind,
}

/// The key is not accepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParsePublicKeyError {
    /// More bytes than any acceptable key has.
    #[error("the key has {0} bytes, which is more than any acceptable key")]
    TooLarge(usize),
    /// Not PEM, or PEM with another label.
    #[error("the key is not PEM with the label PUBLIC KEY")]
    Pem,
    /// Not base64.
    #[error("the key is not standard base64")]
    Base64,
    /// Not a SubjectPublicKeyInfo, or not in its canonical DER form.
    #[error("the key is not a SubjectPublicKeyInfo in DER")]
    Der,
    /// RSA with an unaccepted size or exponent.
    #[error("an RSA key needs 2048 to 4096 bits and the exponent 65537; this one has {0} bits")]
    Rsa(u32),
    /// Neither RSA nor P-256.
    #[error("the key is neither RSA nor ECC P-256")]
    Algorithm,
}

impl PublicKey {
    /// Parses PEM with the label `PUBLIC KEY`, as `tpm2_readpublic -f pem` writes it.
    pub fn from_pem(pem: &str) -> Result<Self, ParsePublicKeyError> {
        if pem.len() > MAX_PEM {
            return Err(ParsePublicKeyError::TooLarge(pem.len()));
        }
        let (label, der) =
            pem_rfc7468::decode_vec(pem.as_bytes()).map_err(|_| ParsePublicKeyError::Pem)?;
        if label != "PUBLIC KEY" {
            return Err(ParsePublicKeyError::Pem);
        }
        Self::from_der(&der)
    }

    /// Parses standard base64 of DER: the form of `ak_public` in evidence and reference values.
    pub fn from_base64(text: &str) -> Result<Self, ParsePublicKeyError> {
        if text.len() > MAX_PEM {
            return Err(ParsePublicKeyError::TooLarge(text.len()));
        }
        Self::from_der(&STANDARD.decode(text).map_err(|_| ParsePublicKeyError::Base64)?)
    }

    /// Parses the DER of a SubjectPublicKeyInfo (RFC 5280, section 4.1.2.7), and checks that it is
    /// the only encoding of this key, so that equal keys have equal bytes and fingerprints.
    pub fn from_der(der: &[u8]) -> Result<Self, ParsePublicKeyError> {
        if der.len() > MAX_DER {
            return Err(ParsePublicKeyError::TooLarge(der.len()));
        }
        if !has_expected_frame(der) {
            return Err(ParsePublicKeyError::Der);
        }
        let spki: SubjectPublicKeyInfo =
            picky_asn1_der::from_bytes(der).map_err(|_| ParsePublicKeyError::Der)?;
        let kind = kind_of(&spki)?;
        let canonical = picky_asn1_der::to_vec(&spki).map_err(|_| ParsePublicKeyError::Der)?;
        if canonical != der {
            return Err(ParsePublicKeyError::Der);
        }
        Ok(Self { der: canonical, kind })
    }

    /// The canonical DER form.
    pub fn as_der(&self) -> &[u8] {
        &self.der
    }

    /// Standard base64 of the DER form.
    pub fn to_base64(&self) -> String {
        STANDARD.encode(&self.der)
    }

    /// PEM with the label `PUBLIC KEY`.
    pub fn to_pem(&self) -> String {
        let body = self.to_base64();
        let mut pem = String::from("-----BEGIN PUBLIC KEY-----\n");
        for (i, c) in body.chars().enumerate() {
            if i > 0 && i % 64 == 0 {
                pem.push('\n');
            }
            pem.push(c);
        }
        pem.push_str("\n-----END PUBLIC KEY-----\n");
        pem
    }

    /// Kind of the key.
    pub fn kind(&self) -> KeyKind {
        self.kind
    }

    /// SHA-256 of the DER form.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.der)
    }
}

/// AlgorithmIdentifier of RSA keys: rsaEncryption with NULL (RFC 3279, section 2.3.1).
const ALGORITHM_RSA: [u8; 15] =
    [0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];
/// AlgorithmIdentifier of P-256 keys: id-ecPublicKey with the named curve (RFC 5480, 2.1.1).
const ALGORITHM_P256: [u8; 21] = [
    0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48,
    0xce, 0x3d, 0x03, 0x01, 0x07,
];

/// Whether this is a SEQUENCE of one of the two algorithms and a BIT STRING without unused bits.
///
/// Keys come from strangers, so only what passes here reaches the general parser, which panics on
/// an empty BIT STRING, for example.
fn has_expected_frame(der: &[u8]) -> bool {
    let Some((0x30, body, [])) = element(der) else {
        return false;
    };
    let bits =
        body.strip_prefix(&ALGORITHM_RSA[..]).or_else(|| body.strip_prefix(&ALGORITHM_P256[..]));
    matches!(bits.and_then(element), Some((0x03, [0, _, ..], [])))
}

/// Tag, content and remainder of one DER element with a length of at most two bytes (X.690, section
/// 8.1.3).
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (length, rest) = match rest {
        [0x82, high, low, rest @ ..] => (usize::from(u16::from_be_bytes([*high, *low])), rest),
        [0x81, length, rest @ ..] | [length @ ..=0x7f, rest @ ..] => (usize::from(*length), rest),
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

fn kind_of(spki: &SubjectPublicKeyInfo) -> Result<KeyKind, ParsePublicKeyError> {
    match &spki.subject_public_key {
        SpkiKey::Rsa(key) => {
            let modulus = key.0.modulus.as_unsigned_bytes_be();
            let exponent = key.0.public_exponent.as_unsigned_bytes_be();
            let leading = modulus.first().map_or(0, |byte| byte.leading_zeros());
            let bits = u32::try_from(modulus.len()).unwrap_or(u32::MAX).saturating_mul(8) - leading;
            if (2048..=4096).contains(&bits) && exponent == [1, 0, 1] {
                Ok(KeyKind::Rsa { bits })
            } else {
                Err(ParsePublicKeyError::Rsa(bits))
            }
        }
        SpkiKey::Ec(point) => {
            let bytes = point.0.payload_view();
            let curve_ok = curve(spki).as_deref() == Some(OID_P256);
            if curve_ok && bytes.len() == P256_POINT && bytes.first() == Some(&4) {
                Ok(KeyKind::EcP256)
            } else {
                Err(ParsePublicKeyError::Algorithm)
            }
        }
        _ => Err(ParsePublicKeyError::Algorithm),
    }
}

fn curve(spki: &SubjectPublicKeyInfo) -> Option<String> {
    match spki.algorithm.parameters() {
        picky_asn1_x509::AlgorithmIdentifierParameters::Ec(
            picky_asn1_x509::EcParameters::NamedCurve(curve),
        ) => Some(curve.0.clone().into()),
        _ => None,
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({:?}, {})", self.kind, self.fingerprint())
    }
}

impl Serialize for PublicKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_base64())
    }
}

impl<'de> Deserialize<'de> for PublicKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_base64(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:1024 | openssl pkey -pubout
    const RSA_1024: &str = "-----BEGIN PUBLIC KEY-----
MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQCqGKukO1De7zhZj6+H0qtjTkVxwTCpvKe4eCZ0
FPqri0cb2JZfXJ/DgYSF6vUpwmJG8wVQZKjeGcjDOL5UlsuusFncCzWBQ7RKNUSesmQRMSGkVb1/
3j+skZ6UtW+5u09lHNsj6tQ51s1SPrCBkedbNf0Tp0GbMJDyR4e9T04ZZwIDAQAB
-----END PUBLIC KEY-----
";

    fn p256_der() -> Vec<u8> {
        // SEQUENCE { SEQUENCE { id-ecPublicKey, prime256v1 }, BIT STRING { 04 ‖ X ‖ Y } }
        let mut der = hex::decode("3059301306072a8648ce3d020106082a8648ce3d030107034200").unwrap();
        der.push(4);
        der.extend(0..64u8);
        der
    }

    #[test]
    fn a_p256_key_round_trips_in_all_forms() {
        let key = PublicKey::from_der(&p256_der()).unwrap();
        assert_eq!(key.kind(), KeyKind::EcP256);
        assert_eq!(PublicKey::from_pem(&key.to_pem()).unwrap(), key);
        assert_eq!(PublicKey::from_base64(&key.to_base64()).unwrap(), key);
        let json = serde_json::to_string(&key).unwrap();
        assert_eq!(serde_json::from_str::<PublicKey>(&json).unwrap(), key);
    }

    #[test]
    fn an_empty_bit_string_is_refused() {
        let mut der = hex::decode("3016301306072a8648ce3d020106082a8648ce3d03010703").unwrap();
        der.push(0);
        der[1] = u8::try_from(der.len() - 2).unwrap();
        assert!(matches!(PublicKey::from_der(&der), Err(ParsePublicKeyError::Der)));
        let found = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDAAAXsNOXcXmOuxg+cXX4MQofIfV++zpX/ycd3Uw/RS3z\
                     iudic3lxw0uLBY94m2OhYIc=";
        assert!(PublicKey::from_base64(found).is_err());
    }

    #[test]
    fn short_rsa_keys_are_refused() {
        // The 76-column text above is not strict PEM, so go through base64.
        let body: String = RSA_1024.lines().filter(|l| !l.starts_with('-')).collect();
        assert!(matches!(PublicKey::from_base64(&body), Err(ParsePublicKeyError::Rsa(1024))));
    }

    #[test]
    fn garbage_is_refused() {
        for bad in ["", "-----BEGIN PUBLIC KEY-----", "hello", &"A".repeat(5000)] {
            assert!(PublicKey::from_pem(bad).is_err());
        }
        let mut trailing = p256_der();
        trailing.push(0);
        assert!(PublicKey::from_der(&trailing).is_err());
        let der = p256_der();
        for cut in 0..der.len() {
            assert!(PublicKey::from_der(&der[..cut]).is_err(), "{cut}");
        }
    }
}
