//! Public areas of TPM objects: parsing, names, and the key inside.
//!
//! *What it is not*: a judge of what a key may be used for; see [`ak`](crate::ak) for that.

use std::fmt;

use picky_asn1::bit_string::BitString;
use picky_asn1::wrapper::IntegerAsn1;
use picky_asn1_x509::SubjectPublicKeyInfo;
use sha2::{Digest as _, Sha256};
use tec_core::ak::{ParsePublicKeyError, PublicKey};

use crate::bit_set::bit_set;
use crate::quote::{ALG_ECDSA, ALG_RSASSA, ALG_SHA256};
use crate::wire::{WireError, WireReader, only_sized};

// TPM_ALG_ID values: TCG Algorithm Registry, "TPM_ALG_ID".
pub(crate) const ALG_RSA: u16 = 0x0001;
#[cfg(any(feature = "direct", test, feature = "test-util"))]
pub(crate) const ALG_AES: u16 = 0x0006;
pub(crate) const ALG_NULL: u16 = 0x0010;
const ALG_RSAES: u16 = 0x0015;
const ALG_ECDAA: u16 = 0x001a;
pub(crate) const ALG_ECC: u16 = 0x0023;
#[cfg(any(feature = "direct", test, feature = "test-util"))]
pub(crate) const ALG_CFB: u16 = 0x0043;
/// TPM_ECC_NIST_P256 (TCG Algorithm Registry, "TPM_ECC_CURVE").
pub(crate) const ECC_NIST_P256: u16 = 0x0003;

/// Maximum size of a public area: RSA-4096 with a SHA-512 policy takes less than 700 bytes.
pub(crate) const MAX_AREA: usize = 1024;
/// SHA-512 digest.
const MAX_POLICY: usize = 64;
/// RSA-4096 modulus.
const MAX_MODULUS: usize = 512;
/// Coordinate of P-521, so that a key on another curve is reported as such.
const MAX_COORDINATE: usize = 66;
/// Coordinate of P-256.
pub(crate) const P256_COORDINATE: usize = 32;
/// The exponent that zero stands for (TPM 2.0 Library Part 2, "TPMS_RSA_PARMS").
const DEFAULT_EXPONENT: u32 = 65537;

/// A public area was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublicError {
    /// The bytes are not a TPMT_PUBLIC or TPM2B_PUBLIC.
    #[error("the public area is malformed")]
    Malformed(#[source] WireError),
    /// Neither an RSA nor an ECC object.
    #[error("the object is of type {0:#06x}, neither RSA nor ECC")]
    Type(u16),
    /// The name algorithm is not SHA-256.
    #[error("the name algorithm is {0:#06x}, not SHA-256")]
    NameAlgorithm(u16),
    /// A curve other than P-256.
    #[error("the curve is {0:#06x}, not P-256")]
    Curve(u16),
    /// The key itself is not acceptable.
    #[error("the key is not acceptable")]
    Key(#[source] ParsePublicKeyError),
    /// The key cannot be encoded as SubjectPublicKeyInfo.
    #[error("cannot encode the key as SubjectPublicKeyInfo")]
    Encode,
}

/// Attributes of an object (TPM 2.0 Library Part 2, "TPMA_OBJECT").
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ObjectAttributes(u32);

impl ObjectAttributes {
    /// fixedTPM.
    pub const FIXED_TPM: Self = Self(1 << 1);
    /// stClear.
    pub const ST_CLEAR: Self = Self(1 << 2);
    /// fixedParent.
    pub const FIXED_PARENT: Self = Self(1 << 4);
    /// sensitiveDataOrigin.
    pub const SENSITIVE_DATA_ORIGIN: Self = Self(1 << 5);
    /// userWithAuth.
    pub const USER_WITH_AUTH: Self = Self(1 << 6);
    /// adminWithPolicy.
    pub const ADMIN_WITH_POLICY: Self = Self(1 << 7);
    /// noDA.
    pub const NO_DA: Self = Self(1 << 10);
    /// encryptedDuplication.
    pub const ENCRYPTED_DUPLICATION: Self = Self(1 << 11);
    /// restricted.
    pub const RESTRICTED: Self = Self(1 << 16);
    /// decrypt.
    pub const DECRYPT: Self = Self(1 << 17);
    /// sign, or encrypt for symmetric objects.
    pub const SIGN: Self = Self(1 << 18);

    const NAMES: [(Self, &'static str); 11] = [
        (Self::FIXED_TPM, "fixedTPM"),
        (Self::ST_CLEAR, "stClear"),
        (Self::FIXED_PARENT, "fixedParent"),
        (Self::SENSITIVE_DATA_ORIGIN, "sensitiveDataOrigin"),
        (Self::USER_WITH_AUTH, "userWithAuth"),
        (Self::ADMIN_WITH_POLICY, "adminWithPolicy"),
        (Self::NO_DA, "noDA"),
        (Self::ENCRYPTED_DUPLICATION, "encryptedDuplication"),
        (Self::RESTRICTED, "restricted"),
        (Self::DECRYPT, "decrypt"),
        (Self::SIGN, "sign"),
    ];

    /// The first attribute of `wanted` that is not set, by its name in the specification.
    pub(crate) fn first_missing(self, wanted: Self) -> Option<&'static str> {
        Self::NAMES
            .into_iter()
            .find(|(one, _)| wanted.contains(*one) && !self.contains(*one))
            .map(|(_, name)| name)
    }

    /// The first attribute of `unwanted` that is set.
    pub(crate) fn first_present(self, unwanted: Self) -> Option<&'static str> {
        Self::NAMES
            .into_iter()
            .find(|(one, _)| unwanted.contains(*one) && self.contains(*one))
            .map(|(_, name)| name)
    }
}

