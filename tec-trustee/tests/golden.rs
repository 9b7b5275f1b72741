//! Policies and reference values of each generation, as files that people can read and compare; those of the
//! configuration are beside its code. `TEC_BLESS=1` rewrites them.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tec_core::attest::{PinnedPcrs, Tee};
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_core::testing::sample;
use tec_trustee::config::Generation;
use tec_trustee::policy::{
    ClaimValue, PolicyIntent, SNP_MEASUREMENT, SnpRequirement, SnpTcb, ak_reference_name,
    ak_reference_value, pcr_reference_name,
};

const PINNED: [PcrIndex; 2] = [PcrIndex::BOOT_MANAGER, PcrIndex::MOK];

/// Everything that an intent can express in this generation.
fn intent(generation: Generation) -> PolicyIntent {
    let pinned = PinnedPcrs::new(PINNED.into_iter().collect()).unwrap();
    let minimum = SnpTcb { bootloader: 4, tee: 0, snp: 22, microcode: 213 };
    let snp = SnpRequirement::default().with_approved_measurement().with_minimum_tcb(minimum);
    let intent = PolicyIntent::new(pinned, [Tee::Tpm, Tee::AzSnpVtpm])
        .and_then(|intent| intent.with_snp(snp))
        .and_then(|intent| {
            let site = ClaimValue::Text("north".to_owned());
            intent.with_claim("tec.site", -70_010, site)
        })
        .unwrap();
    match generation {
        // Policies do not receive the key there.
        Generation::Mounted => intent.dangerous_any_machine(),
        _ => intent,
    }
}

/// Two machines, one of them revoked, and two approved images.
fn references(generation: Generation) -> String {
    let mut references = BTreeMap::new();
    for pcr in PINNED {
        let value = |image: &str| Sha256Digest::of(format!("{image} {pcr}")).to_string();
        let values = json!([value("image 1"), value("image 2")]);
        references.insert(pcr_reference_name(pcr), values);
    }
    let measurement = json!(["bWVhc3VyZW1lbnQ="]);
    references.insert(SNP_MEASUREMENT.to_owned(), measurement);
    if !generation.has_key_directory() {
        let key = sample::public_key;
        let bound = ak_reference_value(&key(1), &sample::machine_id(1));
        references.insert(ak_reference_name(&key(1)), bound);
        references.insert(ak_reference_name(&key(2)), Value::Null);
    }
    serde_json::to_string_pretty(&references).unwrap() + "\n"
}

fn is_golden(generation: Generation, name: &str, text: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let file = folder.join(generation.as_str()).join(name);
    if std::env::var_os("TEC_BLESS").is_some() {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
    }
    let golden = fs::read_to_string(&file).unwrap();
    assert_eq!(text, golden, "{}", file.display());
}

#[test]
fn policies_and_reference_values_of_each_generation_are_those_of_its_golden_files() {
    for generation in Generation::ALL {
        let intent = intent(generation);
        intent.check_for(generation).unwrap();
        is_golden(generation, "default_cpu.rego", &intent.render_attestation());
        is_golden(generation, "policy.rego", &intent.render_resource());
        is_golden(generation, "reference-values.json", &references(generation));
    }
}
