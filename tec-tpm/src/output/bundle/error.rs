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
    /// The signature file does not have the expected form.
    #[error("the signature file is malformed")]
    SignatureForm(#[source] OutputError),
    /// The signature algorithm is not accepted.
    #[error("the signature algorithm is {algorithm:?}; only {taken} is accepted")]
    Algorithm {
        /// Algorithm that the signature names.
        algorithm: String,
        /// Algorithm that is accepted.
        taken: &'static str,
    },
    /// The private key cannot be used.
    #[error("not a P-256 private key in PEM (PKCS #8)")]
    PrivateKey,
    /// The key is not on P-256, so it cannot sign bundles.
    #[error("key {0} is not on P-256")]
    Key(Fingerprint),
    /// None of the given keys made the signature.
    #[error("the signature names key {0}, which is not one of the given keys")]
    UnknownKey(Fingerprint),
    /// The signature does not match the bundle.
    #[error("key {0} did not sign this bundle")]
    Signature(Fingerprint),
    /// The signed content is not a bundle.
    #[error("the bundle cannot be read")]
    Content(#[source] OutputError),
    /// The bundle has expired.
    #[error("the bundle expired at {0}")]
    Expired(Timestamp),
    /// The bundle is for another image.
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
            | Self::Key(_)
            | Self::Content(_) => Code::BundleMalformed,
            Self::UnknownKey(_) | Self::Signature(_) => Code::BundleSignature,
            Self::Expired(_) => Code::BundleExpired,
            Self::Image { .. } => Code::BundleImage,
        }
    }
}
