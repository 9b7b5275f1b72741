//! The client against servers on loopback: scripted ones, and the KBS of this crate over TLS.

use std::sync::Mutex;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use tec_core::code::Code;
use tec_core::testing::{SeededEntropy, sample};
use tokio::net::TcpListener;

use super::*;
use crate::testing::{FakeAttester, provider, serve};
use crate::wire::ErrorKind;

fn client(urls: &[String]) -> RcarClient {
    let servers: Vec<_> = urls.iter().map(|url| Endpoint::new(url.parse().unwrap(), "")).collect();
    client_of(&servers)
}

fn client_of(servers: &[Endpoint]) -> RcarClient {
    let deadlines = Deadlines::new(Duration::from_secs(5), Duration::from_secs(5));
    let entropy = Arc::new(SeededEntropy::new(1));
    RcarClient::new(servers, deadlines, &provider(), entropy).unwrap()
}

/// A server that answers from a script and records the requests.
#[derive(Clone, Default)]
struct Script(Arc<Mutex<Played>>);

#[derive(Default)]
struct Played {
    answers: std::collections::VecDeque<(u16, Option<&'static str>, String)>,
    asked: Vec<(String, Option<String>, Value)>,
}

impl Script {
    fn answer(self, status: u16, cookie: Option<&'static str>, body: impl Into<String>) -> Self {
        let body = body.into();
        self.0.lock().unwrap().answers.push_back((status, cookie, body));
        self
    }

