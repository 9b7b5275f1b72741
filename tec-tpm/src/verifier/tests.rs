//! From evidence as it is sent to claims, and every refusal at its gate.

use serde_json::json;
use tec_core::port::Attester as _;

use super::*;
use crate::event_log::{EventKind, EventLogBuilder};
use crate::testing::{AttestFields, SoftTpm};

const REPORT_DATA: [u8; 48] = [0xd5; 48];

async fn verify(evidence: &Value) -> Result<VerifiedEvidence, VerifyError> {
    let request = EvidenceRequest::new(Tee::Tpm, evidence, &REPORT_DATA);
    TpmVerifier::new().verify(request).await
}

async fn changed(change: impl Fn(&mut AttestFields)) -> VerifyError {
    let tpm = SoftTpm::p256(1);
    let mut fields = tpm.attest_fields(&nonce(&REPORT_DATA));
    change(&mut fields);
    verify(&tpm.quote_fields(&fields).to_value()).await.unwrap_err()
}

#[tokio::test]
async fn claims_are_named_as_policies_expect_them() {
    for tpm in [SoftTpm::p256(1), SoftTpm::rsa(1)] {
        tpm.extend(PcrIndex::BOOT_MANAGER, &Sha256Digest::of("shim"));
        let made = tpm.attest(&REPORT_DATA).await.unwrap();
        let verified = verify(&made.evidence).await.unwrap();

        assert_eq!(verified.tee, Tee::Tpm);
        assert_eq!(verified.ak, tpm.public_key());
        assert_eq!(verified.log, LogEvidence::Absent);
        assert_eq!(verified.report_data, "d5".repeat(32));
        assert_eq!(verified.init_data, "00".repeat(32));
        assert_eq!(verified.claims.len(), 25);
        assert_eq!(verified.claims["ak_public"], made.evidence["ak_public"]);
        let pcr04 = Sha256Digest::ZERO.extended(&Sha256Digest::of("shim"));
        assert_eq!(verified.claims["pcr04"], pcr04.to_string());
        assert_eq!(verified.claims["pcr17"], "f".repeat(64));
        assert_eq!(verified.claims["pcr23"], "0".repeat(64));
    }
}

#[tokio::test]
async fn old_evidence_does_not_fit_new_report_data() {
    let tpm = SoftTpm::p256(1);
    let old = tpm.attest(&[1; 48]).await.unwrap();
    let error = verify(&old.evidence).await.unwrap_err();
    assert!(matches!(error, VerifyError::Quote { .. }));
    assert_eq!(error.ak(), Some(tpm.public_key().fingerprint()));
}

#[tokio::test]
async fn a_key_that_did_not_sign_is_refused() {
    let mut evidence = SoftTpm::p256(1).quote(&nonce(&REPORT_DATA)).to_value();
    let other = SoftTpm::p256(2).public_key();
    evidence["ak_public"] = json!(other);
    let error = verify(&evidence).await.unwrap_err();
    assert!(matches!(error, VerifyError::Quote { .. }));
    assert_eq!(error.ak(), Some(other.fingerprint()));
}

#[tokio::test]
async fn wrong_selections_are_refused_at_their_own_gate() {
    for error in [
        changed(|fields| fields.selections.push(fields.selections[0].clone())).await,
        changed(|fields| fields.selections[0].bank = 4).await,
        changed(|fields| fields.selections[0].bitmap[2] = 0).await,
        changed(|fields| fields.pcr_digest[0] ^= 1).await,
    ] {
        assert!(matches!(error, VerifyError::Selection { .. }), "{error:?}");
    }
    let mut few = SoftTpm::p256(1).quote(&nonce(&REPORT_DATA)).to_value();
    few["tpm_quote"]["pcrs"].as_array_mut().unwrap().pop();
    assert!(matches!(verify(&few).await, Err(VerifyError::Selection { .. })));
}

