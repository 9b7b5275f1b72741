//! Evidence without hardware (Trustee, verifiers).

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tec_core::attest::Tee;
use tec_core::port::{AttestationEvidence, Attester, PortError};

/// Creates evidence that anyone can create, to try the protocol with a key broker, which should release
/// nothing for it.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct SampleAttester;

#[async_trait]
impl Attester for SampleAttester {
    fn tee(&self) -> Tee {
        Tee::Sample
    }

    async fn attest(&self, report_data: &[u8; 48]) -> Result<AttestationEvidence, PortError> {
        let evidence = serde_json::json!({
            "svn": "1", "report_data": STANDARD.encode(report_data),
        });
        Ok(AttestationEvidence::new(Tee::Sample, evidence))
    }
}
