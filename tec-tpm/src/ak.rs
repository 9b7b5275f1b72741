//! Attestation keys, as described by their TPM.
//!
//! A bare public key says nothing about where it is stored. Its public area does: together with
//! credential activation ([`ek`](crate::ek)) it proves that the key was created inside a TPM, never
//! leaves it, and signs nothing but what that TPM attests.

use std::fmt;
use std::str::FromStr;

use tec_core::ak::{KeyKind, PublicKey};

use crate::public::{ObjectAttributes, ObjectName, PublicArea, PublicError, Scheme};

/// Type of attestation key to create.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AkAlgorithm {
    /// RSA 2048, RSASSA over SHA-256: accepted by all verifiers of TPM evidence.
    #[default]
    Rsa2048,
    /// ECC P-256, ECDSA over SHA-256.
    EccP256,
}

impl AkAlgorithm {
    /// Whether a key is of this type.
    pub fn fits(self, kind: KeyKind) -> bool {
        match self {
            Self::Rsa2048 => kind == KeyKind::Rsa { bits: 2048 },
            Self::EccP256 => kind == KeyKind::EcP256,
        }
    }
}

/// Persistent handle of an attestation key in a TPM.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AkHandle(u32);

/// The text or number is not a persistent handle that an owner may use.
#[derive(Debug, thiserror::Error)]
#[error("a handle for an attestation key must be a number from 0x81000000 to 0x817fffff")]
#[non_exhaustive]
pub struct AkHandleError;

impl AkHandle {
    /// The handle that the attesters of confidential-containers also use.
    pub const DEFAULT: Self = Self(0x8101_0002);
    /// The handle at which the paravisor of Azure confidential virtual machines stores the key that its
    /// report names.
    pub const AZURE: Self = Self(0x8100_0003);

    /// Checks that the handle is in the owner's range of persistent objects (TPM 2.0 Library Part
    /// 2, "TPM_HC").
    pub fn new(handle: u32) -> Result<Self, AkHandleError> {
        if (0x8100_0000..=0x817f_ffff).contains(&handle) {
            Ok(Self(handle))
        } else {
            Err(AkHandleError)
        }
    }

    /// The number.
    pub fn as_u32(self) -> u32 {
        self.0
    }
}

impl Default for AkHandle {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl FromStr for AkHandle {
    type Err = AkHandleError;

    /// Hexadecimal, with or without `0x`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        if digits.starts_with('+') {
            return Err(AkHandleError);
        }
        u32::from_str_radix(digits, 16).map_err(|_| AkHandleError).and_then(Self::new)
    }
}

impl fmt::Display for AkHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

impl fmt::Debug for AkHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AkHandle({self})")
    }
}

/// Required attributes: if one of them is missing, the key can be imported, moved, or used to sign anything.
pub(crate) const REQUIRED: ObjectAttributes = ObjectAttributes::FIXED_TPM
    .union(ObjectAttributes::FIXED_PARENT)
    .union(ObjectAttributes::SENSITIVE_DATA_ORIGIN)
    .union(ObjectAttributes::RESTRICTED)
    .union(ObjectAttributes::SIGN);

/// Forbidden attributes: a restricted key that decrypts is a storage key.
const FORBIDDEN: ObjectAttributes = ObjectAttributes::DECRYPT;

/// The object is not an attestation key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AkError {
    /// The public area cannot be read.
    #[error("the public area cannot be read")]
    Public(#[source] PublicError),
    /// An attribute is missing.
    #[error("an attestation key must have the attribute {0}; this one does not")]
    AttributeMissing(&'static str),
    /// A forbidden attribute is set.
    #[error("an attestation key must not have the attribute {0}; this one does")]
    AttributeForbidden(&'static str),
    /// The key uses a signature scheme that is not supported for quotes here.
    #[error(
        "an attestation key must sign with RSASSA or ECDSA over SHA-256; this one uses \
             {scheme:?}"
    )]
    Scheme {
        /// The scheme of the key.
        scheme: Scheme,
    },
}

/// Proof that a public area describes a restricted signing key that never leaves its TPM.
///
/// Whether the area comes from a real TPM is another question, which credential activation answers.
///
/// ```
/// # #[cfg(feature = "test-util")] {
/// use tec_tpm::ak::AttestationKey;
/// use tec_tpm::testing::SoftTpm;
///
/// let tpm = SoftTpm::p256(1);
/// let ak = AttestationKey::from_tpm2b(&tpm.ak_public_area())?;
/// assert_eq!(ak.public(), &tpm.public_key());
/// # }
/// # Ok::<(), tec_tpm::ak::AkError>(())
/// ```
#[derive(Clone, Debug)]
pub struct AttestationKey {
    public: PublicKey,
    name: ObjectName,
}

