//! Encrypted responses, sealed passphrases and signed tokens compared with josekit.
//!
//! josekit builds serde_json with insertion-ordered maps, so these tests also show that nothing here depends
//! on the order of maps.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use josekit::jwe::{JweHeader, JweHeaderSet};
use josekit::jwk::Jwk;
use josekit::jwk::alg::ec::{EcCurve, EcKeyPair};
use josekit::jwk::alg::rsa::RsaKeyPair;
use josekit::jws::ES256;
use josekit::{jwe, jwt};
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng as _;
use serde_json::{Value, json};
use tec_core::ignition::PinConfig;
use tec_core::secret::{SecretArray, SecretBytes};
use tec_trustee::clevis;
use tec_trustee::clevis::SealedPassphrase;
use tec_trustee::jwe::{Curve, EcPrivateKey, Jwe, TeePubKey, encrypt};
use tec_trustee::token::TokenSigner;

const SECRET: &[u8] = br#"{"key_type":"oct","key":"01234567890123456789012345678901"}"#;

fn rng() -> ChaCha20Rng {
    ChaCha20Rng::seed_from_u64(7)
}

fn secret() -> SecretBytes {
    SecretBytes::new(SECRET.to_vec())
}

/// The `tee-pubkey` of a josekit key (KBS attestation protocol 0.4.0).
fn tee_pubkey(key: &Jwk, alg: &str) -> TeePubKey {
    let mut jwk: Value = serde_json::to_value(key).unwrap();
    let members = jwk.as_object_mut().unwrap();
    members.insert("alg".to_owned(), alg.into());
    members.retain(|name, _| ["kty", "crv", "alg", "x", "y", "n", "e"].contains(&name.as_str()));
    serde_json::from_value(jwk).unwrap()
}

#[test]
fn josekit_opens_what_is_encrypted_for_ec_keys() {
    for (curve, name) in [(EcCurve::P256, "P-256"), (EcCurve::P521, "P-521")] {
        let pair = EcKeyPair::generate(curve).unwrap();
        let key = tee_pubkey(&pair.to_jwk_public_key(), "ECDH-ES+A256KW");
        let ours = serde_json::to_string(&encrypt(&key, &secret(), &mut rng()).unwrap()).unwrap();
        let decrypter = jwe::ECDH_ES_A256KW.decrypter_from_jwk(&pair.to_jwk_private_key());
        let (opened, header) = jwe::deserialize_json(&ours, &decrypter.unwrap()).unwrap();
        assert_eq!(opened, SECRET, "{name}");
        assert_eq!(header.content_encryption(), Some("A256GCM"));
    }
}

#[test]
fn josekit_opens_what_is_encrypted_for_rsa_keys() {
    let pair = RsaKeyPair::generate(2048).unwrap();
    let key = tee_pubkey(&pair.to_jwk_public_key(), "RSA-OAEP-256");
    let ours = serde_json::to_string(&encrypt(&key, &secret(), &mut rng()).unwrap()).unwrap();
    let decrypter = jwe::RSA_OAEP_256.decrypter_from_jwk(&pair.to_jwk_private_key());
    let (opened, _) = jwe::deserialize_json(&ours, &decrypter.unwrap()).unwrap();
    assert_eq!(opened, SECRET);
}

#[test]
fn what_josekit_encrypts_opens_whatever_else_its_header_says() {
    for curve in [Curve::P256, Curve::P521] {
        let own = EcPrivateKey::generate(curve, &mut rng());
        let public: Value = serde_json::to_value(own.public()).unwrap();
        let jwk = Jwk::from_map(public.as_object().unwrap().clone()).unwrap();
        let mut encrypter = jwe::ECDH_ES_A256KW.encrypter_from_jwk(&jwk).unwrap();
        encrypter.remove_key_id();
        let mut header = JweHeaderSet::new();
        header.set_content_encryption("A256GCM", true);
        header.set_key_id("anything", true);
        header.set_agreement_partyuinfo("alice", true);
        let theirs = jwe::serialize_flattened_json(SECRET, Some(&header), None, None, &encrypter);
        let theirs: Jwe = serde_json::from_str(&theirs.unwrap()).unwrap();
        assert_eq!(own.decrypt(&theirs).unwrap().expose("compare"), SECRET);
    }
}

fn pin() -> tec_core::ignition::HeaderConfig {
    let json = r#"{"servers":[{"url":"https://kbs:8080","cert":"PEM"}],
        "path":"default/7c9e6679-7425-40de-944b-e07fc1f90ae7/root"}"#;
    PinConfig::parse(json).unwrap().to_header()
}

#[test]
fn josekit_opens_a_sealed_passphrase_and_reads_its_header() {
    let sealed = clevis::seal(&pin(), &SecretArray::new([7; 32]), &secret(), &mut rng()).unwrap();
    let decrypter = jwe::Dir.decrypter_from_bytes([7; 32]).unwrap();
    let (opened, header) = jwe::deserialize_compact(&sealed, &decrypter).unwrap();
    assert_eq!(opened, SECRET);
    let clevis = header.claim("clevis").unwrap();
    assert_eq!(clevis["pin"], "trustee");
    assert_eq!(clevis["servers"][0]["url"], "https://kbs:8080");
}

/// The existing pin sets `alg` to ECDH-ES, and josekit overwrites it with `dir`
/// (clevis-pin-trustee).
#[test]
fn a_passphrase_that_is_sealed_as_the_existing_pin_does_opens() {
    let mut header = JweHeader::new();
    header.set_algorithm("ECDH-ES");
    header.set_content_encryption("A256GCM");
    let clevis = serde_json::to_value(pin()).unwrap();
    header.set_claim("clevis", Some(clevis)).unwrap();
    let encrypter = jwe::Dir.encrypter_from_bytes([7; 32]).unwrap();
    let theirs = jwe::serialize_compact(SECRET, &header, &encrypter).unwrap();
    let sealed = SealedPassphrase::parse(&theirs).unwrap();
    assert_eq!(sealed.config(), &pin());
    let opened = sealed.open(&SecretArray::new([7; 32])).unwrap();
    assert_eq!(opened.expose("compare"), SECRET);
}

#[test]
fn josekit_verifies_a_token_with_the_key_of_its_header() {
    let signer = TokenSigner::random(&mut rng());
    let token = signer.sign(&json!({"exp": 4_000_000_000_i64, "iss": "x"})).unwrap();
    let header = URL_SAFE_NO_PAD.decode(token.split('.').next().unwrap()).unwrap();
    let header: Value = serde_json::from_slice(&header).unwrap();
    let jwk = Jwk::from_map(header["jwk"].as_object().unwrap().clone()).unwrap();
    let verifier = ES256.verifier_from_jwk(&jwk).unwrap();
    let (claims, _) = jwt::decode_with_verifier(&token, &verifier).unwrap();
    assert_eq!(claims.issuer(), Some("x"));
    let stranger = EcKeyPair::generate(EcCurve::P256).unwrap();
    let verifier = ES256.verifier_from_jwk(&stranger.to_jwk_public_key()).unwrap();
    assert!(jwt::decode_with_verifier(&token, &verifier).is_err());
}
