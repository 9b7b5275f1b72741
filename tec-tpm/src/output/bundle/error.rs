//! Why a bundle is not accepted.

use tec_core::ak::Fingerprint;
use tec_core::code::Code;
use tec_core::digest::Sha256Digest;
use tec_core::time::Timestamp;

use super::super::OutputError;

/// A bundle of reference values is not accepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// The signature does not have this form.
    #[error("the signature cannot be read")]
    SignatureForm(#[source] OutputError),
    /// The signature algorithm is not accepted.
    #[error("the signature algorithm is {algorithm:?}; only {taken} is accepted")]
    Algorithm {
        /// What it says.
        algorithm: String,
        /// What is accepted.
        taken: &'static str,
    },
    /// The private key cannot be used.
    #[error("not a P-256 private key in PEM (PKCS #8)")]
    PrivateKey,
    /// The key is not one that signs bundles.
    #[error("key {key} is not on P-256")]
    Key {
        /// Its fingerprint.
        key: Fingerprint,
    },
    /// None of the given keys made the signature.
    #[error("the signature names key {key}, which is not one of the given keys")]
    UnknownKey {
        /// The key that it names.
        key: Fingerprint,
    },
    /// The bundle is not what was signed.
    #[error("key {key} did not sign this bundle")]
    Signature {
        /// The key.
        key: Fingerprint,
    },
    /// The signed content is not a bundle.
    #[error("the bundle cannot be read")]
    Content(#[source] OutputError),
    /// The bundle has expired.
    #[error("the bundle expired at {at}")]
    Expired {
        /// When.
        at: Timestamp,
    },
    /// The bundle is about another image.
    #[error("the bundle is for image sha256:{signed}, not the requested sha256:{expected}")]
    Image {
        /// Digest in the bundle.
        signed: Sha256Digest,
        /// Requested digest.
        expected: Sha256Digest,
    },
}

impl BundleError {
    /// The code that tells users what to do.
    pub fn code(&self) -> Code {
        match self {
            Self::SignatureForm(_)
            | Self::Algorithm { .. }
            | Self::PrivateKey
            | Self::Key { .. }
            | Self::Content(_) => Code::BundleMalformed,
            Self::UnknownKey { .. } | Self::Signature { .. } => Code::BundleSignature,
            Self::Expired { .. } => Code::BundleExpired,
            Self::Image { .. } => Code::BundleImage,
        }
    }
}
