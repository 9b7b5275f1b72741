//! Tokens signed by others, however they are dressed up, obtain nothing from the broker.
#![cfg(all(feature = "kbs", feature = "signer"))]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Body;
use axum::http::Request;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use p256::ecdsa::SigningKey;
use p256::ecdsa::signature::Signer as _;
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng as _;
use serde_json::{Value, json};
use tec_core::attest::{VerifiedEvidence, VerifyError};
use tec_core::port::{EvidenceRequest, KeyBroker as _, PolicySlot, Verifier};
use tec_core::testing::{ManualClock, SeededEntropy, sample};
use tec_trustee::jwe::{Curve, EcPrivateKey};
use tec_trustee::kbs::{Kbs, KbsConfig, MemoryBackend};
use tec_trustee::signer::{IssuedSigner, SignerCa};
use tec_trustee::token::TokenSigner;
use tec_trustee::wire::{ErrorBody, ErrorKind};
use tower_service::Service as _;

fn rng(seed: u64) -> ChaCha20Rng {
    ChaCha20Rng::seed_from_u64(seed)
}

/// A signer below its own CA.
fn issued(seed: u64) -> IssuedSigner {
    let (mut rng, now) = (rng(seed), sample::time(0));
    SignerCa::generate(&mut rng, now).and_then(|ca| ca.issue(&mut rng, now)).unwrap()
}

#[derive(Debug)]
struct NoVerifier;

#[async_trait]
impl Verifier for NoVerifier {
    async fn verify(&self, request: EvidenceRequest<'_>) -> Result<VerifiedEvidence, VerifyError> {
        Err(VerifyError::Unsupported(request.tee))
    }
}

/// A broker that trusts the signer of seed 1, and releases the resource to everyone it trusts.
async fn broker() -> Kbs {
    let backend = Arc::new(MemoryBackend::new());
    let (path, secret) = (sample::secret_path(1), sample::secret(1));
    backend.put(&path, &secret).await.unwrap();
    let all = "package policy\nimport rego.v1\nallow if true";
    backend.set_policy(PolicySlot::Resource, all).await.unwrap();
    let clock = Arc::new(ManualClock::new(sample::time(0)));
    let signer = TokenSigner::of(&issued(1)).unwrap();
    let entropy = Arc::new(SeededEntropy::new(1));
    Kbs::new(KbsConfig::new(backend, Arc::new(NoVerifier), signer, clock, entropy))
}

/// Status and kind of error, if it is one.
async fn ask(kbs: &Kbs, token: &str) -> (u16, Option<ErrorKind>) {
    let request = Request::builder()
        .uri(format!("/kbs/v0/resource/{}", sample::secret_path(1)))
        .header("authorization", format!("Bearer {token}"))
        .body(Body::empty())
        .unwrap();
    let response = kbs.router().call(request).await.unwrap();
    let status = response.status().as_u16();
    let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
    let error = serde_json::from_slice::<ErrorBody>(&body);
    (status, error.ok().map(|error| error.error_kind()))
}

/// Claims that would satisfy any policy.
fn claims() -> Value {
    let key = EcPrivateKey::generate(Curve::P256, &mut rng(9)).public();
    json!({
        "exp": sample::time(300).unix_seconds(),
        "submods": {"cpu0": {
            "ear.status": "affirming", "tec.machine": sample::machine_id(1),
            "ear.veraison.annotated-evidence": {
                "tpm": {}, "runtime_data_claims": {"tee-pubkey": key},
            },
        }},
    })
}

fn header(token: &str) -> Value {
    let header = URL_SAFE_NO_PAD.decode(token.split('.').next().unwrap());
    serde_json::from_slice(&header.unwrap()).unwrap()
}

/// A token of this key, under a header of the forger's choice.
fn forged(key: &IssuedSigner, header: &Value) -> String {
    let pem = std::str::from_utf8(key.key_pem().expose("forge with it")).unwrap();
    let key = SigningKey::from(p256::SecretKey::from_pem(pem).unwrap());
    let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", encode(header), encode(&claims()));
    let signature: p256::ecdsa::Signature = key.sign(signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.to_bytes()))
}

#[tokio::test]
async fn tokens_of_the_trusted_signer_count() {
    let token = TokenSigner::of(&issued(1)).unwrap().sign(&claims()).unwrap();
    assert_eq!(ask(&broker().await, &token).await, (200, None));
}

#[tokio::test]
async fn tokens_of_anybody_else_do_not_count_whatever_their_header_says() {
    let (own, stranger) = (issued(1), issued(2));
    let own_header = header(&TokenSigner::of(&own).unwrap().sign(&claims()).unwrap());
    let signed = TokenSigner::of(&stranger).unwrap().sign(&claims()).unwrap();
    let strange = header(&signed);
    let with = |base: &Value, pointer: &str, value: Value| {
        let mut header = base.clone();
        *header.pointer_mut(pointer).unwrap() = value;
        header
    };
    let chain = json!([STANDARD.encode(own.certificate_der().unwrap())]);
    let jwk = own_header.get("jwk").unwrap().clone();
    let elsewhere = json!({"alg": "ES256", "typ": "JWT", "kid": "1", "jku": "https://evil/jwks",
        "x5u": "https://evil/chain"});
    let kbs = broker().await;
    for (what, token) in [
        ("a chain of its own", signed),
        ("the trusted chain, another key", forged(&stranger, &with(&strange, "/jwk/x5c", chain))),
        ("the trusted key, another signature", forged(&stranger, &with(&strange, "/jwk", jwk))),
        ("a link to its keys", forged(&stranger, &elsewhere)),
        ("no algorithm", forged(&stranger, &with(&strange, "/alg", json!("none")))),
        ("no signature", unsigned(&with(&own_header, "/alg", json!("none")))),
        ("another algorithm", forged(&own, &with(&own_header, "/alg", json!("HS256")))),
        ("nothing", String::new()),
    ] {
        let answer = ask(&kbs, &token).await;
        assert_eq!(answer, (401, Some(ErrorKind::TokenVerifierError)), "{what}");
    }
}

fn unsigned(header: &Value) -> String {
    let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}.", encode(header), encode(&claims()))
}
