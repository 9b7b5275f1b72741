//! Quotes of a TPM for attested TLS.

use std::error::Error;

use super::TpmAttester;
use crate::atls::Quoter;
use crate::evidence::TpmEvidence;

/// Bytes of the size before a TPMT_PUBLIC (TPM 2.0 Library Part 2, "TPM2B_PUBLIC").
const SIZE: usize = 2;

impl Quoter for TpmAttester {
    fn ak_area(&self) -> Result<Vec<u8>, Box<dyn Error + Send + Sync>> {
        let area = self.tpm.ak_public_area(self.handle)?;
        Ok(area.into_iter().skip(SIZE).collect())
    }

    fn quote(&self, nonce: &[u8; 32]) -> Result<TpmEvidence, Box<dyn Error + Send + Sync>> {
        Ok(self.tpm.quote(self.handle, nonce)?)
    }
}
