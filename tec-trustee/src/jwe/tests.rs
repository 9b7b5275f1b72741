use proptest::prelude::*;
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng as _;
use rsa::traits::PublicKeyParts as _;

use super::*;

fn rng(seed: u64) -> ChaCha20Rng {
    ChaCha20Rng::seed_from_u64(seed)
}

fn secret() -> SecretBytes {
    SecretBytes::new(br#"{"key_type":"oct","key":"0123456789abcdef0123456789abcdef"}"#.to_vec())
}

fn header_of(jwe: &Jwe) -> String {
    String::from_utf8(URL_SAFE_NO_PAD.decode(&jwe.protected).unwrap()).unwrap()
}

#[test]
fn the_derived_key_of_rfc_7518_appendix_c_comes_out() {
    let z = [
        158, 86, 217, 29, 129, 113, 53, 211, 114, 131, 66, 131, 191, 132, 38, 156, 251, 49, 110,
        163, 218, 128, 106, 72, 246, 218, 167, 121, 140, 254, 144, 196,
    ];
    let derived: Zeroizing<[u8; 16]> = concat_kdf(&z, b"A128GCM", b"Alice", b"Bob");
    assert_eq!(URL_SAFE_NO_PAD.encode(*derived), "VqqN6vgjbSBcIijNcacQGg");
}

#[test]
fn the_agreement_of_rfc_7518_appendix_c_comes_out() {
    // Alice's ephemeral private key and Bob's public key.
    let d: [u8; 32] = decode_array("d", "0_NxaRPUMQoAJt50Gz8YiTr8gRTwyEaCumd-MToTmIo").unwrap();
    let alice = EcPrivateKey::from_scalar_for_tests(&d);
    let bob = ec::sec1_point(
        Curve::P256,
        "weNJy2HscCSM6AEDTDg04biOvhFhyyWvOHQfeF_PxMQ",
        "e8lnCO-AlStT-NJVX-crhB7QRYhiix03illJOVAOyck",
    )
    .unwrap();
    let z = alice.agree(&bob).unwrap();
    let derived: Zeroizing<[u8; 16]> = concat_kdf(&z, b"A128GCM", b"Alice", b"Bob");
    assert_eq!(URL_SAFE_NO_PAD.encode(*derived), "VqqN6vgjbSBcIijNcacQGg");
}

#[test]
fn both_curves_round_trip() {
    for curve in [Curve::P256, Curve::P521] {
        let key = EcPrivateKey::generate(curve, &mut rng(1));
        let jwe = encrypt(&key.public(), &secret(), &mut rng(2)).unwrap();
        assert!(key.decrypt(&jwe).unwrap().ct_eq(&secret()), "{curve:?}");
        let stranger = EcPrivateKey::generate(curve, &mut rng(3));
        assert!(matches!(stranger.decrypt(&jwe), Err(JweError::Unwrap)));
    }
}

#[test]
fn the_header_is_compact_and_in_the_order_that_survives_a_rewrite() {
    let key = EcPrivateKey::generate(Curve::P256, &mut rng(1));
    let header = header_of(&encrypt(&key.public(), &secret(), &mut rng(2)).unwrap());
    assert!(
        header.starts_with(
            r#"{"alg":"ECDH-ES+A256KW","enc":"A256GCM","epk":{"crv":"P-256","kty":"EC","x":""#
        ),
        "{header}"
    );
    // Sorted maps and insertion-ordered maps write the same bytes.
    let value: serde_json::Value = serde_json::from_str(&header).unwrap();
    assert_eq!(value.to_string(), header);
    let canonical = serde_json_canonicalizer::to_vec(&value).unwrap();
    assert_eq!(canonical, header.as_bytes());
    assert_eq!(value["epk"].as_object().unwrap().len(), 4);
}

#[test]
fn the_session_key_has_exactly_the_members_of_the_protocol() {
    for (curve, width) in [(Curve::P256, 43), (Curve::P521, 88)] {
        let key = EcPrivateKey::generate(curve, &mut rng(1)).public();
        let value = serde_json::to_value(&key).unwrap();
        let mut members: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
        members.sort_unstable();
        assert_eq!(members, ["alg", "crv", "kty", "x", "y"]);
        assert_eq!(value["x"].as_str().unwrap().len(), width);
        assert_eq!(serde_json::from_value::<TeePubKey>(value).unwrap(), key);
    }
}

#[test]
fn rsa_oaep_with_sha_256_opens_with_the_private_key() {
    let private = rsa::RsaPrivateKey::new(&mut rng(4), 2048).unwrap();
    let jwk = RsaPublicJwk::new(
        URL_SAFE_NO_PAD.encode(private.n().to_be_bytes_trimmed_vartime()),
        URL_SAFE_NO_PAD.encode(private.e().to_be_bytes_trimmed_vartime()),
    );
    let jwe = encrypt(&TeePubKey::Rsa(jwk), &secret(), &mut rng(5)).unwrap();
    assert_eq!(header_of(&jwe), r#"{"alg":"RSA-OAEP-256","enc":"A256GCM"}"#);
    let wrapped = URL_SAFE_NO_PAD.decode(&jwe.encrypted_key).unwrap();
    let content_key = private.decrypt(rsa::Oaep::<sha2::Sha256>::new(), &wrapped).unwrap();
    let sealed = Sealed {
        iv: decode_array("iv", &jwe.iv).unwrap(),
        ciphertext: URL_SAFE_NO_PAD.decode(&jwe.ciphertext).unwrap(),
        tag: decode_array("tag", &jwe.tag).unwrap(),
    };
    let key = SecretArray::new(content_key.try_into().unwrap());
    let opened = gcm_open(&key, jwe.protected.as_bytes(), &sealed).unwrap();
    assert!(opened.ct_eq(&secret()));
}

#[test]
fn weak_and_broken_public_keys_are_refused() {
    let short = RsaPublicJwk::new(URL_SAFE_NO_PAD.encode([0xff; 128]), "AQAB");
    let zero = EcPublicJwk {
        crv: Curve::P256,
        alg: EcKeyAlgorithm::EcdhEsA256Kw,
        x: URL_SAFE_NO_PAD.encode([0; 32]),
        y: URL_SAFE_NO_PAD.encode([0; 32]),
    };
    let mut narrow = zero.clone();
    narrow.x = URL_SAFE_NO_PAD.encode([0; 31]);
    for key in [TeePubKey::Rsa(short), TeePubKey::Ec(zero), TeePubKey::Ec(narrow)] {
        assert!(key.check().is_err(), "{key:?}");
        assert!(encrypt(&key, &secret(), &mut rng(1)).is_err());
    }
    let rsa15 = r#"{"kty":"RSA","alg":"RSA1_5","n":"AQAB","e":"AQAB"}"#;
    assert!(serde_json::from_str::<TeePubKey>(rsa15).is_err());
}

#[test]
fn the_received_header_is_what_is_authenticated() {
    let key = EcPrivateKey::generate(Curve::P256, &mut rng(1));
    let mut jwe = encrypt(&key.public(), &secret(), &mut rng(2)).unwrap();
    // The same JSON with a space is a different header.
    jwe.protected = URL_SAFE_NO_PAD.encode(header_of(&jwe).replacen(',', ", ", 1));
    assert!(matches!(key.decrypt(&jwe), Err(JweError::Content)));
}

#[test]
fn what_is_not_understood_is_refused() {
    let key = EcPrivateKey::generate(Curve::P256, &mut rng(1));
    let jwe = encrypt(&key.public(), &secret(), &mut rng(2)).unwrap();
    let with = |from: &str, to: &str| Jwe {
        protected: URL_SAFE_NO_PAD.encode(header_of(&jwe).replacen(from, to, 1)),
        ..jwe.clone()
    };
    assert!(matches!(key.decrypt(&with("A256GCM", "A128GCM")), Err(JweError::Unsupported(_))));
    assert!(matches!(key.decrypt(&with("ECDH-ES+A256KW", "dir")), Err(JweError::Unsupported(_))));
    assert!(matches!(
        key.decrypt(&with("{", r#"{"crit":["exp"],"#)),
        Err(JweError::Unsupported(_))
    ));
    assert!(matches!(key.decrypt(&with("P-256", "P-521")), Err(JweError::PublicKey)));
    let huge = Jwe { protected: "A".repeat(10_000), ..jwe.clone() };
    assert!(matches!(key.decrypt(&huge), Err(JweError::TooLarge(_))));
}

proptest! {
    #[test]
    fn an_altered_member_never_opens(member in 0..5_usize, at in any::<prop::sample::Index>()) {
        let key = EcPrivateKey::generate(Curve::P256, &mut rng(1));
        let mut jwe = encrypt(&key.public(), &secret(), &mut rng(2)).unwrap();
        let text = match member {
            0 => &mut jwe.protected,
            1 => &mut jwe.encrypted_key,
            2 => &mut jwe.iv,
            3 => &mut jwe.ciphertext,
            _ => &mut jwe.tag,
        };
        let at = at.index(text.len());
        let replacement = if text.as_bytes()[at] == b'A' { "B" } else { "A" };
        text.replace_range(at..=at, replacement);
        prop_assert!(key.decrypt(&jwe).is_err());
    }
}
