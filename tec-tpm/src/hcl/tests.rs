//! Reports of a made-up paravisor, right and wrong.

use serde_json::{Value, json};

use sha2::{Digest as _, Sha256, Sha384, Sha512};

use super::*;
use crate::testing::SoftAzure;
use std::sync::OnceLock;

fn machine() -> &'static SoftAzure {
    static MACHINE: OnceLock<SoftAzure> = OnceLock::new();
    MACHINE.get_or_init(|| SoftAzure::new(1))
}

fn whole() -> Vec<u8> {
    machine().hcl_report(&machine().runtime_json(b"user data"))
}

fn runtime(json: &Value) -> Result<RuntimeData, HclError> {
    let bytes = machine().hcl_report(json.to_string().as_bytes());
    HclReport::parse(&bytes)?.runtime_data()
}

fn sound_runtime() -> Value {
    serde_json::from_slice(&machine().runtime_json(&[])).unwrap()
}

#[test]
fn a_sound_report_has_its_parts() {
    let bytes = whole();
    let report = HclReport::parse(&bytes).unwrap();
    assert_eq!(report.kind(), HardwareKind::Snp);
    assert_eq!(report.hash(), Bank::Sha256);
    let runtime = report.runtime_data().unwrap();
    assert_eq!(runtime.ak, machine().tpm().public_key());
    let user_data = runtime.user_data.unwrap();
    assert_eq!(user_data.len(), 64);
    assert!(user_data.starts_with(b"user data\0"));
    let hardware = crate::snp::Report::parse(report.hardware_report()).unwrap();
    assert!(report.is_bound_by(&hardware.report_data));
}

#[test]
fn only_the_digest_and_zeros_bind() {
    let bytes = whole();
    let report = HclReport::parse(&bytes).unwrap();
    let hardware = crate::snp::Report::parse(report.hardware_report()).unwrap();
    for offset in 0..64 {
        let mut changed = hardware.report_data;
        changed[offset] ^= 1;
        assert!(!report.is_bound_by(&changed), "{offset}");
    }
    // A changed byte of the JSON: the first of the runtime data is at 0x4d4.
    let mut changed = bytes.clone();
    changed[0x4e0] ^= 1;
    let report = HclReport::parse(&changed).unwrap();
    assert!(!report.is_bound_by(&hardware.report_data));
}

#[test]
fn all_three_hashes_bind() {
    for (number, length) in [(1, 32), (2, 48), (3, 64)] {
        let mut bytes = whole();
        bytes[0x4cc] = number;
        let report = HclReport::parse(&bytes).unwrap();
        let json = report.variable_data();
        let digest = match report.hash() {
            Bank::Sha256 => Sha256::digest(json).to_vec(),
            Bank::Sha384 => Sha384::digest(json).to_vec(),
            _ => Sha512::digest(json).to_vec(),
        };
        assert_eq!(digest.len(), length);
        let mut report_data = [0; 64];
        report_data[..length].copy_from_slice(&digest);
        assert!(report.is_bound_by(&report_data));
    }
}

#[test]
fn reports_that_are_cut_off_are_refused() {
    let bytes = whole();
    let size = u32::from_le_bytes(bytes[0x4d0..0x4d4].try_into().unwrap());
    let end = 0x4d4 + usize::try_from(size).unwrap();
    for length in 0..end {
        let refused = HclReport::parse(&bytes[..length]);
        assert!(matches!(refused, Err(HclError::Wire(_))), "{length}");
    }
    assert!(HclReport::parse(&bytes[..end]).is_ok());
    assert!(matches!(HclReport::parse(&[0; MAX_HCL_REPORT + 1]), Err(HclError::TooLarge(_))));
}

#[test]
fn each_field_of_the_frame_is_checked() {
    let with = |offset: usize, value: u32| {
        let mut bytes = whole();
        bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
        HclReport::parse(&bytes).map(|report| report.kind())
    };
    assert!(matches!(with(0x000, 0), Err(HclError::Magic)));
    for version in [0, 3] {
        let refused = with(0x004, version);
        assert!(matches!(refused, Err(HclError::Version(found)) if found == version));
    }
    assert!(matches!(with(0x008, 7), Err(HclError::Sizes { total: 7, .. })));
    assert!(matches!(with(0x4c0, 7), Err(HclError::Sizes { data: 7, .. })));
    assert!(matches!(with(0x4c4, 2), Err(HclError::Version(2))));
    assert!(matches!(with(0x4c8, 4), Ok(HardwareKind::Tdx)));
    assert!(matches!(with(0x4c8, 3), Err(HclError::ReportType(3))));
    for hash in [0, 4, u32::MAX] {
        let refused = with(0x4cc, hash);
        assert!(matches!(refused, Err(HclError::HashType(found)) if found == hash));
    }
    assert!(matches!(with(0x4d0, 1), Err(HclError::Sizes { variable: 1, .. })));
    assert!(matches!(with(0x4d0, u32::MAX), Err(HclError::Wire(_))));
}

#[test]
fn the_attestation_key_is_found_by_its_name_and_nothing_else() {
    let sound = sound_runtime();
    let ak = sound["keys"][1].clone();
    assert_eq!(runtime(&json!({"keys": [ak]})).unwrap().user_data, None);
    for keys in [json!([]), json!([sound["keys"][0]]), json!([ak, ak])] {
        assert!(matches!(runtime(&json!({ "keys": keys })), Err(HclError::KeyCount(_))));
    }
    for (member, bad) in [
        ("kty", json!("EC")),
        ("n", json!("")),
        ("n", json!("=")),
        ("n", json!("AAAA")),
        ("n", json!("A".repeat(2000))),
        ("e", json!("")),
        ("e", json!("AAEAAQ")),
        ("e", json!("AQABAQAB")),
        ("e", Value::Null),
    ] {
        let mut changed = sound.clone();
        changed["keys"][1][member] = bad;
        let refused = runtime(&changed);
        assert!(
            matches!(refused, Err(HclError::KeyMember { member: named }) if named == member),
            "{refused:?}"
        );
    }
    // 65536, and a modulus of 24 bits.
    for (member, bad) in [("e", "AQAA"), ("n", "_wAB")] {
        let mut changed = sound.clone();
        changed["keys"][1][member] = json!(bad);
        assert!(matches!(runtime(&changed), Err(HclError::Key(_))));
    }
}

#[test]
fn runtime_data_that_are_no_such_json_are_refused() {
    for bad in [json!(null), json!([]), json!({}), json!({"keys": [1]}), json!({"keys": {}})] {
        assert!(matches!(runtime(&bad), Err(HclError::Json(_))), "{bad}");
    }
    for user_data in ["0", "zz", &"00".repeat(65)] {
        let mut changed = sound_runtime();
        changed["user-data"] = json!(user_data);
        assert!(matches!(runtime(&changed), Err(HclError::UserData)));
    }
}
