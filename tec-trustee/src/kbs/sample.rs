//! Evidence without hardware (Trustee, verifiers), for tests of the protocol.

use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use subtle::ConstantTimeEq as _;
use tec_core::ak::PublicKey;
use tec_core::attest::{Tee, VerifiedEvidence, VerifyError};
use tec_core::digest::Sha256Digest;
use tec_core::pcr::{PCR_COUNT, PcrValues};
use tec_core::port::{EvidenceRequest, Verifier};

/// Accepts sample evidence in addition to what the inner verifier accepts.
#[derive(Debug)]
pub(super) struct SampleVerifier {
    pub(super) inner: Arc<dyn Verifier>,
}

/// The key of sample evidence: a P-256 key whose point is (0, 0), which nobody can have.
const NOBODY: &str = concat!(
    "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==",
);

#[async_trait]
impl Verifier for SampleVerifier {
    async fn verify(&self, request: EvidenceRequest<'_>) -> Result<VerifiedEvidence, VerifyError> {
        if request.tee == Tee::Sample { verify(request) } else { self.inner.verify(request).await }
    }
}

fn verify(request: EvidenceRequest<'_>) -> Result<VerifiedEvidence, VerifyError> {
    let malformed = |at: &str| VerifyError::Malformed(at.to_owned());
    let text = |member: &str| request.evidence.get(member).and_then(Value::as_str);
    let svn = text("svn").ok_or_else(|| malformed("svn"))?;
    let report_data = text("report_data").ok_or_else(|| malformed("report_data"))?;
    let bound = STANDARD.decode(report_data).map_err(|_| malformed("report_data"))?;
    if !bool::from(bound.as_slice().ct_eq(request.report_data)) {
        return Err(VerifyError::Quote {
            reason: "the report data is not that of this session",
            claimed_ak: None,
        });
    }
    let nobody = PublicKey::from_base64(NOBODY).map_err(|_| malformed("sample key"))?;
    let registers = PcrValues::new([Sha256Digest::ZERO; PCR_COUNT]);
    let mut verified = VerifiedEvidence::new(Tee::Sample, nobody, registers);
    let claims = serde_json::json!({
        "svn": svn, "launch_digest": "abcde", "debug": false,
        "platform_version": {"major": 1, "minor": 4},
    });
    if let Value::Object(claims) = claims {
        verified.claims = claims;
    }
    report_data.clone_into(&mut verified.report_data);
    verified.init_data = request.init_data.map(|d| STANDARD.encode(d)).unwrap_or_default();
    Ok(verified)
}
