//! Signatures next to an image, and which of them count.

use serde_json::json;
use tec_core::code::Code;
use tec_registry::testing::{Access, Content, RealRegistry, Signer, claim, gzip};
use tec_registry::{RegistryError, RegistryOptions, SignerKey};

use crate::fake::{Behaviour, Fake};
use crate::provider;
use crate::real::reader;

/// A claim and the signature stored with it.
type Signed = (Vec<u8>, String);

/// Everything stored next to the image with this digest.
type Claims<'a> = &'a dyn Fn(&str) -> Vec<Signed>;

/// A pair of keys; equal seeds give equal pairs.
fn pair(seed: u8) -> (Signer, SignerKey) {
    let private = Signer::new(seed).unwrap();
    let public = private.public_pem().unwrap().parse().unwrap();
    (private, public)
}

/// An image with these claims next to it.
fn image(claims: impl Fn(&str) -> Vec<Signed>) -> (Content, String) {
    let mut content = Content::default();
    let digest = content.image(&json!({}), &[gzip(&[("etc/motd", b"hello")]).unwrap()]);
    let claims = claims(&digest);
    if !claims.is_empty() {
        content.signatures(&digest, &claims);
    }
    (content, digest)
}

async fn signer(host: &str, digest: &str, keys: &[SignerKey]) -> Result<SignerKey, RegistryError> {
    let reference = format!("{host}/os@{digest}").parse().unwrap();
    let registry = reader(&[host], RegistryOptions::default());
    registry.signer(&reference, keys).await.cloned()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_in_a_real_registry_has_the_signer_whose_key_fits() {
    let ((private, own), (_, other)) = (pair(1), pair(2));
    let (content, digest) = image(|digest| vec![private.sign(&claim(digest))]);
    let server = RealRegistry::start(Access::Everybody, &provider()).await.unwrap();
    server.push("os", &content).await.unwrap();
    let found = signer(server.host(), &digest, &[other.clone(), own.clone()]).await;
    assert_eq!(found.unwrap(), own);
    let error = signer(server.host(), &digest, &[other]).await.unwrap_err();
    assert_eq!(error.code(), Code::ImageUnsigned);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_may_have_several_signatures() {
    let ((first, _), (second, key)) = (pair(1), pair(2));
    let both = |digest: &str| [&first, &second].map(|key| key.sign(&claim(digest))).to_vec();
    let (content, digest) = image(both);
    let fake = Fake::start(&content, Behaviour::default()).await;
    assert_eq!(signer(&fake.host, &digest, std::slice::from_ref(&key)).await.unwrap(), key);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signature_counts_for_nothing_but_its_own_image_and_bytes() {
    let (private, key) = pair(1);
    let other = format!("sha256:{}", "ab".repeat(32));
    let of_another_image = |_: &str| vec![private.sign(&claim(&other))];
    let another_kind = |digest: &str| {
        let mut claim = claim(digest);
        claim["critical"]["type"] = "something else".into();
        vec![private.sign(&claim)]
    };
    let of_other_bytes = |digest: &str| {
        let (_, signature) = private.sign(&claim(&other));
        vec![(claim(digest).to_string().into_bytes(), signature)]
    };
    let no_signature = |digest: &str| vec![(private.sign(&claim(digest)).0, "?".to_owned())];
    let no_claim = |_: &str| vec![private.sign(&"text".into())];
    let none = |_: &str| Vec::new();
    let cases: [(&str, Claims<'_>, usize); 6] = [
        ("none", &none, 0),
        ("replayed from another image", &of_another_image, 1),
        ("another kind of claim", &another_kind, 1),
        ("another claim", &of_other_bytes, 1),
        ("no signature", &no_signature, 1),
        ("no claim", &no_claim, 1),
    ];
    for (name, claims, count) in cases {
        let (content, digest) = image(claims);
        let fake = Fake::start(&content, Behaviour::default()).await;
        let error = signer(&fake.host, &digest, std::slice::from_ref(&key)).await.unwrap_err();
        let RegistryError::Unsigned { found, .. } = error else {
            panic!("{name}: {error}");
        };
        assert_eq!(found, count, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_the_registry_altered_is_not_read() {
    let (private, key) = pair(1);
    let (mut content, digest) = image(|digest| vec![private.sign(&claim(digest))]);
    for bytes in content.blobs.values_mut().filter(|bytes| bytes.starts_with(b"{\"critical")) {
        *bytes.last_mut().unwrap() = b' ';
    }
    let fake = Fake::start(&content, Behaviour::default()).await;
    let error = signer(&fake.host, &digest, &[key]).await.unwrap_err();
    assert_eq!(error.code(), Code::ImageAltered);
}

#[test]
fn a_key_that_is_not_p256_is_refused() {
    for text in ["", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"] {
        assert!(text.parse::<SignerKey>().is_err(), "{text}");
    }
}
