//! Reference values of one image with a detached signature: from the builder of the image to its
//! approver.
//!
//! The bundle is JSON, and the signature covers exactly its bytes: ECDSA on P-256 with SHA-256, as
//! `openssl dgst -sha256 -sign` creates it. The signature is a JSON file of its own, which names
//! the key by its fingerprint. Nothing in a bundle can be read before its signature is verified.
//!
//! # Example
//! ```
//! use tec_core::ak::PublicKey;
//! use tec_core::image::ExpectedPcrs;
//! use tec_core::time::Timestamp;
//! use tec_tpm::output::BundleSigner;
//! use tec_tpm::output::ReferenceBundle;
//! use tec_tpm::output::UntrustedBundle;
//!
//! // openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256
//! let signer = BundleSigner::from_pem("-----BEGIN PRIVATE KEY-----
//! MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg03wMo+ls+KcsqOmv
//! hSevnRPrbhRHkcktP+qvIm4xnk+hRANCAASfKlQe+3OhKzUAPRr9U3zWObzxFJ0z
//! Nw9rK+qqvWDAHXxTIo3mnQvq+8AU+OWBUaIe4i7DctluAYTInBtFQrdG
//! -----END PRIVATE KEY-----
//! ")?;
//! let at = Timestamp::from_unix_seconds;
//! let image = format!("registry.example/os@sha256:{}", "5a".repeat(32)).parse()?;
//! let bundle = ReferenceBundle::new(image, at(2_000), ExpectedPcrs::default()).to_json()?;
//! let signature = signer.sign(&bundle)?;
//!
//! let keys: [PublicKey; 1] = [signer.public_key()?];
//! let untrusted = UntrustedBundle::new(bundle.as_bytes(), &signature);
//! let verified = untrusted.verify(&keys, at(1_000))?;
//! assert_eq!(verified.key(), keys[0].fingerprint());
//! assert!(untrusted.verify(&keys, at(2_000)).is_err(), "its time has ended");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod image;
mod signature;

use serde::{Deserialize, Serialize};
use tec_core::ak::{Fingerprint, PublicKey};
use tec_core::image::ExpectedPcrs;
use tec_core::time::Timestamp;

use self::signature::DetachedSignature;
use super::label::{RegisterIn, folded};
use super::{OutputError, to_json};

pub use self::error::BundleError;
pub use self::image::{ImageReference, ParseImageReferenceError};
pub use self::signature::BundleSigner;

const FORM: &str = "a bundle of reference values";
/// Value of the member `format`. It keeps other signed JSON from being mistaken for a bundle.
const FORMAT: &str = "tec-reference-values-1";
/// Largest bundle that is read; a bundle of thirty events has some 6 KiB.
pub const MAX_BUNDLE: usize = 4 << 20;

/// Reference values of one image.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReferenceBundle {
    /// The image, with its digest.
    pub image: ImageReference,
    /// When the values expire.
    pub expires_at: Timestamp,
    /// What booting the image measures.
    pub expected: ExpectedPcrs,
}

#[derive(Serialize)]
struct BundleOut<'b> {
    format: &'static str,
    image: &'b ImageReference,
    expires_at: Timestamp,
    #[serde(flatten)]
    expected: &'b ExpectedPcrs,
}

/// An unknown member could restrict what is signed, so none is accepted.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BundleIn {
    format: String,
    image: ImageReference,
    expires_at: Timestamp,
    pcrs: Vec<RegisterIn>,
}

impl ReferenceBundle {
    /// A bundle that is valid until `expires_at`.
    pub fn new(image: ImageReference, expires_at: Timestamp, expected: ExpectedPcrs) -> Self {
        // Readers accept no other members.
        let expected = ExpectedPcrs::new(expected.pcrs);
        Self { image, expires_at, expected }
    }

    /// The bytes that are signed. They also form a label `org.coreos.pcrs`, with more members.
    ///
    /// # Errors
    /// [`OutputError::Json`], in practice never.
    pub fn to_json(&self) -> Result<String, OutputError> {
        let bundle = BundleOut {
            format: FORMAT,
            image: &self.image,
            expires_at: self.expires_at,
            expected: &self.expected,
        };
        Ok(to_json(&bundle, FORM)? + "\n")
    }

    fn read(bytes: &[u8]) -> Result<Self, BundleError> {
        let json = |source| BundleError::Content(OutputError::Json { form: FORM, source });
        let read: BundleIn = serde_json::from_slice(bytes).map_err(json)?;
        if read.format != FORMAT {
            return Err(BundleError::Content(OutputError::Member {
                member: "format".to_owned(),
                form: FORM,
            }));
        }
        Ok(Self {
            image: read.image,
            expires_at: read.expires_at,
            expected: folded(read.pcrs).map_err(BundleError::Content)?,
        })
    }
}

/// A bundle and its signature as received.
#[derive(Clone, Copy, Debug)]
pub struct UntrustedBundle<'b> {
    bundle: &'b [u8],
    signature: &'b str,
}

/// Proof that one of the given keys signed a bundle that has not expired.
///
/// Only [`UntrustedBundle::verify`] creates one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedBundle {
    bundle: ReferenceBundle,
    key: Fingerprint,
}

impl<'b> UntrustedBundle<'b> {
    /// Takes the bytes of a bundle and the text of its signature.
    pub fn new(bundle: &'b [u8], signature: &'b str) -> Self {
        Self { bundle, signature }
    }

    /// Verifies the signature with the one of `keys` that it names, then reads the bundle.
    ///
    /// # Errors
    /// [`BundleError`]; nothing in the bundle is read before the signature is verified.
    ///
    /// # Security
    /// `keys` are those that the caller trusts to declare which boots are good. An old bundle
    /// signed by a trusted key is valid until it expires; see [`VerifiedBundle::check_image`].
    pub fn verify(self, keys: &[PublicKey], now: Timestamp) -> Result<VerifiedBundle, BundleError> {
        if self.bundle.len() > MAX_BUNDLE {
            return Err(BundleError::Content(OutputError::TooLarge {
                size: self.bundle.len(),
                limit: MAX_BUNDLE,
            }));
        }
        let key = DetachedSignature::read(self.signature)?.verify(self.bundle, keys)?;
        let bundle = ReferenceBundle::read(self.bundle)?;
        if now >= bundle.expires_at {
            let at = bundle.expires_at;
            return Err(BundleError::Expired(at));
        }
        Ok(VerifiedBundle { bundle, key })
    }
}

impl VerifiedBundle {
    /// The signed bundle.
    pub fn bundle(&self) -> &ReferenceBundle {
        &self.bundle
    }

    /// The signed bundle.
    pub fn into_bundle(self) -> ReferenceBundle {
        self.bundle
    }

    /// Fingerprint of the key that signed it.
    pub fn key(&self) -> Fingerprint {
        self.key
    }

    /// Checks that the bundle is for the image with the digest of `expected`; names may differ, as
    /// they do between a registry and its mirror.
    pub fn check_image(&self, expected: &ImageReference) -> Result<(), BundleError> {
        if self.bundle.image.digest() == expected.digest() {
            return Ok(());
        }
        Err(BundleError::Image {
            signed: *self.bundle.image.digest(),
            expected: *expected.digest(),
        })
    }
}

#[cfg(test)]
mod tests;