bit_set!(ObjectAttributes(u32));

/// Name of an object: algorithm and SHA-256 digest of its public area (TPM 2.0 Library Part 1,
/// "Names").
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ObjectName([u8; 34]);

impl ObjectName {
    /// The bytes of the name, without a leading size.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectName({})", hex::encode(self.0))
    }
}

/// How a key signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scheme {
    /// No fixed scheme.
    Null,
    /// RSASSA-PKCS1-v1_5 over SHA-256.
    RsassaSha256,
    /// ECDSA over SHA-256.
    EcdsaSha256,
    /// Another scheme.
    Other {
        /// TPM_ALG_ID of the scheme.
        scheme: u16,
        /// TPM_ALG_ID of its hash, zero if it has none.
        hash: u16,
    },
}

/// A TPMT_PUBLIC (TPM 2.0 Library Part 2, "TPMT_PUBLIC") of an RSA or ECC object.
#[derive(Clone, Debug)]
pub struct PublicArea {
    key: PublicKey,
    name: ObjectName,
    attributes: ObjectAttributes,
    scheme: Scheme,
}

impl PublicArea {
    /// Parses a TPM2B_PUBLIC.
    pub fn from_tpm2b(bytes: &[u8]) -> Result<Self, PublicError> {
        Self::from_tpmt(only_sized(bytes, MAX_AREA).map_err(PublicError::Malformed)?)
    }

    /// Parses a TPMT_PUBLIC.
    pub fn from_tpmt(area: &[u8]) -> Result<Self, PublicError> {
        let mut reader = WireReader::new(area);
        let head = Head::read(&mut reader).map_err(PublicError::Malformed)?;
        if head.name_algorithm != ALG_SHA256 {
            return Err(PublicError::NameAlgorithm(head.name_algorithm));
        }
        let parts = match head.kind {
            ALG_RSA => KeyParts::read_rsa(&mut reader).map_err(PublicError::Malformed)?,
            ALG_ECC => KeyParts::read_ecc(&mut reader).map_err(PublicError::Malformed)?,
            found => return Err(PublicError::Type(found)),
        };
        reader.finish().map_err(PublicError::Malformed)?;
        Ok(Self {
            key: parts.unique.to_key()?,
            name: name_of(area),
            attributes: head.attributes,
            scheme: parts.scheme,
        })
    }

