//! Attestation documents that prove nothing, or are of a TPM in software.

use std::error::Error;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use tec_tpm::evidence::TpmEvidence;
use tec_tpm::quote::SignatureCheck;
use tec_tpm::testing::SoftTpm;

use crate::atls::{
    IssueError, Issuer, Nonce, Quoter, ValidateError, Validated, Validator, Variant,
};

/// Size of a TPM2B (TPM 2.0 Library Part 2, "TPM2B_PUBLIC").
const TPM2B_SIZE: usize = 2;

#[derive(Serialize, Deserialize)]
struct Document {
    #[serde(rename = "UserData")]
    user_data: String,
    #[serde(rename = "Nonce")]
    nonce: String,
}

/// Writes user data and nonce, unsigned.
///
/// # Security
/// Only for tests: anyone can create such a document.
#[derive(Clone, Copy, Debug, Default)]
pub struct DangerousDummyIssuer;

impl Issuer for DangerousDummyIssuer {
    fn variant(&self) -> Variant {
        Variant::Dummy
    }

    fn issue(&self, user_data: &[u8; 32], nonce: &Nonce) -> Result<Vec<u8>, IssueError> {
        let document = Document {
            user_data: STANDARD.encode(user_data),
            nonce: STANDARD.encode(nonce.as_bytes()),
        };
        serde_json::to_vec(&document)
            .map_err(|error| IssueError::source_failed("write a document", error))
    }
}

/// Believes whatever an unsigned document says.
///
/// # Security
/// Only for tests: anyone passes.
#[derive(Clone, Copy, Debug, Default)]
pub struct DangerousDummyValidator;

impl Validator for DangerousDummyValidator {
    fn variant(&self) -> Variant {
        Variant::Dummy
    }

    fn validate(
        &self,
        document: &[u8],
        nonce: &Nonce,
        _signatures: &dyn SignatureCheck,
    ) -> Result<Validated, ValidateError> {
        let document: Document = serde_json::from_slice(document)
            .map_err(|source| ValidateError::malformed("document", source))?;
        if STANDARD.decode(&document.nonce).ok().as_deref() != Some(nonce.as_bytes()) {
            return Err(ValidateError::Nonce);
        }
        STANDARD
            .decode(&document.user_data)
            .ok()
            .and_then(|bytes| bytes.try_into().ok())
            .map(Validated::new)
            .ok_or(ValidateError::Malformed { at: "UserData", source: None })
    }
}

impl Quoter for SoftTpm {
    fn ak_area(&self) -> Result<Vec<u8>, Box<dyn Error + Send + Sync>> {
        Ok(self.ak_public_area().into_iter().skip(TPM2B_SIZE).collect())
    }

    fn quote(&self, nonce: &[u8; 32]) -> Result<TpmEvidence, Box<dyn Error + Send + Sync>> {
        Ok(Self::quote(self, nonce))
    }
}
