//! Bodies that a broker refuses, with its answers.

use serde_json::{Value, json};
use tec_tpm::testing::AttestFields;
use tec_trustee::report_data::{HashAlgorithm, primary};
use tec_trustee::wire::ErrorBody;

use super::{broker, good, parts, post, seed, session};
use crate::Seed;
use crate::kbs::session_key;
use crate::sample::{p256_tpm, rsa_tpm};

/// Status and detail of a broker's answer.
fn answer(data: &[u8]) -> Result<(), String> {
    let (which, body) = parts(data).unwrap_or_default();
    let world = broker();
    let (verb, cookie) = match which {
        b"auth" => ("auth", String::new()),
        _ => ("attest", session(&world).0),
    };
    let reply = post(&world, verb, &cookie, body);
    if reply.status.is_success() {
        return Ok(());
    }
    let error: ErrorBody =
        serde_json::from_slice(&reply.body).map_err(|_| reply.status.to_string())?;
    Err(format!("{} {}", reply.status.as_u16(), error.detail))
}

pub(super) fn seeds() -> Vec<Seed> {
    [auth(), requests(), session_keys(), evidence(), quotes()].concat()
}

fn auth() -> Vec<Seed> {
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    let deep = format!(r#"{{"version":"0.4.0","tee":"tpm","extra-params":{deep}}}"#);
    [
        ("auth_of_nothing", ""),
        ("auth_of_a_list", r#"["0.4.0","tpm"]"#),
        ("auth_without_parameters", r#"{"version":"0.4.0","tee":"tpm"}"#),
        (
            "auth_of_two_sorts",
            r#"{"version":"0.4.0","tee":"tpm","extra-params":"","tee":"sample"}"#,
        ),
        (
            "auth_of_two_spellings",
            r#"{"version":"0.4.0","tee":"tpm","extra-params":"","\u0074ee":"snp"}"#,
        ),
        ("auth_with_a_byte_order_mark", "\u{feff}{}"),
        ("auth_that_is_deep", &deep),
        ("auth_of_an_older_version", r#"{"version":"0.3.0","tee":"tpm","extra-params":""}"#),
        ("auth_of_a_newer_version", r#"{"version":"0.4.1","tee":"tpm","extra-params":""}"#),
        ("auth_of_sample", r#"{"version":"0.4.0","tee":"sample","extra-params":""}"#),
        ("auth_of_an_unknown_sort", r#"{"version":"0.4.0","tee":"TPM","extra-params":""}"#),
    ]
    .map(|(name, body)| seed(name, "auth", body).refused(answer))
    .into()
}

/// The good body with one member changed.
fn changed(pointer: &str, value: Value) -> String {
    let mut body = good();
    *body.pointer_mut(pointer).expect("a member") = value;
    body.to_string()
}

/// The good body with other members in the session key.
fn with_key(members: &[(&str, &str)]) -> String {
    let mut body = good();
    let key = body.pointer_mut("/runtime-data/tee-pubkey");
    let key = key.and_then(Value::as_object_mut).expect("an object");
    for (name, value) in members {
        key.insert((*name).to_owned(), json!(value));
    }
    body.to_string()
}

/// The good body with a duplicate member in front.
fn twice(member: &str, before: &str) -> String {
    let good = good().to_string();
    let twice = good.replacen(member, &format!("{before},{member}"), 1);
    assert_ne!(twice, good, "{member}");
    twice
}

fn attests<const N: usize>(list: [(&str, String); N]) -> Vec<Seed> {
    list.map(|(name, body)| seed(name, "attest", body).refused(answer)).into()
}

fn requests() -> Vec<Seed> {
    let init_data = "version = \"0.1.0\"\nalgorithm = \"sha384\"\n";
    let init_data = json!({"format": "toml", "body": init_data});
    let devices = "/tee-evidence/additional_evidence";
    attests([
        ("attest_of_nothing", String::new()),
        ("attest_of_an_empty_object", "{}".to_owned()),
        ("attest_of_another_nonce", changed("/runtime-data/nonce", json!("x"))),
        ("attest_of_two_nonces", twice("\"nonce\"", "\"nonce\":\"x\"")),
        ("attest_of_two_keys", twice("\"tee-pubkey\"", "\"tee-pubkey\":{}")),
        ("attest_of_two_lists", twice("\"pcrs\"", "\"pcrs\":[]")),
        ("attest_with_a_device", changed(devices, json!("{\"nvidia\":{}}"))),
        ("attest_with_no_text_of_devices", changed(devices, json!({}))),
        ("attest_with_init_data_of_48_bytes", changed("/init-data", init_data)),
    ])
}

fn session_keys() -> Vec<Seed> {
    let key = "/runtime-data/tee-pubkey";
    let more = with_key(&[("kid", "1")]);
    let zeros = "A".repeat(43);
    let off = with_key(&[("x", &zeros), ("y", &zeros)]);
    attests([
        ("attest_for_no_key", changed(key, json!({}))),
        ("attest_for_a_short_key", changed(&format!("{key}/x"), json!("AAAA"))),
        ("attest_for_a_key_off_the_curve", off),
        ("attest_for_a_key_that_says_more", more),
    ])
}

fn evidence() -> Vec<Seed> {
    let evidence = "/tee-evidence/primary_evidence";
    let other = rsa_tpm().public_key().to_base64();
    attests([
        ("attest_of_a_list", changed(evidence, json!([]))),
        ("attest_under_another_name", changed(&format!("{evidence}/ak_public"), json!(other))),
    ])
}

/// A registered key's quote with unexpected content.
fn quoting(change: impl Fn(&mut AttestFields)) -> String {
    let nonce = session(&broker()).1;
    let key = serde_json::to_value(session_key().public()).expect("an object");
    let report_data = primary(&nonce, &key, "", HashAlgorithm::Sha384).expect("a digest");
    let nonce = report_data.get(..32).expect("as a TPM takes it");
    let mut fields = p256_tpm().attest_fields(nonce);
    change(&mut fields);
    let evidence = p256_tpm().quote_fields(&fields).to_value();
    changed("/tee-evidence/primary_evidence", evidence)
}

fn quotes() -> Vec<Seed> {
    let some = |fields: &mut AttestFields| {
        for selection in &mut fields.selections {
            selection.bitmap = vec![0x0f, 0, 0xff];
        }
    };
    attests([
        ("quote_of_two_selections", quoting(|fields| fields.selections.extend_from_within(..))),
        ("quote_of_other_registers", quoting(some)),
        ("quote_of_another_session", quoting(|fields| fields.extra_data = vec![0; 32])),
    ])
}