    /// The key.
    pub fn key(&self) -> &PublicKey {
        &self.key
    }

    /// Name of the object.
    pub fn name(&self) -> ObjectName {
        self.name
    }

    /// Attributes.
    pub fn attributes(&self) -> ObjectAttributes {
        self.attributes
    }

    /// Signing or encryption scheme.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }
}

fn name_of(area: &[u8]) -> ObjectName {
    let mut name = [0; 34];
    let digest = Sha256::digest(area);
    let parts = ALG_SHA256.to_be_bytes().into_iter().chain(digest);
    for (to, from) in name.iter_mut().zip(parts) {
        *to = from;
    }
    ObjectName(name)
}

struct Head {
    kind: u16,
    name_algorithm: u16,
    attributes: ObjectAttributes,
}

impl Head {
    fn read(reader: &mut WireReader<'_>) -> Result<Self, WireError> {
        let head = Self {
            kind: reader.u16()?,
            name_algorithm: reader.u16()?,
            attributes: ObjectAttributes(reader.u32()?),
        };
        // The authorization policy.
        reader.sized(MAX_POLICY)?;
        Ok(head)
    }
}

enum Unique<'a> {
    Rsa { modulus: &'a [u8], exponent: u32 },
    Ecc { curve: u16, x: &'a [u8], y: &'a [u8] },
}

struct KeyParts<'a> {
    scheme: Scheme,
    unique: Unique<'a>,
}

impl<'a> KeyParts<'a> {
    /// TPMS_RSA_PARMS and TPM2B_PUBLIC_KEY_RSA.
    fn read_rsa(reader: &mut WireReader<'a>) -> Result<Self, WireError> {
        skip_symmetric(reader)?;
        let scheme = read_scheme(reader)?;
        let offset = reader.offset();
        let key_bits = reader.u16()?;
        let exponent = match reader.u32()? {
            0 => DEFAULT_EXPONENT,
            other => other,
        };
        let modulus = reader.sized(MAX_MODULUS)?;
        if modulus.len() * 8 != usize::from(key_bits) {
            return Err(WireError::Value { offset, value: key_bits.into() });
        }
        Ok(Self { scheme, unique: Unique::Rsa { modulus, exponent } })
    }

    /// TPMS_ECC_PARMS and TPMS_ECC_POINT.
    fn read_ecc(reader: &mut WireReader<'a>) -> Result<Self, WireError> {
        skip_symmetric(reader)?;
        let scheme = read_scheme(reader)?;
        let curve = reader.u16()?;
        // TPMT_KDF_SCHEME
        if reader.u16()? != ALG_NULL {
            reader.u16()?;
        }
        Ok(Self {
            scheme,
            unique: Unique::Ecc {
                curve,
                x: reader.sized(MAX_COORDINATE)?,
                y: reader.sized(MAX_COORDINATE)?,
            },
        })
    }
}

/// TPMT_SYM_DEF_OBJECT (Part 2): algorithm and, except for none, key size and mode.
fn skip_symmetric(reader: &mut WireReader<'_>) -> Result<(), WireError> {
    if reader.u16()? != ALG_NULL {
        reader.u16()?;
        reader.u16()?;
    }
    Ok(())
}

/// TPMT_RSA_SCHEME and TPMT_ECC_SCHEME (Part 2, "TPMU_ASYM_SCHEME").
fn read_scheme(reader: &mut WireReader<'_>) -> Result<Scheme, WireError> {
    let scheme = reader.u16()?;
    let hash = match scheme {
        ALG_NULL | ALG_RSAES => 0,
        _ => reader.u16()?,
    };
    if scheme == ALG_ECDAA {
        reader.u16()?;
    }
    Ok(match (scheme, hash) {
        (ALG_NULL, _) => Scheme::Null,
        (ALG_RSASSA, ALG_SHA256) => Scheme::RsassaSha256,
        (ALG_ECDSA, ALG_SHA256) => Scheme::EcdsaSha256,
        _ => Scheme::Other { scheme, hash },
    })
}

