use serde_json::Value;
use tec_core::code::Code;
use tec_core::digest::Sha256Digest;
use tec_core::image::{ExpectedPcr, ImageEvent};
use tec_core::pcr::PcrIndex;

use super::*;

/// openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256
const KEY: &str = "-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg03wMo+ls+KcsqOmv
hSevnRPrbhRHkcktP+qvIm4xnk+hRANCAASfKlQe+3OhKzUAPRr9U3zWObzxFJ0z
Nw9rK+qqvWDAHXxTIo3mnQvq+8AU+OWBUaIe4i7DctluAYTInBtFQrdG
-----END PRIVATE KEY-----
";
const OTHER_PUBLIC: &str = "-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAETvVIbJQ7/t0IEvbfFsGlpNx5oqBe
GBp9CIZIVDT7CjyA/2+6PN/2v870AI3bL7EZyo8Est6RIP/5C5Il45JnvA==
-----END PUBLIC KEY-----
";

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_unix_seconds(seconds)
}

fn image(digit: char) -> ImageReference {
    let digest = digit.to_string().repeat(64);
    format!("registry.example/os@sha256:{digest}").parse().unwrap()
}

fn bundle() -> ReferenceBundle {
    let pcr4 = PcrIndex::BOOT_MANAGER;
    let shim = ImageEvent::new("E", pcr4, Sha256Digest::of("shim"), "Pcr4Shim");
    let mut expected =
        ExpectedPcrs::new(vec![ExpectedPcr::from_events(pcr4, [shim.from_file("EFI/shim")])]);
    // Not a part of what is signed.
    expected.root_hash = Some(true);
    ReferenceBundle::new(image('a'), at(100), expected)
}

fn signer() -> BundleSigner {
    BundleSigner::from_pem(KEY).unwrap()
}

fn keys() -> [PublicKey; 1] {
    [signer().public_key().unwrap()]
}

fn verify(text: &str, signature: &str) -> Result<VerifiedBundle, BundleError> {
    UntrustedBundle::new(text.as_bytes(), signature).verify(&keys(), at(99))
}

/// A bundle that says something else, with its signature.
fn signed(change: impl Fn(&mut Value)) -> (String, String) {
    let mut json: Value = serde_json::from_str(&bundle().to_json().unwrap()).unwrap();
    change(&mut json);
    let text = json.to_string();
    let signature = signer().sign(&text).unwrap();
    (text, signature)
}

#[test]
fn what_was_signed_is_read_back_with_the_key_that_signed() {
    let text = bundle().to_json().unwrap();
    let signature = signer().sign(&text).unwrap();
    assert_eq!(signature, signer().sign(&text).unwrap());
    let verified = verify(&text, &signature).unwrap();
    assert_eq!(verified.bundle(), &bundle());
    assert_eq!(verified.key(), keys()[0].fingerprint());
    let label = super::super::read_label(&text).unwrap();
    assert_eq!(label, bundle().expected, "a bundle also is a label");
}

#[test]
fn no_byte_of_a_signed_bundle_can_be_changed() {
    let text = bundle().to_json().unwrap();
    let signature = signer().sign(&text).unwrap();
    for position in 0..text.len() {
        let mut changed = text.clone().into_bytes();
        changed[position] ^= 1;
        let refused = UntrustedBundle::new(&changed, &signature).verify(&keys(), at(99));
        assert!(matches!(refused, Err(BundleError::Signature(_))));
    }
    let longer = format!("{text} ");
    let refused = verify(&longer, &signature).unwrap_err();
    assert_eq!(refused.code(), Code::BundleSignature);
}

#[test]
fn a_key_that_was_not_given_counts_for_nothing() {
    let text = bundle().to_json().unwrap();
    let signature = signer().sign(&text).unwrap();
    let other = [PublicKey::from_pem(OTHER_PUBLIC).unwrap()];
    let untrusted = UntrustedBundle::new(text.as_bytes(), &signature);
    for keys in [&other[..], &[]] {
        let refused = untrusted.verify(keys, at(99)).unwrap_err();
        assert!(matches!(refused, BundleError::UnknownKey(_)));
        assert_eq!(refused.code(), Code::BundleSignature);
    }
    // The right name, but not its signature.
    let own = keys()[0].fingerprint().to_string();
    let renamed = signature.replace(&own, &other[0].fingerprint().to_string());
    let refused = UntrustedBundle::new(text.as_bytes(), &renamed).verify(&other, at(99));
    assert!(matches!(refused, Err(BundleError::Signature(_))));
}

