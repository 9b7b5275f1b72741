//! Endorsement keys: proof that an attestation key is in a real TPM.
//!
//! ```text
//!  server                                                TPM
//!  EkCertificate ── verify(roots, now) ──► VerifiedEk
//!  make_credential(EK, name of AK, secret) ─ Credential ─► TPM2_ActivateCredential ─► secret
//! ```
//! Only the TPM that holds both keys can return the secret. A certificate says whose TPM that is;
//! without one the endorsement key is just a number that a client presented.

mod certificate;
mod chain;
pub(crate) mod credential;
mod issuer;

pub use self::certificate::Parsed;
#[cfg(any(feature = "direct", feature = "tss"))]
pub(crate) use self::certificate::without_padding;
pub use self::certificate::{CertificateError, EkCertificate};
pub use self::chain::{ChainError, TrustStore, VerifiedEk, verify_ek_certificate};
pub use self::credential::{CredentialError, make_credential};
pub use self::issuer::{CredentialIssuer, IssuerError};

use tec_core::ak::{KeyKind, PublicKey};

use crate::public::{ObjectAttributes, ObjectName, PublicArea, PublicError, Scheme, Symmetric};

/// PolicySecret(TPM_RH_ENDORSEMENT) with SHA-256: "Policy A" (TCG EK Credential Profile for TPM
/// Family 2.0, "Default EK Templates").
pub(crate) const POLICY_A: [u8; 32] = [
    0x83, 0x71, 0x97, 0x67, 0x44, 0x84, 0xb3, 0xf8, 0x1a, 0x90, 0xcc, 0x8d, 0x46, 0xa5, 0xd7, 0x24,
    0xfd, 0x52, 0xd7, 0x6e, 0x06, 0x52, 0x0b, 0x64, 0xf2, 0xa1, 0xda, 0x1b, 0x33, 0x14, 0x69, 0xaa,
];

/// Attributes of the templates L-1 and L-2 (TCG EK Credential Profile, "Default EK Templates").
pub(crate) const TEMPLATE: ObjectAttributes = ObjectAttributes::FIXED_TPM
    .union(ObjectAttributes::FIXED_PARENT)
    .union(ObjectAttributes::SENSITIVE_DATA_ORIGIN)
    .union(ObjectAttributes::ADMIN_WITH_POLICY)
    .union(ObjectAttributes::RESTRICTED)
    .union(ObjectAttributes::DECRYPT);

/// A decryption key that signs, or one that a password opens, is not of the template.
const FORBIDDEN: ObjectAttributes = ObjectAttributes::SIGN.union(ObjectAttributes::USER_WITH_AUTH);

/// The object is not an endorsement key of the default templates L-1 or L-2.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EkError {
    /// The public area cannot be read.
    #[error("the public area cannot be read")]
    Public(#[source] PublicError),
    /// An attribute is missing.
    #[error("the key lacks the attribute {0} of the default template")]
    AttributeMissing(&'static str),
    /// An attribute is set that must not be.
    #[error("the key has the attribute {0}, which the default template lacks")]
    AttributeForbidden(&'static str),
    /// The policy is not that of the template.
    #[error("the authorization policy is not that of the default template")]
    Policy,
    /// The key size, scheme or symmetric algorithm is not that of the template.
    #[error("the key type, scheme or symmetric algorithm is not that of the default template")]
    Parameters,
}

/// Which endorsement key of the default templates to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum EkAlgorithm {
    /// Template L-1.
    #[default]
    Rsa2048,
    /// Template L-2.
    EccP256,
}

#[cfg(any(feature = "direct", feature = "tss"))]
impl EkAlgorithm {
    /// Handle of the NV index that may hold the certificate (TCG EK Credential Profile for TPM
    /// Family 2.0, "NV Indices", low range).
    pub(crate) fn certificate_handle(self) -> u32 {
        match self {
            Self::Rsa2048 => 0x01c0_0002,
            Self::EccP256 => 0x01c0_000a,
        }
    }
}

/// Proof that a public area is of the default template L-1 (RSA 2048) or L-2 (P-256).
#[derive(Clone, Debug)]
pub struct EndorsementKey {
    public: PublicKey,
    name: ObjectName,
}

impl EndorsementKey {
    /// Reads a TPM2B_PUBLIC and compares it with the default templates.
    pub fn from_tpm2b(bytes: &[u8]) -> Result<Self, EkError> {
        let area = PublicArea::from_tpm2b(bytes).map_err(EkError::Public)?;
        let attributes = area.attributes();
        if let Some(attribute) = attributes.first_missing(TEMPLATE) {
            return Err(EkError::AttributeMissing(attribute));
        }
        if let Some(attribute) = attributes.first_present(FORBIDDEN) {
            return Err(EkError::AttributeForbidden(attribute));
        }
        if area.policy() != POLICY_A {
            return Err(EkError::Policy);
        }
        let kind_ok = matches!(area.key().kind(), KeyKind::Rsa { bits: 2048 } | KeyKind::EcP256);
        let algorithms_ok =
            area.scheme() == Scheme::Null && area.symmetric() == Symmetric::Aes128Cfb;
        if kind_ok && algorithms_ok {
            Ok(Self { public: area.key().clone(), name: area.name() })
        } else {
            Err(EkError::Parameters)
        }
    }

    /// The key.
    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// Name of the key.
    pub fn name(&self) -> ObjectName {
        self.name
    }
}

#[cfg(test)]
mod tests;
