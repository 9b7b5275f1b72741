//! The key broker service behind its router, one request after another.

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::{Body, to_bytes};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::header::{AUTHORIZATION, SET_COOKIE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use tec_core::ak::{AkRecord, ApprovedAk};
use tec_core::attest::Tee;
use tec_core::digest::Sha256Digest;
use tec_core::id::{MachineId, ResourcePath};
use tec_core::image::{ApprovedImage, ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::machine::{Machine, RegisteredBy};
use tec_core::pcr::PcrIndex;
use tec_core::port::{
    AkRegistry, Attester as _, AuditAction, ImageRegistry, MachineRegistry, SecretStore,
    UnclaimedLimit,
};
use tec_core::secret::SecretBytes;
use tec_core::testing::sample::{line, time};
use tec_core::testing::{ManualClock, MemoryRegistry, SeededEntropy};
use tec_core::time::Timestamp;
use tec_tpm::testing::SoftTpm;
use tec_tpm::verifier::TpmVerifier;
use tec_trustee::jwe::{Curve, EcPrivateKey, Jwe};
use tec_trustee::kbs::{Kbs, KbsConfig, LiveBackend, LivePorts, MemoryBackend};
use tec_trustee::report_data::{HashAlgorithm, primary};
use tec_trustee::token::TokenSigner;
use tec_trustee::wire::{AuthRequest, ERROR_NAMESPACE, ErrorBody, ErrorKind};

use crate::Seed;
use crate::policy_text::intent;
use crate::request::{Written, requests};
use crate::sample::{MACHINE, OTHER_MACHINE, p256_tpm, ready, rng, rsa_tpm};
use crate::token::{admin_token, admins};

/// The disk keys of both machines; they must never become visible.
const SECRETS: [&[u8]; 2] = [b"the disk key of the machine", b"the disk key of another one"];
/// Placeholder for an admin's token in inputs.
const ADMIN: &str = "Bearer admin";
/// Fewer than an input can open, to exercise the limit.
const MAX_SESSIONS: usize = 4;
/// Largest body of a request, small enough for inputs to reach the limit.
const MAX_PAYLOAD: usize = 8192;

/// Every request is answered as documented in docs/reference/trustee.md, and a disk key is released only to
/// the machine that attested, at its path, encrypted to its session key, and recorded in the audit log. The
/// first byte of an input chooses the backend.
pub(crate) fn kbs(data: &[u8]) {
    let Some((choice, rest)) = data.split_first() else {
        return;
    };
    // An input that contains a key itself, which the fuzzer learns from the comparisons below, may have it
    // echoed.
    if shows_a_secret(data) {
        return;
    }
    let world = World::new(*choice);
    for request in requests(rest) {
        world.send(request);
    }
}

/// Whether the bytes contain a disk key, raw or in base64.
fn shows_a_secret(bytes: &[u8]) -> bool {
    SECRETS.iter().any(|secret| {
        let texts = [STANDARD.encode(secret), URL_SAFE_NO_PAD.encode(secret)];
        let forms = [secret, texts[0].as_bytes(), texts[1].as_bytes()];
        forms.iter().any(|form| bytes.windows(form.len()).any(|window| window == *form))
    })
}

pub(crate) struct World {
    router: Router,
    registry: Arc<MemoryRegistry>,
    is_live: bool,
}

/// An answer of the service.
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) cookie: String,
    pub(crate) body: Bytes,
}

/// The session key of the seeds.
pub(crate) fn session_key() -> &'static EcPrivateKey {
    static KEY: OnceLock<EcPrivateKey> = OnceLock::new();
    KEY.get_or_init(|| EcPrivateKey::generate(Curve::P256, &mut rng(51)))
}

fn machines() -> [MachineId; 2] {
    [MACHINE, OTHER_MACHINE].map(|id| id.parse().expect("a machine id"))
}

