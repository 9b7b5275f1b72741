//! From evidence as it is sent to claims, and every refusal at its gate.

use std::sync::OnceLock;

use serde_json::json;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_core::port::Attester as _;
use tec_core::testing::ManualClock;

use super::*;
use crate::testing::{AttestFields, SoftAzure, SoftSnp};
use crate::verifier::{ByTee, TpmVerifier};

const REPORT_DATA: [u8; 48] = [0xd5; 48];
const VERSIONS: [AzSnpEvidenceVersion; 3] =
    [AzSnpEvidenceVersion::V0, AzSnpEvidenceVersion::V1, AzSnpEvidenceVersion::V2];

fn machine() -> &'static SoftAzure {
    static MACHINE: OnceLock<SoftAzure> = OnceLock::new();
    MACHINE.get_or_init(|| {
        let machine = SoftAzure::new(1);
        machine.tpm().extend(PcrIndex::BOOT_MANAGER, &Sha256Digest::of("shim"));
        machine
    })
}

fn verifier(policy: Policy) -> AzSnpVtpmVerifier {
    let clock = Arc::new(ManualClock::new(SoftSnp::now()));
    AzSnpVtpmVerifier::with_roots(clock, policy, SoftSnp::roots().clone())
}

fn verify(evidence: &AzSnpEvidence) -> Result<VerifiedEvidence, VerifyError> {
    verifier(Policy::new()).verify_evidence(&evidence.to_value(), &REPORT_DATA, None)
}

fn evidence(version: AzSnpEvidenceVersion) -> AzSnpEvidence {
    machine().evidence(version, &REPORT_DATA)
}

/// Evidence whose quote says something else, signed by the right key.
fn quoting(change: impl Fn(&mut AttestFields)) -> AzSnpEvidence {
    let mut fields = machine().tpm().attest_fields(&REPORT_DATA);
    change(&mut fields);
    let quote = machine().tpm().quote_fields(&fields);
    AzSnpEvidence {
        signature: quote.signature[6..].to_vec(),
        message: quote.message,
        ..evidence(AzSnpEvidenceVersion::V2)
    }
}

#[test]
fn claims_are_named_as_policies_expect_them_and_are_texts() {
    for version in VERSIONS {
        let verified = verify(&evidence(version)).unwrap();
        assert_eq!(verified.tee, Tee::AzSnpVtpm);
        assert_eq!(verified.ak, machine().tpm().public_key());
        assert_eq!(verified.report_data, "d5".repeat(48));
        assert_eq!(verified.init_data, "00".repeat(32));
        let tpm = verified.claims["tpm"].as_object().unwrap();
        assert_eq!(tpm.len(), 25);
        assert_eq!(tpm["ak_public"], machine().tpm().public_key().to_base64());
        let pcr04 = Sha256Digest::ZERO.extended(&Sha256Digest::of("shim"));
        assert_eq!(tpm["pcr04"], pcr04.to_string());
        let mut rest = verified.claims.clone();
        rest.remove("tpm");
        assert_eq!(
            Value::from(rest),
            json!({
                "policy_abi_major": "0",
                "policy_abi_minor": "31",
                "policy_smt_allowed": "true",
                "policy_migrate_ma": "false",
                "policy_debug_allowed": "false",
                "policy_single_socket": "false",
                "reported_tcb_bootloader": "4",
                "reported_tcb_tee": "1",
                "reported_tcb_snp": "24",
                "reported_tcb_microcode": "219",
                "platform_tsme_enabled": "false",
                "platform_smt_enabled": "true",
                "measurement": STANDARD.encode([0x4d; 48]),
            })
        );
    }
}

#[tokio::test]
async fn the_port_takes_its_sort_of_evidence_and_no_other() {
    let made = machine().attest(&REPORT_DATA).await.unwrap();
    let azure = Arc::new(verifier(Policy::new()));
    let both = ByTee::new()
        .with(Tee::Tpm, Arc::new(TpmVerifier::new()))
        .with(Tee::AzSnpVtpm, azure.clone());
    let request = |tee| EvidenceRequest::new(tee, &made.evidence, &REPORT_DATA);
    assert!(azure.verify(request(Tee::AzSnpVtpm)).await.is_ok());
    assert!(both.verify(request(Tee::AzSnpVtpm)).await.is_ok());
    let as_tpm = both.verify(request(Tee::Tpm)).await;
    assert!(matches!(as_tpm, Err(VerifyError::Malformed(_))));
    for refused in [azure.verify(request(Tee::Tpm)).await, both.verify(request(Tee::Sample)).await]
    {
        assert!(matches!(refused, Err(VerifyError::Unsupported(_))));
    }
}