#[test]
fn a_bundle_ends_and_is_about_one_image() {
    let text = bundle().to_json().unwrap();
    let signature = signer().sign(&text).unwrap();
    let untrusted = UntrustedBundle::new(text.as_bytes(), &signature);
    let ended = untrusted.verify(&keys(), at(100)).unwrap_err();
    assert!(matches!(ended, BundleError::Expired(end) if end == at(100)));
    assert_eq!(ended.code(), Code::BundleExpired);

    let verified = untrusted.verify(&keys(), at(99)).unwrap();
    assert!(verified.check_image(&image('a')).is_ok());
    let mirror = image('a').as_str().replace("registry", "mirror");
    assert!(verified.check_image(&mirror.parse().unwrap()).is_ok());
    let other = verified.check_image(&image('b')).unwrap_err();
    assert_eq!(other.code(), Code::BundleImage);
}

#[test]
fn other_json_is_no_bundle_even_if_it_is_signed() {
    let (text, signature) = signed(|_| {});
    assert!(verify(&text, &signature).is_ok());
    let changes: [fn(&mut Value); 6] = [
        |json| json["format"] = "tec-reference-values-2".into(),
        |json| json["only_on"] = "Sunday".into(),
        |json| json["image"] = "registry.example/os:latest".into(),
        |json| json["expires_at"] = Value::Null,
        |json| json["pcrs"][0]["value"] = Sha256Digest::ZERO.to_string().into(),
        |json| {
            let register = json["pcrs"][0].clone();
            json["pcrs"] = Value::Array(vec![register.clone(), register]);
        },
    ];
    for change in changes {
        let (text, signature) = signed(change);
        let refused = verify(&text, &signature).unwrap_err();
        assert!(matches!(refused, BundleError::Content(_)), "{refused:?}");
        assert_eq!(refused.code(), Code::BundleMalformed);
    }
    let large = " ".repeat(MAX_BUNDLE + 1);
    assert!(matches!(verify(&large, ""), Err(BundleError::Content(OutputError::TooLarge { .. }))));
}

#[test]
fn other_text_is_no_signature() {
    let text = bundle().to_json().unwrap();
    let signature = signer().sign(&text).unwrap();
    let json: Value = serde_json::from_str(&signature).unwrap();
    let with = |member: &str, value: &str| {
        let mut json = json.clone();
        json[member] = value.into();
        verify(&text, &json.to_string()).unwrap_err()
    };
    assert!(matches!(with("algorithm", "none"), BundleError::Algorithm { .. }));
    assert!(matches!(with("more", "than known"), BundleError::SignatureForm(_)));
    assert!(matches!(with("key", "12"), BundleError::SignatureForm(_)));
    assert!(matches!(with("signature", "!"), BundleError::Signature(_)));
    assert!(matches!(with("signature", ""), BundleError::Signature(_)));
    let large = " ".repeat(5000);
    assert!(matches!(
        verify(&text, &large),
        Err(BundleError::SignatureForm(OutputError::TooLarge { .. }))
    ));
    assert!(matches!(BundleSigner::from_pem(OTHER_PUBLIC), Err(BundleError::PrivateKey)));
}

#[test]
fn images_are_referred_to_by_digest() {
    let digest = "5".repeat(64);
    for good in [format!("sha256:{digest}"), format!("a:5000/b:c@sha256:{digest}")] {
        let reference: ImageReference = good.parse().unwrap();
        assert_eq!(reference.as_str(), good);
        assert_eq!(reference.digest().to_string(), digest);
    }
    for bad in [
        String::new(),
        "os:latest".to_owned(),
        format!("@sha256:{digest}"),
        format!("os@sha512:{digest}"),
        format!("os@sha256:{}", &digest[1..]),
        format!("o s@sha256:{digest}"),
        format!("{}@sha256:{digest}", "o".repeat(640)),
    ] {
        assert!(bad.parse::<ImageReference>().is_err(), "{bad}");
    }
}
