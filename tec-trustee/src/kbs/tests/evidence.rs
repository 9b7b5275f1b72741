//! Types of evidence other than the TPM's, with a verifier supplied by the program.

use async_trait::async_trait;
use tec_core::attest::{VerifiedEvidence, VerifyError};
use tec_core::port::{EvidenceRequest, Verifier};

use super::*;

/// Verifies each type in the same way.
#[derive(Debug)]
struct AnySort;

#[async_trait]
impl Verifier for AnySort {
    async fn verify(&self, request: EvidenceRequest<'_>) -> Result<VerifiedEvidence, VerifyError> {
        let tee = request.tee;
        let mut verified = FakeVerifier.verify(request).await?;
        verified.tee = tee;
        Ok(verified)
    }
}

fn kbs() -> Kbs {
    let clock = Arc::new(ManualClock::new(sample::time(1000)));
    let backend = Arc::new(MemoryBackend::new());
    let (signer, entropy) = (TokenSigner::random(&mut rng(7)), SeededEntropy::new(8));
    let config = KbsConfig::new(backend, Arc::new(AnySort), signer, clock, Arc::new(entropy));
    Kbs::new(config.with_tees([Tee::Tpm, Tee::AzSnpVtpm]))
}

#[tokio::test]
async fn azure_evidence_is_taken_under_both_its_names_and_told_under_one() {
    for name in ["az-snp-vtpm", "azsnpvtpm"] {
        let kbs = kbs();
        let answer = post("auth", AUTH.replace("tpm", name)).of(&kbs).await;
        assert_eq!(answer.status, StatusCode::OK, "{name}");
        let nonce = answer.json()["nonce"].as_str().unwrap().to_owned();
        let cookie = answer.cookie.unwrap();
        let cookie = cookie.split(['=', ';']).nth(1).unwrap();
        let body = request(&nonce, &FakeAttester::new(1, 1)).await;
        let ask = post("attest", body.to_string()).cookie(cookie);
        let token = ask.of(&kbs).await.json()["token"].clone();
        let payload = token.as_str().unwrap().split('.').nth(1).unwrap();
        let claims: Value =
            serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).unwrap()).unwrap();
        let evidence = &claims["submods"]["cpu0"]["ear.veraison.annotated-evidence"];
        assert!(evidence["az-snp-vtpm"]["pcr04"].is_string(), "{evidence}");
        assert!(evidence.get("tpm").is_none(), "{evidence}");
    }
}
