//! Quotes of a TPM for attested TLS.

use std::error::Error;

use tec_tpm::evidence::TpmEvidence;
use tec_tpm::tpm::TpmAttester;

use super::Quoter;

/// Bytes of the size before a TPMT_PUBLIC (TPM 2.0 Library Part 2, "TPM2B_PUBLIC").
const SIZE: usize = 2;

impl Quoter for TpmAttester {
    fn ak_area(&self) -> Result<Vec<u8>, Box<dyn Error + Send + Sync>> {
        Ok(self.ak_public_area()?.into_iter().skip(SIZE).collect())
    }

    fn quote(&self, nonce: &[u8; 32]) -> Result<TpmEvidence, Box<dyn Error + Send + Sync>> {
        Ok(self.evidence_for(nonce)?)
    }
}
