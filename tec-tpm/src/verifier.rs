//! The server side of attestation: for a plain TPM, for a vTPM with an SNP report that vouches for
//! it, or for both, selected by the type of the evidence.

mod azure;
mod by_tee;

pub use self::azure::{AzSnpEvidence, AzSnpEvidenceError, AzSnpEvidenceVersion, AzSnpVtpmVerifier};
pub use self::by_tee::ByTee;

use async_trait::async_trait;
use serde_json::{Map, Value};
use subtle::ConstantTimeEq as _;
use tec_core::ak::{Fingerprint, PublicKey};
use tec_core::attest::{LogEvidence, Tee, VerifiedEvidence, VerifyError};
use tec_core::boot::add_systemd;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::{PcrIndex, PcrValues};
use tec_core::port::{EvidenceRequest, Verifier};

use crate::event_log::systemd_records;
use crate::evidence::TpmEvidence;
use crate::policy::evidence_with_policy;
use crate::quote::{QuoteError, VerifiedQuote};

/// Length of a nonce in a quote; report data is truncated to it, as attesters do.
pub const NONCE: usize = 32;
/// The register that holds the digest of init-data.
const INIT_DATA_PCR: u8 = 8;

/// Verifies evidence of type `tpm`: RSA and P-256 attestation keys.
///
/// Claims have the names that confidential-containers uses, so that policies work with both:
/// `ak_public`, `pcr00` to `pcr23`.
///
/// # Security
/// The key comes with the evidence. The appraisal decides whether it is a registered one.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct TpmVerifier;

impl TpmVerifier {
    /// A verifier.
    pub fn new() -> Self {
        Self
    }
}

#[async_trait]
impl Verifier for TpmVerifier {
    async fn verify(&self, request: EvidenceRequest<'_>) -> Result<VerifiedEvidence, VerifyError> {
        if request.tee != Tee::Tpm {
            return Err(VerifyError::Unsupported(request.tee));
        }
        let evidence = TpmEvidence::from_value(request.evidence)
            .map_err(|error| VerifyError::Malformed(error.member()))?;
        let nonce = nonce(request.report_data);
        let ak = evidence.ak.fingerprint();
        let quote =
            evidence.quote().verify(&evidence.ak, &nonce).map_err(|error| refusal(&error, ak))?;
        if let Some(digest) = request.init_data {
            check_init_data(quote.pcrs(), digest, ak)?;
        }
        Ok(assemble(evidence, &quote, &nonce))
    }
}

/// The part of the report data that fits into a quote.
pub(crate) fn nonce(report_data: &[u8; 48]) -> [u8; NONCE] {
    let mut nonce = [0; NONCE];
    for (to, from) in nonce.iter_mut().zip(report_data) {
        *to = *from;
    }
    nonce
}

fn assemble(evidence: TpmEvidence, quote: &VerifiedQuote, nonce: &[u8]) -> VerifiedEvidence {
    let pcrs = quote.pcrs();
    let claims = tpm_claims(&evidence.ak, pcrs);
    let (mut log, variables) = match &evidence.event_log {
        Some(bytes) => evidence_with_policy(bytes, pcrs),
        None => (LogEvidence::Absent, Vec::new()),
    };
    if let Some(records) = evidence.systemd_log.as_deref().and_then(systemd_records) {
        add_systemd(&mut log, pcrs, &records);
    }
    let init_data = init_data_value(pcrs).map(Sha256Digest::to_string);
    let mut verified = VerifiedEvidence::new(Tee::Tpm, evidence.ak, pcrs.clone());
    verified.claims = claims;
    verified.clock = Some(quote.clock());
    verified.log = log;
    verified.variables = variables;
    verified.report_data = hex::encode(nonce);
    verified.init_data = init_data.unwrap_or_default();
    verified
}

/// `pcr00` to `pcr23`, and the key that quoted them.
fn tpm_claims(ak: &PublicKey, pcrs: &PcrValues) -> Map<String, Value> {
    let mut claims: Map<String, Value> = pcrs
        .iter()
        .map(|(index, value)| (format!("pcr{:02}", u8::from(index)), value.to_string().into()))
        .collect();
    claims.insert("ak_public".to_owned(), ak.to_base64().into());
    claims
}

fn init_data_value(pcrs: &PcrValues) -> Option<&Sha256Digest> {
    PcrIndex::new(INIT_DATA_PCR).ok().map(|index| pcrs.value(index))
}

/// PCR 8 must hold the digest, extended once into a fresh register.
fn check_init_data(pcrs: &PcrValues, digest: &[u8], ak: Fingerprint) -> Result<(), VerifyError> {
    let digest = <[u8; 32]>::try_from(digest).map_err(|_| {
        VerifyError::Malformed("init_data: only SHA-256 digests can be bound to a TPM".to_owned())
    })?;
    let expected = Sha256Digest::ZERO.extended(&Sha256Digest::new(digest));
    let bound = init_data_value(pcrs)
        .is_some_and(|value| value.as_bytes().ct_eq(expected.as_bytes()).into());
    if bound {
        Ok(())
    } else {
        Err(VerifyError::Quote {
            reason: "PCR 8 does not hold the digest of the init-data",
            claimed_ak: Some(ak),
        })
    }
}

/// Maps a failed check to the attestation check as which it is reported.
fn refusal(error: &QuoteError, ak: Fingerprint) -> VerifyError {
    let quote = |reason| VerifyError::Quote { reason, claimed_ak: Some(ak) };
    let selection = |reason| VerifyError::Selection { reason, ak };
    let malformed = |at: &str| VerifyError::Malformed(at.to_owned());
    match error {
        QuoteError::TooLarge { .. } => malformed("tpm_quote"),
        QuoteError::SignatureFormat(_) => malformed("tpm_quote.signature"),
        QuoteError::Message(_) => malformed("tpm_quote.message"),
        QuoteError::Key => malformed("ak_public"),
        QuoteError::SignatureScheme { .. } => quote("the signature scheme does not fit the key"),
        QuoteError::Signature => quote("the signature does not verify"),
        QuoteError::Magic => quote("no TPM made what was signed"),
        QuoteError::Type(_) => quote("what was signed is not a quote"),
        QuoteError::Nonce => quote("the quote is for another nonce"),
        QuoteError::SelectionCount(_) => selection("exactly one selection must be there"),
        QuoteError::Bank(_) => selection("another bank than SHA-256 is selected"),
        QuoteError::Bitmap => selection("other registers than 0 to 23 are selected"),
        QuoteError::ValueCount(_) => selection("exactly 24 values must be sent"),
        QuoteError::Digest => selection("the values are not the quoted ones"),
    }
}

#[cfg(test)]
mod tests;