impl World {
    pub(crate) fn new(choice: u8) -> Self {
        let registry = Arc::new(MemoryRegistry::new());
        let clock = Arc::new(ManualClock::new(Timestamp::from_unix_seconds(1000)));
        let is_live = choice & 1 == 0;
        let signer = TokenSigner::random(&mut rng(52));
        let entropy = Arc::new(SeededEntropy::new(53));
        let verifier = Arc::new(TpmVerifier::new());
        let config = if is_live {
            ready(register(&registry));
            let ports = LivePorts::new(
                registry.clone(),
                registry.clone(),
                registry.clone(),
                registry.clone(),
                (registry.clone(), registry.clone()),
                registry.clone(),
                clock.clone(),
            );
            let backend = Arc::new(LiveBackend::new(ports, &intent()));
            KbsConfig::new(backend, verifier, signer, clock, entropy)
        } else {
            let backend = Arc::new(MemoryBackend::new());
            KbsConfig::new(backend, verifier, signer, clock, entropy).with_admin(admins())
        };
        let config = config.with_limits(MAX_SESSIONS, MAX_PAYLOAD);
        Self { router: Kbs::new(config).router(), registry, is_live }
    }

    pub(crate) fn send(&self, mut request: Request<Bytes>) -> Reply {
        if request.headers().get(AUTHORIZATION).is_some_and(|value| value == ADMIN) {
            let token = HeaderValue::try_from(format!("Bearer {}", admin_token()));
            let token = token.expect("a token is a header value");
            request.headers_mut().insert(AUTHORIZATION, token);
        }
        let method = request.method().clone();
        let path = request.uri().path().to_owned();
        let before = released(&self.registry);
        let reply = self.answer(request);
        reply.check();
        let resource = path.strip_prefix("/kbs/v0/resource/");
        match resource {
            Some(tail) if method == Method::GET && reply.status == StatusCode::OK => {
                self.check_release(tail.strip_prefix('/').unwrap_or(tail), &reply);
            }
            _ => assert_eq!(released(&self.registry), before),
        }
        reply
    }

    fn answer(&self, request: Request<Bytes>) -> Reply {
        let response = ready(answered(self.router.clone(), request));
        let (parts, body) = response.into_parts();
        let cookie = parts.headers.get(SET_COOKIE).and_then(|value| value.to_str().ok());
        let cookie = cookie.and_then(|value| value.split(';').next());
        Reply {
            status: parts.status,
            cookie: cookie.unwrap_or_default().to_owned(),
            body: ready(to_bytes(body, usize::MAX)).expect("the body is whole"),
        }
    }

    fn check_release(&self, path: &str, reply: &Reply) {
        let jwe: Jwe = serde_json::from_slice(&reply.body).expect("a resource is a JWE");
        if !self.is_live {
            return;
        }
        let own = ResourcePath::luks_root(&machines()[0]);
        assert_eq!(path, own.as_str(), "a machine has the key of its own disk");
        assert!(released(&self.registry) > 0, "releases are noted");
        let opened = session_key().decrypt(&jwe).expect("for the key in the evidence");
        assert_eq!(opened.expose("compare"), SECRETS[0]);
    }
}

impl Reply {
    fn check(&self) {
        assert!(!shows_a_secret(&self.body));
        match self.status.as_u16() {
            200 => return,
            405 | 413 => assert!(self.body.is_empty()),
            401 | 404 | 503 => {}
            other => panic!("no documented status: {other}"),
        }
        if !self.body.is_empty() {
            let error: ErrorBody = serde_json::from_slice(&self.body).expect("an error body");
            assert!(error.kind.starts_with(ERROR_NAMESPACE));
            assert!(!matches!(error.error_kind(), ErrorKind::Other(_)));
        }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }
}

/// Number of keys released.
pub(crate) fn released(registry: &MemoryRegistry) -> usize {
    let events = registry.events();
    let released = events.iter().filter(|event| event.action == AuditAction::KeyReleased);
    released.count()
}

