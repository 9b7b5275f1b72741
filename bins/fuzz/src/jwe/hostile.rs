//! Responses that the target's first key does not open, with the error.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use tec_core::secret::SecretBytes;
use tec_trustee::jwe::{Jwe, encrypt};

use super::{SECRET, json as seed, keys};
use crate::sample::rng;
use crate::{Seed, outcome};

fn open(data: &[u8]) -> Result<(), String> {
    let jwe = serde_json::from_slice::<Jwe>(data).map_err(|error| format!("{error:?}"))?;
    let [key, _] = keys();
    outcome(key.decrypt(&jwe))
}

/// A response for one of the keys.
fn good(of: usize) -> Jwe {
    let key = keys().get(of).expect("one of two keys");
    let secret = SecretBytes::new(SECRET.to_vec());
    encrypt(&key.public(), &secret, &mut rng(16)).expect("own keys are good")
}

fn header(jwe: &Jwe) -> Value {
    let header = URL_SAFE_NO_PAD.decode(&jwe.protected).expect("base64url");
    serde_json::from_slice(&header).expect("JSON")
}

fn under(header: &str) -> Jwe {
    let mut jwe = good(0);
    jwe.protected = URL_SAFE_NO_PAD.encode(header);
    jwe
}

/// A response with a changed or additional value in the header.
fn saying(pointer: &str, name: &str, value: Value) -> Jwe {
    let mut header = header(&good(0));
    let object = header.pointer_mut(pointer).and_then(Value::as_object_mut);
    object.expect("an object").insert(name.to_owned(), value);
    under(&header.to_string())
}

fn changed(change: impl Fn(&mut Jwe)) -> Jwe {
    let mut jwe = good(0);
    change(&mut jwe);
    jwe
}

/// The bytes of a member, changed.
fn with_bytes(text: &mut String, change: impl Fn(&mut Vec<u8>)) {
    let mut bytes = URL_SAFE_NO_PAD.decode(&*text).expect("base64url");
    change(&mut bytes);
    *text = URL_SAFE_NO_PAD.encode(bytes);
}

fn flip(bytes: &mut [u8]) {
    if let Some(first) = bytes.first_mut() {
        *first ^= 1;
    }
}

pub(super) fn seeds() -> Vec<Seed> {
    let mut seeds = headers();
    seeds.extend(members());
    seeds
}

fn headers() -> Vec<Seed> {
    let zeros = json!("A".repeat(43));
    let mut off = header(&good(0));
    for coordinate in ["x", "y"] {
        let epk = off.pointer_mut("/epk").and_then(Value::as_object_mut);
        epk.expect("an object").insert(coordinate.to_owned(), zeros.clone());
    }
    let text = header(&good(0)).to_string();
    let twice = text.replacen('{', r#"{"alg":"dir","#, 1);
    [
        ("alg_none", saying("", "alg", json!("none"))),
        ("alg_dir", saying("", "alg", json!("dir"))),
        ("alg_twice", under(&twice)),
        ("enc_of_128_bits", saying("", "enc", json!("A128GCM"))),
        ("critical_extension", saying("", "crit", json!(["exp"]))),
        ("compressed", saying("", "zip", json!("DEF"))),
        ("header_is_a_list", under("[]")),
        ("header_is_large", under(&" ".repeat(5000))),
        ("without_a_point", under(r#"{"alg":"ECDH-ES+A256KW","enc":"A256GCM"}"#)),
        ("point_of_another_curve", saying("/epk", "crv", json!("P-521"))),
        ("point_of_another_type", saying("/epk", "kty", json!("OKP"))),
        ("point_off_the_curve", under(&off.to_string())),
        ("point_that_is_short", saying("/epk", "x", json!("AAAA"))),
        ("party_is_no_base64", saying("", "apu", json!("!"))),
        ("header_written_anew", under(&format!(" {text}"))),
    ]
    .map(|(name, jwe)| seed(name, &jwe).refused(open))
    .into()
}

fn members() -> Vec<Seed> {
    [
        ("for_another_curve", good(1)),
        (
            "key_does_not_unwrap",
            changed(|jwe| with_bytes(&mut jwe.encrypted_key, |bytes| flip(bytes))),
        ),
        ("key_is_cut", changed(|jwe| with_bytes(&mut jwe.encrypted_key, |key| key.truncate(39)))),
        ("key_is_long", changed(|jwe| with_bytes(&mut jwe.encrypted_key, |key| key.push(0)))),
        ("vector_of_16_bytes", changed(|jwe| with_bytes(&mut jwe.iv, |iv| iv.resize(16, 0)))),
        ("another_vector", changed(|jwe| with_bytes(&mut jwe.iv, |bytes| flip(bytes)))),
        ("tag_is_cut", changed(|jwe| with_bytes(&mut jwe.tag, |tag| tag.truncate(12)))),
        ("another_tag", changed(|jwe| with_bytes(&mut jwe.tag, |bytes| flip(bytes)))),
        ("another_text", changed(|jwe| with_bytes(&mut jwe.ciphertext, |bytes| flip(bytes)))),
        ("text_is_padded", changed(|jwe| jwe.ciphertext.push('='))),
        ("text_is_empty", changed(|jwe| jwe.ciphertext.clear())),
    ]
    .map(|(name, jwe)| seed(name, &jwe).refused(open))
    .into()
}
