//! TPM evidence in its JSON form, through the verifier.

use serde_json::Value;
use tec_core::attest::{LogEvidence, Tee, VerifiedEvidence, VerifyError};
use tec_core::boot::add_systemd;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_core::port::{EvidenceRequest, Verifier as _};
use tec_tpm::event_log;
use tec_tpm::event_log::{EventLogBuilder, systemd_records};
use tec_tpm::evidence::{MAX_EVENT_LOG, TpmEvidence};
use tec_tpm::verifier::TpmVerifier;

use crate::Seed;
use crate::sample::{p256_tpm, ready, rsa_tpm};

const REPORT_DATA: [u8; 48] = [0x5a; 48];
/// The part of the report data that fits into a quote.
const NONCE: [u8; 32] = [0x5a; 32];

/// Evidence that parses has one value, whatever its form. Evidence that verifies states what was quoted, and
/// only for its own report data. Each input is tried twice: unchanged, and signed by a TPM that signs
/// everything.
pub(crate) fn evidence(data: &[u8]) {
    let Ok(json) = serde_json::from_slice::<Value>(data) else {
        return;
    };
    let verified = verify(&json, &REPORT_DATA);
    let Ok(parsed) = TpmEvidence::from_value(&json) else {
        assert!(matches!(verified, Err(VerifyError::Malformed(_))));
        return;
    };
    let again = TpmEvidence::from_value(&parsed.to_value());
    assert_eq!(again.ok().as_ref(), Some(&parsed));
    if let Ok(verified) = verified {
        check(&parsed, &json, &verified);
    }
    let signed = sign(&parsed);
    let json = signed.to_value();
    if let Ok(verified) = verify(&json, &REPORT_DATA) {
        check(&signed, &json, &verified);
    }
}

fn verify(json: &Value, report_data: &[u8; 48]) -> Result<VerifiedEvidence, VerifyError> {
    let request = EvidenceRequest::new(Tee::Tpm, json, report_data);
    ready(TpmVerifier::new().verify(request))
}

fn sign(parsed: &TpmEvidence) -> TpmEvidence {
    let tpm = p256_tpm();
    let (message, values) = (parsed.message.clone(), parsed.values.clone());
    let signature = tpm.sign(&message);
    let signed = TpmEvidence::new(message, signature, values, tpm.public_key());
    let signed = match &parsed.event_log {
        Some(log) => signed.with_event_log(log.clone()),
        None => signed,
    };
    match &parsed.systemd_log {
        Some(log) => signed.with_systemd_log(log.clone()),
        None => signed,
    }
}

fn check(parsed: &TpmEvidence, json: &Value, verified: &VerifiedEvidence) {
    assert_eq!(verified.tee, Tee::Tpm);
    assert_eq!(verified.ak, parsed.ak);
    assert!(verified.pcrs.iter().map(|(_, value)| value).eq(&parsed.values));
    assert!(parsed.message.windows(NONCE.len()).any(|window| window == NONCE));
    assert_eq!(verified.report_data, "5a".repeat(NONCE.len()));
    for (pcr, value) in verified.pcrs.iter() {
        let claim = verified.claims.get(&format!("pcr{:02}", u8::from(pcr)));
        assert_eq!(claim.and_then(Value::as_str), Some(value.to_string().as_str()));
    }
    let ak = verified.claims.get("ak_public").and_then(Value::as_str);
    assert_eq!(ak, Some(parsed.ak.to_base64().as_str()));
    let mut log = match &parsed.event_log {
        Some(log) => event_log::evidence(log, &verified.pcrs),
        None => LogEvidence::Absent,
    };
    if let Some(records) = parsed.systemd_log.as_deref().and_then(systemd_records) {
        add_systemd(&mut log, &verified.pcrs, &records);
    }
    assert_eq!(verified.log, log);
    assert!(parsed.event_log.as_ref().is_none_or(|log| log.len() <= MAX_EVENT_LOG));

    let stale = verify(json, &[0; 48]);
    assert!(matches!(stale, Err(VerifyError::Quote { .. })));
    let request = EvidenceRequest::new(Tee::AzSnpVtpm, json, &REPORT_DATA);
    let other_sort = ready(TpmVerifier::new().verify(request));
    assert!(matches!(other_sort, Err(VerifyError::Unsupported(_))));
}

pub(crate) fn seeds() -> Vec<Seed> {
    let (ecc, rsa) = (p256_tpm().quote(&NONCE), rsa_tpm().quote(&NONCE));
    let mut log = EventLogBuilder::new();
    log.image(Sha256Digest::of("shim"), "\\shimx64.efi");
    log.separator(PcrIndex::BOOT_MANAGER);
    let with_log = ecc.clone().with_event_log(log.build());
    let broken_log = ecc.clone().with_event_log(vec![1, 2, 3]);
    let mut few = ecc.clone();
    few.values.pop();
    let json =
        |name: &str, evidence: &TpmEvidence| Seed::new(name, evidence.to_value().to_string());
    vec![
        json("ecc", &ecc),
        json("rsa", &rsa),
        json("event_log", &with_log),
        json("broken_log", &broken_log),
        json("few_values", &few),
    ]
}