/// The response of a router.
pub(crate) async fn answered(router: Router, request: Request<Bytes>) -> Response<Body> {
    match tower::ServiceExt::oneshot(router, request.map(Body::from)).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// Two machines with a key each, and an image that the first one boots.
pub(crate) async fn register(registry: &MemoryRegistry) {
    let aks: &dyn AkRegistry = registry;
    let all: &dyn MachineRegistry = registry;
    let secrets: &dyn SecretStore = registry;
    let images: &dyn ImageRegistry = registry;
    let keys = [p256_tpm().public_key(), rsa_tpm().public_key()];
    let failed = "registries in memory do not fail";
    for ((id, key), secret) in machines().into_iter().zip(keys).zip(SECRETS) {
        let machine = Machine::unclaimed(id, RegisteredBy::FirstBoot, time(0));
        all.create(&machine, UnclaimedLimit::Unlimited).await.expect(failed);
        let record = AkRecord::pending(key, id, None, time(0));
        let approved = ApprovedAk::dangerous_assume_approved(record);
        aks.bind(&approved, &line()).await.expect(failed);
        let secret = SecretBytes::new(secret.to_vec());
        secrets.put_new(&ResourcePath::luks_root(&id), &secret, &line()).await.expect(failed);
    }
    let expected =
        [(PcrIndex::BOOT_MANAGER, "shim"), (PcrIndex::MOK, "keys")].map(|(pcr, what)| {
            let event = ImageEvent::new("EV_IPL", pcr, Sha256Digest::of(what), what);
            ExpectedPcr::from_events(pcr, [event])
        });
    let name = "image".parse().expect("a name");
    let expected = ExpectedPcrs::new(expected.into());
    let image = ApprovedImage::new(name, "registry.example/os", expected, time(0));
    images.put(&image).await.expect(failed);
}

/// What a machine sends to `POST attest`.
pub(crate) fn attestation(tpm: &SoftTpm, nonce: &str) -> Value {
    let key = serde_json::to_value(session_key().public()).expect("an object");
    let report_data = primary(nonce, &key, "", HashAlgorithm::Sha384).expect("a digest");
    let made = ready(tpm.attest(&report_data)).expect("software does not fail");
    assert_eq!(made.tee, Tee::Tpm);
    json!({
        "init-data": null,
        "runtime-data": {"nonce": nonce, "tee-pubkey": key},
        "tee-evidence": {"primary_evidence": made.evidence, "additional_evidence": ""},
    })
}

/// A conversation that becomes a seed: requests depend on earlier answers.
struct Talk {
    world: World,
    input: Written,
}

impl Talk {
    fn new(choice: &str) -> Self {
        Self {
            world: World::new(choice.bytes().next().unwrap_or_default()),
            input: Written::new(choice),
        }
    }

    fn say(mut self, text: &str) -> (Self, Reply) {
        self.input = self.input.with(text);
        let request = requests(text.as_bytes()).next().expect("a request");
        let reply = self.world.send(request);
        (self, reply)
    }

    fn admin(self, line: &str, body: &str) -> Self {
        let (talk, reply) = self.say(&format!("{line}\nauthorization: {ADMIN}\n\n{body}"));
        assert_eq!(reply.status, StatusCode::OK, "{line}");
        talk
    }

    /// The whole handshake, then the resource; also returns the status of the last answer.
    fn handshake(self, tpm: &SoftTpm, path: &str) -> (Self, StatusCode) {
        let auth = serde_json::to_string(&AuthRequest::new("tpm", json!({}))).expect("an object");
        let (talk, reply) = self.say(&format!("POST /kbs/v0/auth\n\n{auth}"));
        let challenge = reply.json();
        let nonce = challenge.get("nonce").and_then(Value::as_str).expect("a nonce");
        let attest = attestation(tpm, nonce);
        let cookie = format!("cookie: {}", reply.cookie);
        let (talk, _) = talk.say(&format!("POST /kbs/v0/attest\n{cookie}\n\n{attest}"));
        let (talk, reply) = talk.say(&format!("GET /kbs/v0/resource/{path}?a=b\n{cookie}"));
        (talk, reply.status)
    }

    fn seed(self, name: &str) -> Seed {
        Seed::new(name, self.input.bytes())
    }
}

pub(crate) fn seeds() -> Vec<Seed> {
    let path = |machine: &str| format!("default/{machine}/root");
    let (own, status) = Talk::new("0").handshake(p256_tpm(), &path(MACHINE));
    assert_eq!(status, StatusCode::OK);
    let (foreign, status) = Talk::new("0").handshake(p256_tpm(), &path(OTHER_MACHINE));
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    let (unknown, status) =
        Talk::new("0").handshake(&SoftTpm::p256(9).with_still_clock(), &path(MACHINE));
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    let (pushed, status) = managed().handshake(p256_tpm(), "a/b/c");
    assert_eq!(status, StatusCode::OK);
    let values = STANDARD.encode(r#"{"tpm_pcr4": ["aa"]}"#);
    let values = json!({"version": "0.1.0", "type": "sample", "payload": values});
    let references = Talk::new("1")
        .admin("POST /kbs/v0/reference-value", &values.to_string())
        .admin("GET /kbs/v0/reference-value/tpm_pcr4", "")
        .admin("POST /kbs/v0/resource/a/b/c", "secret")
        .admin("DELETE /kbs/v0/resource/a/b/c", "")
        .admin("GET /kbs/v0/resource-policy", "");
    let with_admin = |more: &str| format!("GET /kbs/v0/resource-policy\n{more}");
    let headers = Written::new("1")
        .with(&with_admin(&format!("authorization: {ADMIN}\nauthorization: Bearer x")))
        .with(&with_admin("authorization: bearer"))
        .with(&with_admin("authorization: Basic YTpi\ncookie: kbs-session-id"))
        .with("POST /kbs/v0/auth\ncontent-length: 99999999999999999999\nexpect: x\n\n{}")
        .with("POST /kbs/v0/attest\ncookie: kbs-session-id=\u{e9}; kbs-session-id=00\n\n{}")
        .with("GET /metrics\nconnection: cookie");
    let twice = r#"{"policy":"","policy":"cGFja2FnZSBwb2xpY3k"}"#;
    let admin = Written::new("1")
        .with(&format!("POST /kbs/v0/resource-policy\nauthorization: {ADMIN}\n\n{twice}"))
        .with(&format!("PUT /kbs/v0/resource/a/b/c\nauthorization: {ADMIN}\n\nx"))
        .with(&format!("DELETE /kbs/v0/resource//a/b/c\nauthorization: {ADMIN}"))
        .with(&format!("GET /kbs/v0/reference-value/..%2f\nauthorization: {ADMIN}"))
        .with(&format!("POST /kbs/v0/attestation-policy\nauthorization: {ADMIN}\n\n{{}}"));
    let odd = Written::new("0")
        .with("GET /healthz")
        .with("POST /kbs/v0/auth\n\n{\"version\":\"0.1.0\",\"tee\":\"tpm\",\"extra-params\":\"\"}")
        .with("GET /kbs/v0/resource//a/b/c\nauthorization: Bearer x")
        .with("PUT /kbs/v0/nothing")
        .with("POST /kbs/v0/attest\ncookie: kbs-session-id=00\n\n{}");
    vec![
        own.seed("own_key"),
        foreign.seed("key_of_another"),
        unknown.seed("unknown_key"),
        pushed.seed("pushed"),
        references.seed("references"),
        Seed::new("headers", headers.bytes()),
        Seed::new("admin", admin.bytes()),
        Seed::new("odd", odd.bytes()),
    ]
}

/// A backend whose content was pushed by an admin.
fn managed() -> Talk {
    let head = "package policy\nimport rego.v1\n";
    let attestation = format!("{head}trust_claims := {{\"executables\": 3}}\n");
    let attestation = json!({
        "policy_id": "default_cpu", "policy": URL_SAFE_NO_PAD.encode(attestation),
    });
    let resource = format!("{head}allow if input.submods.cpu0[\"ear.status\"] == \"affirming\"\n");
    let resource = json!({"policy": URL_SAFE_NO_PAD.encode(resource)});
    Talk::new("1")
        .admin("POST /kbs/v0/attestation-policy", &attestation.to_string())
        .admin("POST /kbs/v0/resource-policy", &resource.to_string())
        .admin("POST /kbs/v0/resource/a/b/c", "secret")
}
