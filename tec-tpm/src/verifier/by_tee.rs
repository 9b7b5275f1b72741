//! One verifier for several types of evidence.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use tec_core::attest::{Tee, VerifiedEvidence, VerifyError};
use tec_core::port::{EvidenceRequest, Verifier};

/// Passes evidence to the verifier of its type, and refuses types that have none.
///
/// ```
/// use std::sync::Arc;
///
/// use tec_core::attest::Tee;
/// use tec_tpm::verifier::{ByTee, TpmVerifier};
///
/// let verifier = ByTee::new().with(Tee::Tpm, Arc::new(TpmVerifier::new()));
/// assert!(verifier.tees().eq([Tee::Tpm]));
/// ```
#[derive(Clone, Debug, Default)]
pub struct ByTee(BTreeMap<Tee, Arc<dyn Verifier>>);

impl ByTee {
    /// Refuses everything.
    pub fn new() -> Self {
        Self::default()
    }

    /// Accepts evidence of one more type, or of this type with another verifier.
    pub fn with(mut self, tee: Tee, verifier: Arc<dyn Verifier>) -> Self {
        self.0.insert(tee, verifier);
        self
    }

    /// The accepted types.
    pub fn tees(&self) -> impl Iterator<Item = Tee> {
        self.0.keys().copied()
    }
}

#[async_trait]
impl Verifier for ByTee {
    async fn verify(&self, request: EvidenceRequest<'_>) -> Result<VerifiedEvidence, VerifyError> {
        match self.0.get(&request.tee) {
            Some(verifier) => verifier.verify(request).await,
            None => Err(VerifyError::Unsupported(request.tee)),
        }
    }
}
