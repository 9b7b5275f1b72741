//! Quotes of a TPM for attested TLS.

use std::error::Error;

use super::Tpm;
use super::TpmAttester;
use super::TpmError;
use super::closing;
use super::open_persistent;
use super::read_ak;
use crate::ak::AkHandle;
use crate::atls::Quoter;
use crate::evidence::TpmEvidence;

/// Bytes of the size before a TPMT_PUBLIC (TPM 2.0 Library Part 2, "TPM2B_PUBLIC").
const SIZE: usize = 2;

impl Tpm {
    /// TPM2B_PUBLIC of the attestation key at `handle`.
    ///
    /// # Errors
    /// [`TpmError::NoAk`] without a key, [`TpmError::HandleOccupied`] when something else lies there.
    pub fn ak_public_area(&self, handle: AkHandle) -> Result<Vec<u8>, TpmError> {
        let mut context = self.context();
        let object = open_persistent(&mut context, handle)?.ok_or(TpmError::NoAk { handle })?;
        closing(&mut context, object, |context| {
            read_ak(context, handle, object).map(|(_, area)| area)
        })
    }
}

impl Quoter for TpmAttester {
    fn ak_area(&self) -> Result<Vec<u8>, Box<dyn Error + Send + Sync>> {
        let area = self.tpm.ak_public_area(self.handle)?;
        Ok(area.into_iter().skip(SIZE).collect())
    }

    fn quote(&self, nonce: &[u8; 32]) -> Result<TpmEvidence, Box<dyn Error + Send + Sync>> {
        Ok(self.tpm.quote(self.handle, nonce)?)
    }
}
