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

#[cfg(any(feature = "direct", test, feature = "test-util"))]
use crate::public::ObjectAttributes;

/// PolicySecret(TPM_RH_ENDORSEMENT) with SHA-256: "Policy A" (TCG EK Credential Profile for TPM
/// Family 2.0, "Default EK Templates").
#[cfg(any(feature = "direct", test, feature = "test-util"))]
pub(crate) const POLICY_A: [u8; 32] = [
    0x83, 0x71, 0x97, 0x67, 0x44, 0x84, 0xb3, 0xf8, 0x1a, 0x90, 0xcc, 0x8d, 0x46, 0xa5, 0xd7, 0x24,
    0xfd, 0x52, 0xd7, 0x6e, 0x06, 0x52, 0x0b, 0x64, 0xf2, 0xa1, 0xda, 0x1b, 0x33, 0x14, 0x69, 0xaa,
];

/// Attributes of the templates L-1 and L-2 (TCG EK Credential Profile, "Default EK Templates").
#[cfg(any(feature = "direct", test, feature = "test-util"))]
pub(crate) const TEMPLATE: ObjectAttributes = ObjectAttributes::FIXED_TPM
    .union(ObjectAttributes::FIXED_PARENT)
    .union(ObjectAttributes::SENSITIVE_DATA_ORIGIN)
    .union(ObjectAttributes::ADMIN_WITH_POLICY)
    .union(ObjectAttributes::RESTRICTED)
    .union(ObjectAttributes::DECRYPT);

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

#[cfg(test)]
mod tests;