#[test]
fn the_json_forms_round_trip() {
    for version in VERSIONS {
        let sent = evidence(version);
        let value = sent.to_value();
        assert_eq!(AzSnpEvidence::from_value(&value).unwrap(), sent);
        assert_eq!(value.get("version").is_none(), version == VERSIONS[0]);
    }
}

#[test]
fn malformed_evidence_names_the_member() {
    let new = evidence(AzSnpEvidenceVersion::V2).to_value();
    let old = evidence(AzSnpEvidenceVersion::V0).to_value();
    for (whole, pointer, bad, member) in [
        (&new, "/version", json!(3), "version"),
        (&new, "/version", json!("2"), "version"),
        (&new, "/version", json!(null), "version"),
        (&new, "/tpm_quote/signature", json!("0"), "tpm_quote.signature"),
        (&new, "/tpm_quote/signature", json!("00".repeat(513)), "tpm_quote.signature"),
        (&new, "/tpm_quote/message", json!("00".repeat(1025)), "tpm_quote.message"),
        (&new, "/tpm_quote/pcrs/3", json!("00"), "tpm_quote.pcrs"),
        (&new, "/tpm_quote/pcrs", json!(vec!["0".repeat(64); 65]), "tpm_quote.pcrs"),
        // Without padding, and of the standard alphabet.
        (&new, "/hcl_report", json!("AA"), "hcl_report"),
        (&new, "/hcl_report", json!("+/+/"), "hcl_report"),
        (&new, "/hcl_report", json!("A".repeat(12_000)), "hcl_report"),
        (&new, "/vcek", json!("A".repeat(24_000)), "vcek"),
        (&new, "/vcek", json!([1]), "evidence"),
        (&old, "/vcek", json!("no PEM"), "vcek"),
        (&old, "/report", json!([256]), "evidence"),
        (&old, "/report", json!(vec![0; 9000]), "hcl_report"),
        (&old, "/quote/pcrs/0", json!([1, 2]), "evidence"),
        (&old, "/quote", json!(null), "evidence"),
    ] {
        let mut evidence = whole.clone();
        *evidence.pointer_mut(pointer).unwrap() = bad;
        let error =
            verifier(Policy::new()).verify_evidence(&evidence, &REPORT_DATA, None).unwrap_err();
        assert!(
            matches!(&error, VerifyError::Malformed(at) if at == member),
            "{pointer}: {error:?}"
        );
    }
}

/// Some readers go by the version, others take the first form that matches.
#[test]
fn evidence_with_the_members_of_two_forms_is_malformed() {
    let old = evidence(AzSnpEvidenceVersion::V0).to_value();
    let new = evidence(AzSnpEvidenceVersion::V2).to_value();
    for (whole, other, member) in [
        (&old, &new, "tpm_quote"),
        (&old, &new, "hcl_report"),
        (&new, &old, "quote"),
        (&new, &old, "report"),
    ] {
        let mut mixed = whole.clone();
        mixed[member] = other[member].clone();
        let error = AzSnpEvidence::from_value(&mixed).unwrap_err();
        assert!(matches!(error, AzSnpEvidenceError::Mixed), "{member}");
        assert_eq!(error.member(), "evidence");
    }
}

