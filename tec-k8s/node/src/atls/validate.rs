//! Verifying documents.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

use tec_core::ak::{Fingerprint, PublicKey};
use tec_core::pcr::PcrValues;
use tec_tpm::quote::{QuoteError, SignatureCheck};

use super::challenge::{inner_nonce, quote_nonce};
use super::document::Document;
use super::{LiveMeasurements, Mismatch, Mismatches, Nonce, Variant};

/// A document was refused: the first check that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ValidateError {
    /// A member is missing or malformed.
    #[error("the document's {at} is malformed")]
    Malformed {
        /// The member.
        at: &'static str,
        /// The cause, if there is one.
        #[source]
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// The document is for a different nonce.
    #[error("the document is for another nonce")]
    Nonce,
    /// The quote is invalid, which includes a quote for different user data or a different nonce.
    #[error("the quote is invalid")]
    Quote(#[source] QuoteError),
    /// Nothing vouches for the attestation key.
    #[error("the attestation key {ak} is not trusted: {reason}")]
    Untrusted {
        /// The key.
        ak: Fingerprint,
        /// The reason.
        reason: String,
    },
    /// Registers do not have the expected values.
    #[error(transparent)]
    Measurements(#[from] Mismatches),
}

impl ValidateError {
    pub(crate) fn malformed(
        at: &'static str,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self::Malformed { at, source: Some(source.into()) }
    }
}

/// The content of a valid document.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Validated {
    /// The user data that it binds.
    pub user_data: [u8; 32],
    /// The attestation key that signed, if any.
    pub ak: Option<PublicKey>,
    /// The quoted registers, if any.
    pub pcrs: Option<PcrValues>,
    /// Registers that differ but only warn.
    pub warnings: Vec<Mismatch>,
}

impl Validated {
    /// A document that binds this user data, and contains nothing else.
    pub fn new(user_data: [u8; 32]) -> Self {
        Self { user_data, ak: None, pcrs: None, warnings: Vec::new() }
    }
}

/// Verifies documents of one variant.
///
/// *Contract*: a document that was not created for `nonce` is refused; the user data is returned,
/// and the handshake compares it. Pure computation, bounded by
/// [`MAX_DOCUMENT`](super::MAX_DOCUMENT).
pub trait Validator: fmt::Debug + Send + Sync {
    /// The variant.
    fn variant(&self) -> Variant;

    /// Verifies a document. Verify signatures with what the endpoint provides, if possible.
    ///
    /// # Errors
    /// [`ValidateError`] with the first check that failed; for registers, all that differ.
    fn validate(
        &self,
        document: &[u8],
        nonce: &Nonce,
        signatures: &dyn SignatureCheck,
    ) -> Result<Validated, ValidateError>;
}

/// Whether an attestation key belongs to a trusted TPM.
pub trait AkTrust: fmt::Debug + Send + Sync {
    /// Checks a key with the information that was sent with it.
    ///
    /// # Errors
    /// [`ValidateError::Untrusted`] with the reason, or [`ValidateError::Malformed`].
    fn check(&self, ak: &PublicKey, instance_info: &[u8]) -> Result<(), ValidateError>;
}

/// Accepts any key: for callers that check [`AttestedPeer::ak`](super::AttestedPeer::ak)
/// themselves, such as a registry with trust on first use.
///
/// # Security
/// Anyone can create a TPM in software. A quote by an unknown key proves nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnyAk;

impl AkTrust for AnyAk {
    fn check(&self, _ak: &PublicKey, _instance_info: &[u8]) -> Result<(), ValidateError> {
        Ok(())
    }
}

/// Accepts these keys.
#[derive(Clone, Debug)]
pub struct PinnedAks(BTreeSet<Fingerprint>);

impl PinnedAks {
    /// Accepts keys with these fingerprints.
    pub fn new(keys: impl IntoIterator<Item = Fingerprint>) -> Self {
        Self(keys.into_iter().collect())
    }
}

impl AkTrust for PinnedAks {
    fn check(&self, ak: &PublicKey, _instance_info: &[u8]) -> Result<(), ValidateError> {
        let ak = ak.fingerprint();
        if self.0.contains(&ak) {
            return Ok(());
        }
        Err(ValidateError::Untrusted { ak, reason: "it is not among the pinned keys".to_owned() })
    }
}

/// Accepts keys that all of these accept.
#[derive(Clone, Debug)]
pub struct EveryTrust(Vec<Arc<dyn AkTrust>>);

impl EveryTrust {
    /// Consulted in this order.
    pub fn new(all: impl IntoIterator<Item = Arc<dyn AkTrust>>) -> Self {
        Self(all.into_iter().collect())
    }
}

impl AkTrust for EveryTrust {
    fn check(&self, ak: &PublicKey, instance_info: &[u8]) -> Result<(), ValidateError> {
        self.0.iter().try_for_each(|one| one.check(ak, instance_info))
    }
}

/// Verifies documents with quotes.
#[derive(Clone, Debug)]
pub struct VtpmValidator {
    variant: Variant,
    trust: Arc<dyn AkTrust>,
    measurements: Arc<LiveMeasurements>,
}

impl VtpmValidator {
    /// Trusts keys according to `trust`, and expects the values that `measurements` has at the time of each
    /// call.
    pub fn new(
        variant: Variant,
        trust: Arc<dyn AkTrust>,
        measurements: Arc<LiveMeasurements>,
    ) -> Self {
        Self { variant, trust, measurements }
    }
}

impl Validator for VtpmValidator {
    fn variant(&self) -> Variant {
        self.variant
    }

    fn validate(
        &self,
        document: &[u8],
        nonce: &Nonce,
        signatures: &dyn SignatureCheck,
    ) -> Result<Validated, ValidateError> {
        let document = Document::parse(document)?;
        let ak = document.ak.public();
        let inner = inner_nonce(&document.user_data, nonce);
        let quote = document
            .quote()
            .verify_by(signatures, ak, &quote_nonce(&document.instance_info, &inner))
            .map_err(|error| match error {
                QuoteError::Nonce => ValidateError::Nonce,
                error => ValidateError::Quote(error),
            })?;
        self.trust.check(ak, &document.instance_info)?;
        let warnings = self.measurements.current().compare(quote.pcrs())?;
        Ok(Validated {
            user_data: document.user_data,
            ak: Some(ak.clone()),
            pcrs: Some(quote.pcrs().clone()),
            warnings,
        })
    }
}