    fn handshake(self) -> Self {
        let challenge = r#"{"nonce":"bm9uY2U=","extra-params":""}"#;
        self.answer(200, Some(COOKIE), challenge).answer(200, None, r#"{"token":"t"}"#)
    }

    fn error(self, kind: &str, detail: &str) -> Self {
        let namespace = crate::wire::ERROR_NAMESPACE;
        let body = serde_json::json!({"type": format!("{namespace}{kind}"), "detail": detail});
        self.answer(401, None, body.to_string())
    }

    async fn serve(&self) -> String {
        serve(Router::new().fallback(play).with_state(self.clone())).await
    }

    fn asked(&self) -> Vec<(String, Option<String>, Value)> {
        self.0.lock().unwrap().asked.clone()
    }

    fn paths(&self) -> Vec<String> {
        self.asked().into_iter().map(|(path, ..)| path).collect()
    }
}

/// Expired long ago by the client's clock, and without Path: it must be kept all the same.
const COOKIE: &str = "kbs-session-id=0123abcd; Expires=Thu, 01 Jan 1970 00:00:00 GMT";

async fn play(State(script): State<Script>, request: Request<Body>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1_000_000).await.unwrap();
    let cookie = parts.headers.get("cookie");
    let cookie = cookie.map(|cookie| cookie.to_str().unwrap().to_owned());
    let mut played = script.0.lock().unwrap();
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    played.asked.push((parts.uri.to_string(), cookie, body));
    let (status, cookie, body) = played.answers.pop_front().unwrap();
    let mut response = Response::builder().status(status);
    if let Some(cookie) = cookie {
        response = response.header("set-cookie", "other=1").header("set-cookie", cookie);
    }
    response.body(Body::from(body)).unwrap()
}

async fn fetch(urls: &[String]) -> Result<SecretBytes, RcarError> {
    let attester = FakeAttester::new(1, 1);
    client(urls).fetch(&sample::secret_path(1), &attester).await
}

#[tokio::test]
async fn a_denial_is_final_and_keeps_the_servers_code() {
    let id = "7c9e6679-7425-40de-944b-e07fc1f90ae7";
    let detail = format!("TEC-A412 boot not approved: it matches no approved image (attempt {id})");
    let script = Script::default().handshake().error("PolicyDeny", &detail);
    let error = fetch(&[script.serve().await]).await.unwrap_err();
    assert_eq!(error.code(), Code::PcrMismatch);
    assert!(!error.is_retryable());
    assert!(matches!(
        error,
        RcarError::Denied { kind: ErrorKind::PolicyDeny, attempt: Some(attempt), .. }
            if attempt.to_string() == id
    ));
    assert_eq!(script.paths().len(), 3);
}

#[tokio::test]
async fn a_lost_session_is_renewed_once_and_no_more() {
    for kind in ["TokenNotFound", "TokenVerifierError", "AttestationError"] {
        let script = Script::default().handshake().error(kind, "").handshake().error(kind, "");
        let error = fetch(&[script.serve().await]).await.unwrap_err();
        assert!(matches!(error, RcarError::Denied { .. }));
        assert_eq!(script.paths().len(), 6, "{kind}");
    }
    let script = Script::default().error("AttestationError", "");
    fetch(&[script.serve().await]).await.unwrap_err();
    assert_eq!(script.paths().len(), 1);
}

#[tokio::test]
async fn another_digest_is_used_when_the_server_selects_it() {
    let challenge = r#"{"nonce":"bg==","extra-params":{"selected-hash-algorithm":"SHA256"}}"#;
    let script =
        Script::default().answer(200, Some(COOKIE), challenge).error("AttestationError", "");
    fetch(&[script.serve().await]).await.unwrap_err();
    let body = &script.asked()[1].2;
    let key = &body["runtime-data"]["tee-pubkey"];
    let bound = report_data::primary("bg==", key, "", HashAlgorithm::Sha256).unwrap();
    let evidence = &body["tee-evidence"]["primary_evidence"];
    assert_eq!(evidence["bound"], hex::encode(bound));

    let unknown = challenge.replace("SHA256", "sm3");
    let script = Script::default().answer(200, Some(COOKIE), unknown);
    let error = fetch(&[script.serve().await]).await.unwrap_err();
    assert!(matches!(
        error,
        RcarError::Call(CallError::Malformed { at: "selected-hash-algorithm", .. })
    ));
}

#[tokio::test]
async fn answers_that_are_not_those_of_a_kbs_are_told_as_such() {
    let malformed = |error: RcarError| match error {
        RcarError::Call(CallError::Malformed { at, .. }) => at,
        other => panic!("{other:?}"),
    };
    let challenge = r#"{"nonce":"bg==","extra-params":""}"#;
    for (script, at) in [
        (Script::default().answer(200, Some(COOKIE), "<html>"), "the body"),
        (Script::default().answer(401, None, "<html>"), "the error body"),
        (Script::default().answer(302, None, ""), "the error body"),
        (Script::default().answer(200, None, challenge), "the session cookie"),
        (
            Script::default().answer(200, Some("kbs-session-id=a b"), challenge),
            "the session cookie",
        ),
        (
            Script::default().answer(200, Some(COOKIE), "x".repeat(3_000_000)),
            "the size of the body",
        ),
    ] {
        let error = fetch(&[script.serve().await]).await.unwrap_err();
        assert_eq!(malformed(error), at);
    }
    let script = Script::default().answer(503, None, "{}");
    let error = fetch(&[script.serve().await]).await.unwrap_err();
    assert!(matches!(error, RcarError::Call(CallError::Unavailable { status: 503, .. })));
    assert!(error.is_retryable());
    let other = EcPrivateKey::generate(Curve::P256, &mut EntropyRng::new(&SeededEntropy::new(5)));
    let jwe = crate::jwe::encrypt(
        &other.public(),
        &sample::secret(1),
        &mut EntropyRng::new(&SeededEntropy::new(6)),
    );
    let jwe = serde_json::to_string(&jwe.unwrap()).unwrap();
    let script = Script::default().handshake().answer(200, None, jwe);
    let error = fetch(&[script.serve().await]).await.unwrap_err();
    assert!(matches!(error, RcarError::Jwe { .. }));
}

/// An address on which no process listens any more.
async fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[tokio::test]
async fn servers_are_tried_in_order_and_the_most_telling_error_is_given() {
    let error = fetch(&[nobody().await]).await.unwrap_err();
    assert_eq!(error.code(), Code::ServerUnreachable);
    assert!(error.is_retryable());

    let script = Script::default().handshake().error("PolicyDeny", "");
    let urls = [nobody().await, script.serve().await, nobody().await];
    let error = fetch(&urls).await.unwrap_err();
    assert_eq!(error.code(), Code::ReleaseDenied);
}

#[test]
fn clients_need_a_server_and_usable_bundles() {
    let make = |servers: &[Endpoint]| {
        let entropy = Arc::new(SeededEntropy::new(1));
        RcarClient::new(servers, Deadlines::default(), &provider(), entropy)
    };
    assert!(matches!(make(&[]), Err(SetupError::NoServer)));
    for pem in ["garbage", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        let endpoint = Endpoint::new("https://kbs:8080".parse().unwrap(), pem);
        assert!(matches!(make(&[endpoint]), Err(SetupError::Ca { .. })));
    }
}

#[cfg(feature = "kbs")]
mod with_kbs {
    use tec_core::attest::{PinnedPcrs, Tee};
    use tec_core::port::{KeyBroker as _, PolicySlot};
    use tec_core::testing::ManualClock;

