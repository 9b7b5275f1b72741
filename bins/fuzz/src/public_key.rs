//! Public keys: one key has one form.

use rsa::pkcs8::{DecodePublicKey as _, EncodePublicKey as _};
use sha2::{Digest as _, Sha256};
use tec_core::ak::{Fingerprint, KeyKind, PublicKey};

use crate::Seed;
use crate::sample::{p256_tpm, rsa_tpm};

/// Largest accepted DER form.
const MAX_DER: usize = 1024;
/// A P-256 key whose BIT STRING has no content, not even the number of unused bits.
const EMPTY_BIT_STRING: &[u8] = b"0\x17\
    0\x13\x06\x07*\x86H\xce=\x02\x01\x06\x08*\x86H\xce=\x03\x01\x07\
    \x03\x00";

/// A key that is accepted in any of its three forms has exactly one DER form, which other
/// implementations read and write, too.
pub(crate) fn public_key(data: &[u8]) {
    if let Ok(key) = PublicKey::from_der(data) {
        assert_eq!(key.as_der(), data, "DER has one form");
        check(&key);
    }
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(key) = PublicKey::from_pem(text) {
        check(&key);
    }
    if let Ok(key) = PublicKey::from_base64(text) {
        assert_eq!(key.to_base64(), text, "base64 of DER has one form");
        check(&key);
    }
    if let Ok(fingerprint) = text.parse::<Fingerprint>() {
        assert_eq!(fingerprint.to_string(), text.to_ascii_lowercase());
    }
}

fn check(key: &PublicKey) {
    let der = key.as_der();
    assert!(der.len() <= MAX_DER);
    assert_eq!(key.fingerprint().as_bytes()[..], Sha256::digest(der)[..]);
    for again in [
        PublicKey::from_der(der),
        PublicKey::from_pem(&key.to_pem()),
        PublicKey::from_base64(&key.to_base64()),
    ] {
        assert_eq!(again.ok().as_ref(), Some(key));
    }
    let json = serde_json::to_string(key).expect("a key is a text");
    assert_eq!(serde_json::from_str::<PublicKey>(&json).ok().as_ref(), Some(key));
    match key.kind() {
        KeyKind::Rsa { bits } => {
            assert!((2048..=4096).contains(&bits));
            // An even modulus is invalid, but harmless: nothing verifies with it.
            if let Ok(rsa) = rsa::RsaPublicKey::from_public_key_der(der) {
                let again = rsa.to_public_key_der().expect("an RSA key has a DER form");
                assert_eq!(again.as_bytes(), der);
            }
        }
        KeyKind::EcP256 => {
            // Whether the point is on the curve is only checked when something is verified.
            if let Ok(ecc) = p256::PublicKey::from_public_key_der(der) {
                let again = ecc.to_public_key_der().expect("an ECC key has a DER form");
                assert_eq!(again.as_bytes(), der);
            }
        }
        other => panic!("the kind {other:?} is new here"),
    }
}

pub(crate) fn seeds() -> Vec<Seed> {
    let (ecc, rsa) = (p256_tpm().public_key(), rsa_tpm().public_key());
    vec![
        Seed::new("ecc_der", ecc.as_der()),
        Seed::new("rsa_der", rsa.as_der()),
        Seed::new("ecc_pem", ecc.to_pem()),
        Seed::new("rsa_pem", rsa.to_pem()),
        Seed::new("ecc_base64", ecc.to_base64()),
        Seed::new("empty_bit_string", EMPTY_BIT_STRING),
        Seed::new("fingerprint", ecc.fingerprint().to_string()),
    ]
}