impl Unique<'_> {
    fn to_key(&self) -> Result<PublicKey, PublicError> {
        match self {
            Self::Rsa { modulus, exponent } => rsa_key(modulus, *exponent),
            Self::Ecc { curve: ECC_NIST_P256, x, y } => p256_key(x, y),
            Self::Ecc { curve, .. } => Err(PublicError::Curve(*curve)),
        }
    }
}

/// An RSA key as SubjectPublicKeyInfo.
pub(crate) fn rsa_key(modulus: &[u8], exponent: u32) -> Result<PublicKey, PublicError> {
    encode(&SubjectPublicKeyInfo::new_rsa_key(
        IntegerAsn1::from_bytes_be_unsigned(modulus.to_vec()),
        IntegerAsn1::from_bytes_be_unsigned(minimal(&exponent.to_be_bytes()).to_vec()),
    ))
}

/// A P-256 key as SubjectPublicKeyInfo; the point is uncompressed (SEC 1, section 2.3.3).
pub(crate) fn p256_key(x: &[u8], y: &[u8]) -> Result<PublicKey, PublicError> {
    let mut point = vec![4];
    for coordinate in [x, y] {
        let missing = P256_COORDINATE
            .checked_sub(coordinate.len())
            .ok_or(PublicError::Key(ParsePublicKeyError::Algorithm))?;
        point.extend(std::iter::repeat_n(0, missing));
        point.extend_from_slice(coordinate);
    }
    encode(&SubjectPublicKeyInfo::new_ec_key(
        picky_asn1_x509::oids::secp256r1(),
        BitString::with_bytes(point),
    ))
}

fn encode(spki: &SubjectPublicKeyInfo) -> Result<PublicKey, PublicError> {
    let der = picky_asn1_der::to_vec(spki).map_err(|_| PublicError::Encode)?;
    PublicKey::from_der(&der).map_err(PublicError::Key)
}

/// Without leading zeros.
fn minimal(bytes: &[u8]) -> &[u8] {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    bytes.get(zeros..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::SoftTpm;

    #[test]
    fn both_kinds_of_keys_come_out_as_they_went_in() {
        for tpm in [SoftTpm::p256(1), SoftTpm::rsa(1)] {
            let area = PublicArea::from_tpm2b(&tpm.ak_public_area()).unwrap();
            assert_eq!(area.key(), &tpm.public_key());
            assert!(area.attributes().contains(ObjectAttributes::RESTRICTED));
        }
    }

    #[test]
    fn every_truncation_is_refused() {
        let bytes = SoftTpm::p256(1).ak_public_area();
        for cut in 0..bytes.len() {
            assert!(
                matches!(
                    PublicArea::from_tpm2b(&bytes[..cut]),
                    Err(PublicError::Malformed(WireError::Truncated { .. }))
                ),
                "{cut}"
            );
        }
        let mut trailing = bytes;
        trailing.push(0);
        assert!(matches!(
            PublicArea::from_tpm2b(&trailing),
            Err(PublicError::Malformed(WireError::Trailing { .. }))
        ));
    }

    #[test]
    fn other_types_name_algorithms_and_curves_are_named() {
        let area = SoftTpm::p256(1).ak_public_area()[2..].to_vec();
        // Offsets in the area: type 0, nameAlg 2, curve 8 + 2 (policy size) + 2 + 4.
        let with = |offset: usize, value: u16| {
            let mut changed = area.clone();
            changed[offset..offset + 2].copy_from_slice(&value.to_be_bytes());
            PublicArea::from_tpmt(&changed)
        };
        // TPM_ALG_KEYEDHASH
        assert!(matches!(with(0, 8), Err(PublicError::Type(8))));
        // TPM_ALG_SHA1
        assert!(matches!(with(2, 4), Err(PublicError::NameAlgorithm(4))));
        // TPM_ECC_NIST_P384
        assert!(matches!(with(16, 4), Err(PublicError::Curve(4))));
    }
}