#[test]
fn what_is_no_report_of_the_paravisor_is_malformed() {
    let mut cut = evidence(AzSnpEvidenceVersion::V1);
    cut.hcl_report.truncate(100);
    let mut no_key = evidence(AzSnpEvidenceVersion::V1);
    no_key.hcl_report = machine().hcl_report(br#"{"keys": []}"#);
    for evidence in [cut, no_key] {
        let error = verify(&evidence).unwrap_err();
        assert!(
            matches!(&error, VerifyError::Malformed(at) if at.starts_with("hcl_report: ")),
            "{error:?}"
        );
    }
}

#[test]
fn quotes_are_as_strict_as_those_of_a_plain_tpm() {
    for error in [
        quoting(|fields| fields.selections.push(fields.selections[0].clone())),
        quoting(|fields| fields.selections[0].bank = 4),
        quoting(|fields| fields.selections[0].bitmap[2] = 0),
        quoting(|fields| fields.pcr_digest[0] ^= 1),
    ]
    .map(|evidence| verify(&evidence).unwrap_err())
    {
        assert!(matches!(error, VerifyError::Selection { .. }), "{error:?}");
    }
    for error in [
        quoting(|fields| fields.magic = 0),
        quoting(|fields| fields.extra_data.truncate(32)),
        quoting(|fields| fields.extra_data.push(0)),
        quoting(|fields| fields.kind = 0x8017),
    ]
    .map(|evidence| verify(&evidence).unwrap_err())
    {
        assert!(matches!(error, VerifyError::Quote { .. }), "{error:?}");
    }
    let mut swapped = evidence(AzSnpEvidenceVersion::V1);
    swapped.values.swap(4, 5);
    let error = verify(&swapped).unwrap_err();
    assert!(matches!(error, VerifyError::Selection { .. }));
}

#[test]
fn a_key_that_the_hardware_does_not_vouch_for_is_refused() {
    // Another machine quotes, and puts its key before the report of this one.
    let other = SoftAzure::new(2);
    let mut evidence = other.evidence(AzSnpEvidenceVersion::V1, &REPORT_DATA);
    let runtime = other.runtime_json(&[]);
    let genuine = machine().chip().report(&[0; 64]);
    evidence.hcl_report = SoftAzure::hcl_report_around(&genuine, &runtime);
    evidence.vcek = machine().chip().certificate();
    let error = verify(&evidence).unwrap_err();
    assert!(
        matches!(&error, VerifyError::Hardware { findings, .. } if findings.contains("other runtime data")),
        "{error:?}"
    );
    assert_eq!(error.ak(), Some(other.tpm().public_key().fingerprint()));
}

#[test]
fn all_findings_of_the_hardware_are_told() {
    let strict = Policy::new().with_measurements([]).with_id_keys([]);
    let sent = evidence(AzSnpEvidenceVersion::V2).to_value();
    let error = verifier(strict).verify_evidence(&sent, &REPORT_DATA, None).unwrap_err();
    let VerifyError::Hardware { findings, .. } = error else {
        panic!("{error:?}");
    };
    assert!(findings.contains("measurement"), "{findings}");
    assert!(findings.contains("ID key"), "{findings}");

    let clock = Arc::new(ManualClock::new(SoftSnp::now()));
    let of_amd = AzSnpVtpmVerifier::new(clock, Policy::new());
    let error = of_amd.verify_evidence(&sent, &REPORT_DATA, None);
    assert!(matches!(error, Err(VerifyError::Hardware { .. })));
}

#[test]
fn tdx_is_not_snp() {
    let mut evidence = evidence(AzSnpEvidenceVersion::V1);
    // The report type of the runtime data.
    evidence.hcl_report[0x4c8] = 4;
    let error = verify(&evidence).unwrap_err();
    assert!(matches!(error, VerifyError::Hardware { .. }), "{error:?}");
}

#[test]
fn from_version_2_on_the_hardware_report_is_for_this_session() {
    let old =
        AzSnpEvidence { version: AzSnpEvidenceVersion::V2, ..evidence(AzSnpEvidenceVersion::V1) };
    let error = verify(&old).unwrap_err();
    assert!(
        matches!(&error, VerifyError::Quote { reason, .. } if reason.contains("another session")),
        "{error:?}"
    );
    let mut without = old;
    let mut runtime: Value = serde_json::from_slice(&machine().runtime_json(&[])).unwrap();
    runtime.as_object_mut().unwrap().remove("user-data");
    without.hcl_report = machine().hcl_report(runtime.to_string().as_bytes());
    assert!(matches!(verify(&without), Err(VerifyError::Quote { .. })));
    without.version = AzSnpEvidenceVersion::V1;
    assert!(verify(&without).is_ok());
}

#[test]
fn init_data_must_be_what_pcr_8_holds() {
    let verify = |init_data: &[u8]| {
        let sent = evidence(AzSnpEvidenceVersion::V2).to_value();
        verifier(Policy::new()).verify_evidence(&sent, &REPORT_DATA, Some(init_data))
    };
    let refused = verify(&[1; 32]);
    assert!(matches!(refused, Err(VerifyError::Quote { .. })));
    let sha384 = verify(&[1; 48]);
    assert!(matches!(sha384, Err(VerifyError::Malformed(_))));

    let other = SoftAzure::new(3);
    other.tpm().extend(PcrIndex::new(8).unwrap(), &Sha256Digest::new([1; 32]));
    let sent = other.evidence(AzSnpEvidenceVersion::V2, &REPORT_DATA).to_value();
    let verified =
        verifier(Policy::new()).verify_evidence(&sent, &REPORT_DATA, Some(&[1; 32])).unwrap();
    let held = Sha256Digest::ZERO.extended(&Sha256Digest::new([1; 32]));
    assert_eq!(verified.init_data, held.to_string());
}
