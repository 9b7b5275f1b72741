//! Creating documents.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use tec_tpm::evidence::TpmEvidence;

use super::azure::instance_info;
use super::challenge::{inner_nonce, quote_nonce};
use super::{HclSource, MAX_DOCUMENT, Nonce, Variant, document};

type Cause = Box<dyn Error + Send + Sync>;

/// No document could be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IssueError {
    /// The TPM or the source of instance information failed.
    #[error("cannot {operation}")]
    Source {
        /// The operation that failed.
        operation: &'static str,
        /// The cause.
        #[source]
        source: Cause,
    },
    /// The document is too large for a handshake.
    #[error("the document has {0} bytes; at most {MAX_DOCUMENT} fit into a handshake")]
    TooLarge(usize),
}

impl IssueError {
    /// A source that failed.
    pub fn source_failed(operation: &'static str, source: impl Into<Cause>) -> Self {
        Self::Source { operation, source: source.into() }
    }
}

/// Creates documents of one variant.
///
/// *Contract*: the document binds user data and nonce, so that its validator can return the user data and
/// refuse a wrong nonce. Calls may block for as long as a TPM takes: they run on threads that may block.
pub trait Issuer: fmt::Debug + Send + Sync {
    /// The variant.
    fn variant(&self) -> Variant;

    /// Creates a document.
    ///
    /// # Errors
    /// [`IssueError::Source`] if its input cannot be obtained.
    fn issue(&self, user_data: &[u8; 32], nonce: &Nonce) -> Result<Vec<u8>, IssueError>;
}

/// Creates quotes with an attestation key.
pub trait Quoter: fmt::Debug + Send + Sync {
    /// TPMT_PUBLIC of the key.
    fn ak_area(&self) -> Result<Vec<u8>, Cause>;

    /// A quote over all 24 registers of the SHA-256 bank.
    fn quote(&self, nonce: &[u8; 32]) -> Result<TpmEvidence, Cause>;
}

/// Creates documents from quotes.
#[derive(Clone, Debug)]
pub struct VtpmIssuer {
    variant: Variant,
    quoter: Arc<dyn Quoter>,
    info: Option<Arc<dyn HclSource>>,
}

impl VtpmIssuer {
    /// Uses quotes only.
    pub fn new(variant: Variant, quoter: Arc<dyn Quoter>) -> Self {
        Self { variant, quoter, info: None }
    }

    /// Adds what vouches for the key of an Azure machine; it is read for each document.
    pub fn with_info(mut self, info: Arc<dyn HclSource>) -> Self {
        self.info = Some(info);
        self
    }
}

impl Issuer for VtpmIssuer {
    fn variant(&self) -> Variant {
        self.variant
    }

    fn issue(&self, user_data: &[u8; 32], nonce: &Nonce) -> Result<Vec<u8>, IssueError> {
        let failed = |operation| move |source| IssueError::Source { operation, source };
        let inner = inner_nonce(user_data, nonce);
        let info = match &self.info {
            Some(info) => instance_info(&**info)
                .map_err(failed("fetch what vouches for the attestation key"))?,
            None => Vec::new(),
        };
        let area = self.quoter.ak_area().map_err(failed("read the attestation key"))?;
        let quote = self
            .quoter
            .quote(&quote_nonce(&info, &inner))
            .map_err(failed("quote the registers"))?;
        Ok(document::write(&area, &quote, &info, user_data))
    }
}

/// The document, if it fits.
pub(super) fn issue(
    issuer: &dyn Issuer,
    user_data: &[u8; 32],
    nonce: &Nonce,
) -> Result<Vec<u8>, IssueError> {
    let document = issuer.issue(user_data, nonce)?;
    if document.len() > MAX_DOCUMENT {
        return Err(IssueError::TooLarge(document.len()));
    }
    Ok(document)
}