    use super::*;
    use crate::kbs::{Kbs, KbsConfig, MemoryBackend};
    use crate::policy::{PolicyIntent, ak_reference_name, ak_reference_value};
    use crate::testing::{FakeVerifier, serve_tls};
    use crate::token::TokenSigner;

    async fn kbs() -> Kbs {
        let backend = Arc::new(MemoryBackend::new());
        let intent = PolicyIntent::new(PinnedPcrs::boot_manager(), [Tee::Tpm]).unwrap();
        let ak = sample::public_key(1);
        let image = sample::image(1).expected.pcrs[0].value.to_string();
        for (slot, text) in [
            (PolicySlot::Attestation, intent.render_attestation()),
            (PolicySlot::Resource, intent.render_resource()),
        ] {
            backend.set_policy(slot, &text).await.unwrap();
        }
        for (name, value) in [
            ("tpm_pcr4".to_owned(), serde_json::json!([image])),
            (ak_reference_name(&ak), ak_reference_value(&ak, &sample::machine_id(1))),
        ] {
            backend.set_reference_value(&name, &value).await.unwrap();
        }
        let path = sample::secret_path(1);
        backend.put(&path, &sample::secret(1)).await.unwrap();
        let signer = TokenSigner::random(&mut EntropyRng::new(&SeededEntropy::new(2)));
        Kbs::new(KbsConfig::new(
            backend,
            Arc::new(FakeVerifier),
            signer,
            Arc::new(ManualClock::new(sample::time(0))),
            Arc::new(SeededEntropy::new(3)),
        ))
    }

    fn is_tls(error: &RcarError) -> bool {
        matches!(error, RcarError::Call(CallError::Tls { .. }))
    }

    #[tokio::test]
    async fn the_pinned_bundle_alone_is_trusted() {
        let (pem, url) = serve_tls("localhost", kbs().await.router());
        let (other, _) = serve_tls("localhost", kbs().await.router());
        let path = sample::secret_path(1);
        let attester = FakeAttester::new(1, 1);
        let with = |pem: &str| client_of(&[Endpoint::new(url.parse().unwrap(), pem)]);
        assert!(with(&pem).fetch(&path, &attester).await.is_ok());
        for pem in [other, String::new()] {
            let error = with(&pem).fetch(&path, &attester).await.unwrap_err();
            assert!(is_tls(&error), "{error:?}");
            assert_eq!(error.code(), Code::TlsFailed);
        }
        let (pem, url) = serve_tls("elsewhere.example", kbs().await.router());
        let wrong_name = client_of(&[Endpoint::new(url.parse().unwrap(), pem)]);
        let error = wrong_name.fetch(&path, &attester).await.unwrap_err();
        assert!(is_tls(&error));
    }
}
