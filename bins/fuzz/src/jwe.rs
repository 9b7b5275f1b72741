//! Responses of a KBS, and the session keys they are encrypted to.

mod hostile;

use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;
use tec_core::secret::SecretBytes;
use tec_trustee::jwe::{Curve, EcPrivateKey, Jwe, MAX_SECRET, RsaPublicJwk, TeePubKey, encrypt};

use crate::Seed;
use crate::sample::{rng, rsa_tpm};

const SECRET: &[u8] = b"a disk key of 32 bytes, or so ..";

/// What opens is authentic: neither a different tag nor a different key opens it. A session key is usable for
/// encryption exactly if its check succeeds.
pub(crate) fn jwe(data: &[u8]) {
    if let Ok(jwe) = serde_json::from_slice::<Jwe>(data) {
        check_jwe(&jwe);
    }
    if let Ok(key) = serde_json::from_slice::<TeePubKey>(data) {
        check_key(&key);
    }
}

fn keys() -> &'static [EcPrivateKey; 2] {
    static KEYS: OnceLock<[EcPrivateKey; 2]> = OnceLock::new();
    KEYS.get_or_init(|| {
        let key = |curve, seed| EcPrivateKey::generate(curve, &mut rng(seed));
        [key(Curve::P256, 11), key(Curve::P521, 12)]
    })
}

fn check_jwe(jwe: &Jwe) {
    let json = serde_json::to_string(jwe).expect("a JWE is an object of texts");
    assert_eq!(serde_json::from_str::<Jwe>(&json).ok().as_ref(), Some(jwe));
    let opened: Vec<_> = keys().iter().filter_map(|key| key.decrypt(jwe).ok()).collect();
    assert!(opened.len() < 2, "one recipient at most");
    let Some(secret) = opened.first() else {
        return;
    };
    assert!(secret.len() <= MAX_SECRET);
    let length = URL_SAFE_NO_PAD.decode(&jwe.ciphertext).map(|text| text.len());
    assert_eq!(length.ok(), Some(secret.len()));
    let (mut other_tag, mut other_iv) = (jwe.clone(), jwe.clone());
    flip(&mut other_tag.tag);
    flip(&mut other_iv.iv);
    for altered in [other_tag, other_iv] {
        assert!(keys().iter().all(|key| key.decrypt(&altered).is_err()));
    }
}

/// Changes the first byte encoded by a base64url text.
fn flip(text: &mut String) {
    let mut bytes = URL_SAFE_NO_PAD.decode(&*text).expect("a member of an opened JWE");
    if let Some(first) = bytes.first_mut() {
        *first ^= 1;
    }
    *text = URL_SAFE_NO_PAD.encode(bytes);
}

fn check_key(key: &TeePubKey) {
    let value = serde_json::to_value(key).expect("a key is an object");
    assert_eq!(serde_json::from_value::<TeePubKey>(value).ok().as_ref(), Some(key));
    let secret = SecretBytes::new(SECRET.to_vec());
    let encrypted = encrypt(key, &secret, &mut rng(13));
    assert_eq!(encrypted.is_ok(), key.check().is_ok());
    let Ok(jwe) = encrypted else { return };
    let header: Value = URL_SAFE_NO_PAD
        .decode(&jwe.protected)
        .ok()
        .and_then(|json| serde_json::from_slice(&json).ok())
        .expect("the protected header is JSON");
    assert_eq!(header.get("enc").and_then(Value::as_str), Some("A256GCM"));
    let ciphertext = URL_SAFE_NO_PAD.decode(&jwe.ciphertext);
    assert!(ciphertext.is_ok_and(|text| text.len() == SECRET.len() && text != SECRET));
    for own in keys() {
        let opened = own.decrypt(&jwe);
        if own.public() == *key {
            assert!(opened.is_ok_and(|opened| opened.ct_eq(&secret)));
        } else {
            assert!(opened.is_err());
        }
    }
}

pub(crate) fn seeds() -> Vec<Seed> {
    let secret = SecretBytes::new(SECRET.to_vec());
    let mut seeds = Vec::new();
    for key in keys() {
        let public = key.public();
        let jwe = encrypt(&public, &secret, &mut rng(14)).expect("own keys are good");
        let curve = key.curve().as_str().replace('-', "").to_lowercase();
        seeds.push(json(&format!("jwe_{curve}"), &jwe));
        seeds.push(json(&format!("jwk_{curve}"), &public));
    }
    // The modulus follows 33 bytes of headers and precedes the exponent (RFC 8017, A.1.1).
    let der = rsa_tpm().public_key().as_der().to_vec();
    let modulus = URL_SAFE_NO_PAD.encode(der.get(33..33 + 256).unwrap_or_default());
    let rsa = TeePubKey::Rsa(RsaPublicJwk::new(modulus, "AQAB"));
    seeds.push(json("jwk_rsa", &rsa));
    let jwe = encrypt(&rsa, &secret, &mut rng(15)).expect("an RSA key of 2048 bits is good");
    seeds.push(json("jwe_rsa", &jwe));
    seeds.extend(hostile::seeds());
    seeds
}

fn json(name: &str, value: &impl serde::Serialize) -> Seed {
    Seed::new(name, serde_json::to_vec(value).expect("a structure of texts"))
}
