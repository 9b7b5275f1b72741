//! Policies and reference values as files that people can read and compare; those of the configuration are
//! beside its code. `TEC_BLESS=1` rewrites them.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tec_core::attest::{PinnedPcrs, Tee};
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_core::testing::sample;
use tec_trustee::policy::{
    ClaimValue, PolicyIntent, SNP_MEASUREMENT, SnpRequirement, SnpTcb, ak_reference_name,
    ak_reference_value, pcr_reference_name,
};

const PINNED: [PcrIndex; 2] = [PcrIndex::BOOT_MANAGER, PcrIndex::MOK];

/// Everything that an intent can express.
fn intent() -> PolicyIntent {
    let pinned = PinnedPcrs::new(PINNED.into_iter().collect()).unwrap();
    let minimum = SnpTcb { bootloader: 4, tee: 0, snp: 22, microcode: 213 };
    let snp = SnpRequirement::default().with_approved_measurement().with_minimum_tcb(minimum);
    PolicyIntent::new(pinned, [Tee::Tpm, Tee::AzSnpVtpm])
        .and_then(|intent| intent.with_snp(snp))
        .and_then(|intent| {
            let site = ClaimValue::Text("north".to_owned());
            intent.with_claim("tec.site", -70_010, site)
        })
        .unwrap()
}

/// Two machines, one of them revoked, and two approved images.
fn references() -> String {
    let mut references = BTreeMap::new();
    for pcr in PINNED {
        let value = |image: &str| Sha256Digest::of(format!("{image} {pcr}")).to_string();
        let values = json!([value("image 1"), value("image 2")]);
        references.insert(pcr_reference_name(pcr), values);
    }
    let measurement = json!(["bWVhc3VyZW1lbnQ="]);
    references.insert(SNP_MEASUREMENT.to_owned(), measurement);
    let key = sample::public_key;
    let bound = ak_reference_value(&key(1), &sample::machine_id(1));
    references.insert(ak_reference_name(&key(1)), bound);
    references.insert(ak_reference_name(&key(2)), Value::Null);
    serde_json::to_string_pretty(&references).unwrap() + "\n"
}

fn is_golden(name: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("TEC_BLESS").is_some() {
        fs::write(&file, text).unwrap();
    }
    let golden = fs::read_to_string(&file).unwrap();
    assert_eq!(text, golden, "{}", file.display());
}

#[test]
fn policies_and_reference_values_are_those_of_the_golden_files() {
    let intent = intent();
    is_golden("default_cpu.rego", &intent.render_attestation());
    is_golden("policy.rego", &intent.render_resource());
    is_golden("reference-values.json", &references());
}
