//! Reports of Azure's paravisor.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rsa::RsaPublicKey;
use rsa::pkcs8::DecodePublicKey as _;
use rsa::traits::PublicKeyParts as _;
use serde_json::Value;
use sha2::{Digest as _, Sha256, Sha384, Sha512};
use tec_tpm::event_log::Bank;
use tec_tpm::hcl::HclReport;
use tec_tpm::snp::REPORT_SIZE;
use tec_tpm::testing::SoftAzure;

use crate::bytes::{cut, le32, put, u32_at};
use crate::sample::{azure, snp_chip};
use crate::{Seed, outcome};

/// Offsets of the hardware report and of the JSON.
const HARDWARE: usize = 0x20;
const JSON: usize = 0x4d4;

/// The parts of a report are those that its sizes define; only the digest of the JSON binds it; and the key
/// is the one of that name, number for number.
pub(crate) fn hcl_report(data: &[u8]) {
    let Ok(report) = HclReport::parse(data) else {
        return;
    };
    let size = u32_at(data, 0x4d0).expect("the size of the JSON");
    let json = data.get(JSON..JSON + size).expect("the JSON");
    assert_eq!(report.variable_data(), json);
    assert_eq!(Some(&report.hardware_report()[..]), data.get(HARDWARE..HARDWARE + REPORT_SIZE));
    let digest = match report.hash() {
        Bank::Sha256 => Sha256::digest(json).to_vec(),
        Bank::Sha384 => Sha384::digest(json).to_vec(),
        _ => Sha512::digest(json).to_vec(),
    };
    let mut report_data = [0; 64];
    for (to, from) in report_data.iter_mut().zip(&digest) {
        *to = *from;
    }
    assert!(report.is_bound_by(&report_data));
    report_data[63] ^= 1;
    assert!(!report.is_bound_by(&report_data));
    let Ok(runtime) = report.runtime_data() else {
        return;
    };
    let Ok(key) = RsaPublicKey::from_public_key_der(runtime.ak.as_der()) else {
        // Numbers that are not a key fail every later verification.
        return;
    };
    let Ok(json) = serde_json::from_slice::<Value>(json) else {
        // An unused member is skipped and not decoded, so it may contain half a surrogate pair, which a value
        // cannot.
        return;
    };
    let keys = json.get("keys").and_then(Value::as_array);
    let Some(keys) = keys.filter(|keys| keys.iter().all(Value::is_object)) else {
        // Structures written as lists are read, too.
        return;
    };
    let mut named = keys.iter().filter(|key| key.get("kid").is_some_and(|kid| kid == "HCLAkPub"));
    let number = |name: &str, key: &Value| {
        let text = key.get(name).and_then(Value::as_str).expect("a number");
        URL_SAFE_NO_PAD.decode(text).expect("a number in base64url")
    };
    let one = named.next().expect("a key of this name");
    assert_eq!(number("n", one), &*key.n_bytes());
    assert_eq!(number("e", one), &*key.e_bytes());
    assert!(named.next().is_none());
    let user_data = runtime.user_data.map(hex::encode);
    let written = json.get("user-data").and_then(Value::as_str).map(str::to_lowercase);
    assert_eq!(user_data, written);
}

pub(crate) fn seeds() -> Vec<Seed> {
    let read = |data: &[u8]| outcome(HclReport::parse(data));
    let read_json = |data: &[u8]| outcome(HclReport::parse(data).and_then(|r| r.runtime_data()));
    let runtime = azure().runtime_json(b"user data");
    let end = JSON + runtime.len();
    // Zeros follow.
    let sound = cut(azure().hcl_report(&runtime), end);
    let with = |offset, value: usize| put(sound.clone(), offset, &le32(value));
    let of = |json: &str| {
        let hardware = snp_chip().report(&[0; 64]);
        let padded = SoftAzure::hcl_report_around(&hardware, json.as_bytes());
        cut(padded, JSON + json.len())
    };
    vec![
        Seed::new("sound", sound.clone()),
        Seed::new("sha384", with(0x4cc, 2)),
        Seed::new("tdx", with(0x4c8, 4)),
        Seed::new("no_magic", with(0, 0)).refused(read),
        Seed::new("version_3", with(4, 3)).refused(read),
        Seed::new("type_3", with(0x4c8, 3)).refused(read),
        Seed::new("hash_4", with(0x4cc, 4)).refused(read),
        Seed::new("json_of_four_gigabytes", with(0x4d0, 0xffff_ffff)).refused(read),
        Seed::new("json_of_one_byte", with(0x4d0, 1)).refused(read),
        Seed::new("cut_off", cut(sound.clone(), 100)).refused(read),
        Seed::new("no_key", of(r#"{"keys":[]}"#)).refused(read_json),
        Seed::new("key_without_modulus", of(r#"{"keys":[{"kid":"HCLAkPub","kty":"RSA"}]}"#))
            .refused(read_json),
        Seed::new("brackets", of(&"[".repeat(300))).refused(read_json),
    ]
}