#[tokio::test]
async fn what_is_no_quote_is_refused() {
    for error in
        [changed(|fields| fields.magic = 0).await, changed(|fields| fields.kind = 0x8017).await]
    {
        assert!(matches!(error, VerifyError::Quote { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn malformed_evidence_names_the_member() {
    let whole = SoftTpm::p256(1).quote(&nonce(&REPORT_DATA)).to_value();
    for (pointer, bad, member) in [
        ("/tpm_quote/signature", json!("AAAA"), "tpm_quote.signature"),
        ("/tpm_quote", json!(null), "evidence"),
        ("/tpm_quote/pcrs/0", json!("xx"), "tpm_quote.pcrs[0]"),
        ("/ak_public", json!(""), "ak_public"),
    ] {
        let mut evidence = whole.clone();
        *evidence.pointer_mut(pointer).unwrap() = bad;
        let error = verify(&evidence).await.unwrap_err();
        assert!(matches!(&error, VerifyError::Malformed(at) if at == member), "{error:?}");
    }
    let error = changed(|fields| fields.trailing = vec![0]).await;
    assert!(matches!(error, VerifyError::Malformed(_)));
}

#[tokio::test]
async fn init_data_must_be_what_pcr_8_holds() {
    let tpm = SoftTpm::p256(1);
    let digest = Sha256Digest::of("init data");
    tpm.extend(PcrIndex::new(8).unwrap(), &digest);
    let made = tpm.attest(&REPORT_DATA).await.unwrap();
    let verify = async |digest: &[u8]| {
        let request = EvidenceRequest::new(Tee::Tpm, &made.evidence, &REPORT_DATA);
        TpmVerifier::new().verify(request.with_init_data(digest)).await
    };
    let verified = verify(digest.as_bytes()).await.unwrap();
    let held = Sha256Digest::ZERO.extended(&digest);
    assert_eq!(verified.init_data, held.to_string());
    assert!(matches!(
        verify(Sha256Digest::of("other").as_bytes()).await,
        Err(VerifyError::Quote { .. })
    ));
    // SHA-384
    assert!(matches!(verify(&[0; 48]).await, Err(VerifyError::Malformed(_))));
}

#[tokio::test]
async fn event_logs_become_evidence_or_are_said_to_be_broken() {
    let tpm = SoftTpm::p256(1);
    let data = b"Calling EFI Application from Boot Option";
    tpm.extend(PcrIndex::BOOT_MANAGER, &Sha256Digest::of(data));
    let log =
        EventLogBuilder::new().measure(PcrIndex::BOOT_MANAGER, EventKind::EFI_ACTION, data).build();
    tpm.set_event_log(log);
    let made = tpm.attest(&REPORT_DATA).await.unwrap();
    let LogEvidence::Parsed { events, replayed, .. } = verify(&made.evidence).await.unwrap().log
    else {
        panic!("the log parses");
    };
    assert_eq!(events.len(), 1);
    assert!(replayed.contains(PcrIndex::BOOT_MANAGER));

    tpm.set_event_log(b"not a log".to_vec());
    let made = tpm.attest(&REPORT_DATA).await.unwrap();
    assert!(matches!(verify(&made.evidence).await.unwrap().log, LogEvidence::Broken { .. }));
}

#[tokio::test]
async fn other_sorts_of_evidence_are_not_taken() {
    let evidence = SoftTpm::p256(1).quote(&nonce(&REPORT_DATA)).to_value();
    let request = EvidenceRequest::new(Tee::Sample, &evidence, &REPORT_DATA);
    assert!(matches!(
        TpmVerifier::new().verify(request).await,
        Err(VerifyError::Unsupported(Tee::Sample))
    ));
}

#[tokio::test]
#[ignore = "needs snp-reports: set TEC_FIXTURES"]
async fn evidence_of_an_upstream_attester_is_read_and_refused_for_its_old_nonce() {
    // Of the time when quotes carried 64 bytes.
    let folder = std::env::var_os("TEC_FIXTURES").expect("TEC_FIXTURES is set");
    let path = std::path::Path::new(&folder).join("snp/trustee/tpm_evidence.json");
    let text = std::fs::read_to_string(path).unwrap();
    let error = verify(&serde_json::from_str(&text).unwrap()).await.unwrap_err();
    assert!(
        matches!(&error, VerifyError::Quote { reason, .. } if reason.contains("nonce")),
        "{error:?}"
    );
}

#[tokio::test]
async fn the_log_of_systemd_explains_what_that_of_the_firmware_ends_before() {
    let (tpm, pcr) = (SoftTpm::p256(1), PcrIndex::BOOT_FILES);
    let texts = ["os-separator", "nvpcr-init:hardware:0x1d10200:000b9f0e", "nvpcr-separator"];
    let record = |text: &&str| {
        let digests = json!([{ "hashAlg": "sha256", "digest": Sha256Digest::of(text) }]);
        let record = json!({ "pcr": pcr, "digests": digests, "content": { "string": text } });
        format!("\u{1e}{record}\n").into_bytes()
    };
    let log: Vec<u8> = texts.iter().flat_map(record).collect();
    for text in ["initrd"].iter().chain(&texts) {
        tpm.extend(pcr, &Sha256Digest::of(text));
    }
    tpm.set_event_log(EventLogBuilder::new().measure(pcr, EventKind::IPL, b"initrd").build());
    let sent = tpm.quote(&nonce(&REPORT_DATA));
    assert_eq!(verify(&sent.to_value()).await.unwrap().logged(pcr), None);
    let verified = verify(&sent.clone().with_systemd_log(log).to_value()).await.unwrap();
    let logged = verified.logged(pcr).unwrap();
    let named: Vec<_> = logged.iter().skip(1).filter_map(|event| event.detail.as_deref()).collect();
    assert_eq!(named, texts);
    assert!(logged.iter().skip(1).all(|event| event.kind == "systemd"));

    let sent = sent.with_systemd_log(b"{".to_vec()).to_value();
    assert_eq!(verify(&sent).await.unwrap().logged(pcr), None, "as good as none");
}
