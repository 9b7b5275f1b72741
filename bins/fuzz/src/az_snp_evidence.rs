//! Evidence of Azure virtual machines in its JSON forms, through the verifier.

use std::sync::{Arc, OnceLock};

use serde_json::Value;
use tec_core::attest::{VerifiedEvidence, VerifyError};
use tec_core::testing::ManualClock;
use tec_tpm::hcl::HclReport;
use tec_tpm::snp::Policy;
use tec_tpm::testing::SoftSnp;
use tec_tpm::verifier::{AzSnpEvidence, AzSnpEvidenceVersion, AzSnpVtpmVerifier};

use crate::Seed;
use crate::sample::{azure, snp_chip};

const REPORT_DATA: [u8; 48] = [0x5a; 48];
/// Bytes of a TPMT_SIGNATURE before the RSA signature.
const SIGNATURE_HEAD: usize = 6;

/// Evidence that parses has one value, whatever its form. Evidence that verifies states what was quoted, by
/// the key that the hardware vouches for, and only for its own report data. Each input is tried twice:
/// unchanged, and signed by a vTPM and a chip that sign everything.
pub(crate) fn az_snp_evidence(data: &[u8]) {
    let Ok(json) = serde_json::from_slice::<Value>(data) else {
        return;
    };
    let verified = verify(&json, &REPORT_DATA);
    let Ok(parsed) = AzSnpEvidence::from_value(&json) else {
        assert!(matches!(verified, Err(VerifyError::Malformed(_))));
        return;
    };
    let again = AzSnpEvidence::from_value(&parsed.to_value());
    assert_eq!(again.ok().as_ref(), Some(&parsed));
    if let Ok(verified) = verified {
        check(&parsed, &verified);
    }
    let signed = sign(parsed);
    if let Ok(verified) = verify(&signed.to_value(), &REPORT_DATA) {
        check(&signed, &verified);
    }
}

fn verify(json: &Value, report_data: &[u8]) -> Result<VerifiedEvidence, VerifyError> {
    static VERIFIER: OnceLock<AzSnpVtpmVerifier> = OnceLock::new();
    let verifier = VERIFIER.get_or_init(|| {
        let clock = Arc::new(ManualClock::new(SoftSnp::now()));
        AzSnpVtpmVerifier::with_roots(clock, Policy::new(), SoftSnp::roots().clone())
    });
    verifier.verify_evidence(json, report_data, None)
}

fn sign(mut evidence: AzSnpEvidence) -> AzSnpEvidence {
    let signature = azure().tpm().sign(&evidence.message);
    evidence.signature = signature.into_iter().skip(SIGNATURE_HEAD).collect();
    if let Ok(report) = HclReport::parse(&evidence.hcl_report) {
        evidence.hcl_report = azure().hcl_report(report.variable_data());
    }
    evidence.vcek = snp_chip().certificate();
    evidence
}

fn check(parsed: &AzSnpEvidence, verified: &VerifiedEvidence) {
    assert_eq!(verified.ak, azure().tpm().public_key());
    let quoted = verified.pcrs.iter().map(|(_, value)| value);
    assert!(quoted.eq(&parsed.values));
    assert_eq!(verified.report_data, "5a".repeat(REPORT_DATA.len()));
    let claim = |name: &str| verified.claims.get(name).expect("a claim");
    let tpm = |name: &str| claim("tpm").get(name).expect("a claim of the TPM");
    assert_eq!(*tpm("ak_public"), verified.ak.to_base64());
    for (pcr, value) in verified.pcrs.iter() {
        let name = format!("pcr{:02}", u8::from(pcr));
        assert_eq!(*tpm(&name), value.to_string());
    }
    assert_eq!(*claim("policy_debug_allowed"), "false");
    if parsed.version == AzSnpEvidenceVersion::V2 {
        let report = HclReport::parse(&parsed.hcl_report).expect("a report that verified");
        let runtime = report.runtime_data().expect("runtime data that verified");
        let user_data = runtime.user_data.expect("user data that were compared");
        assert!(user_data.starts_with(&REPORT_DATA));
    }
    let stale = verify(&parsed.to_value(), &[0; 48]);
    assert!(matches!(stale, Err(VerifyError::Quote { .. })));
}

pub(crate) fn seeds() -> Vec<Seed> {
    let seed = |name: &str, version| {
        let evidence = azure().evidence(version, &REPORT_DATA);
        Seed::new(name, evidence.to_value().to_string())
    };
    let not_of_this_session = AzSnpEvidence {
        version: AzSnpEvidenceVersion::V2,
        ..azure().evidence(AzSnpEvidenceVersion::V1, &REPORT_DATA)
    };
    vec![
        seed("version_0", AzSnpEvidenceVersion::V0),
        seed("version_2", AzSnpEvidenceVersion::V2),
        Seed::new("not_of_this_session", not_of_this_session.to_value().to_string()),
        Seed::new("version_3", r#"{"version":3}"#),
    ]
}