impl AttestationKey {
    /// Parses a TPM2B_PUBLIC and checks it.
    ///
    /// # Errors
    /// [`AkError`] with the attribute or scheme that is not acceptable.
    pub fn from_tpm2b(bytes: &[u8]) -> Result<Self, AkError> {
        Self::from_area(&PublicArea::from_tpm2b(bytes).map_err(AkError::Public)?)
    }

    /// Checks a public area.
    ///
    /// # Errors
    /// [`AkError`] with the attribute or scheme that is not acceptable.
    pub fn from_area(area: &PublicArea) -> Result<Self, AkError> {
        let attributes = area.attributes();
        if let Some(attribute) = attributes.first_missing(REQUIRED) {
            return Err(AkError::AttributeMissing(attribute));
        }
        if let Some(attribute) = attributes.first_present(FORBIDDEN) {
            return Err(AkError::AttributeForbidden(attribute));
        }
        match (area.key().kind(), area.scheme()) {
            (KeyKind::Rsa { .. }, Scheme::RsassaSha256)
            | (KeyKind::EcP256, Scheme::EcdsaSha256) => {
                Ok(Self { public: area.key().clone(), name: area.name() })
            }
            (_, scheme) => Err(AkError::Scheme { scheme }),
        }
    }

    /// The key.
    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// Name of the key, for which credentials are created.
    pub fn name(&self) -> ObjectName {
        self.name
    }
}

/// Whether an attestation key already existed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AkOrigin {
    /// It was already at the handle.
    Found,
    /// It was created by this call.
    Created,
}

/// The attestation key at a handle.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoredAk {
    /// The key and its name.
    pub key: AttestationKey,
    /// Its TPM2B_PUBLIC.
    pub tpm2b_public: Vec<u8>,
    /// Whether it already existed.
    pub origin: AkOrigin,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::SoftTpm;

    /// Offset of TPMA_OBJECT in a TPM2B_PUBLIC: size, type, nameAlg.
    const ATTRIBUTES: usize = 6;

    fn with_attributes(change: impl Fn(u32) -> u32) -> Result<AttestationKey, AkError> {
        let mut bytes = SoftTpm::p256(1).ak_public_area();
        let changed = change(REQUIRED.bits());
        bytes[ATTRIBUTES..ATTRIBUTES + 4].copy_from_slice(&changed.to_be_bytes());
        AttestationKey::from_tpm2b(&bytes)
    }

    #[test]
    fn handles_are_hexadecimal_and_the_owners() {
        for text in ["0x81010002", "81010002"] {
            assert_eq!(text.parse::<AkHandle>().unwrap(), AkHandle::DEFAULT);
        }
        assert_eq!(AkHandle::DEFAULT.to_string(), "0x81010002");
        for bad in ["", "0x81800000", "0x80000000", "+81010002", "x"] {
            assert!(bad.parse::<AkHandle>().is_err(), "{bad}");
        }
    }

    #[test]
    fn each_missing_attribute_is_named() {
        for (attribute, name) in [
            (ObjectAttributes::FIXED_TPM, "fixedTPM"),
            (ObjectAttributes::FIXED_PARENT, "fixedParent"),
            (ObjectAttributes::SENSITIVE_DATA_ORIGIN, "sensitiveDataOrigin"),
            (ObjectAttributes::RESTRICTED, "restricted"),
            (ObjectAttributes::SIGN, "sign"),
        ] {
            let result = with_attributes(|bits| bits & !attribute.bits());
            assert!(
                matches!(result, Err(AkError::AttributeMissing(attribute)) if attribute == name),
                "{name}"
            );
        }
    }

    #[test]
    fn a_decryption_key_is_refused() {
        assert!(matches!(
            with_attributes(|bits| bits | ObjectAttributes::DECRYPT.bits()),
            Err(AkError::AttributeForbidden("decrypt"))
        ));
    }

    #[test]
    fn a_key_without_fixed_scheme_is_refused() {
        let mut bytes = SoftTpm::p256(1).ak_public_area();
        // size 2, type 2, nameAlg 2, attributes 4, policy size 2, symmetric 2, scheme 2, hash 2
        bytes[16] = 0;
        bytes[17] = 4; // TPM_ALG_SHA1
        assert!(matches!(
            AttestationKey::from_tpm2b(&bytes),
            Err(AkError::Scheme { scheme: Scheme::Other { hash: 4, .. } })
        ));
    }

    #[test]
    fn the_name_is_that_of_the_public_area() {
        let bytes = SoftTpm::rsa(2).ak_public_area();
        let name = AttestationKey::from_tpm2b(&bytes).unwrap().name();
        let digest = tec_core::digest::Sha256Digest::of(&bytes[2..]);
        assert_eq!(name.as_bytes()[..2], [0x00, 0x0b]);
        assert_eq!(&name.as_bytes()[2..], digest.as_bytes());
    }
}
