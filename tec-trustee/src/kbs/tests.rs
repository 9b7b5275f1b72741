//! The KBS through its router, without a socket. `World` holds registries with one machine, one key and one
//! image, and a verifier that trusts the evidence.

mod admin;
mod authorities;
mod escrow;
mod evidence;
mod held;
mod malformed;
mod mixed;
mod next_boot;
mod races;
mod rotation;
mod shared;

use axum::body::to_bytes;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, SET_COOKIE};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use tec_core::attest::{PinnedPcrs, Tee};
use tec_core::code::Code;
use tec_core::explain::{Gate, StepState};
use tec_core::id::{MachineId, ResourcePath};
use tec_core::machine::Machine;
use tec_core::port::{
    AkRegistry, AttemptLog, AuditAction, AuditSink, ImageRegistry, KeyBroker, MachineRegistry,
    PolicySlot, SecretStore, UnclaimedLimit,
};
use tec_core::testing::{ManualClock, MemoryRegistry, SeededEntropy, sample};

use super::*;
use crate::jwe::{Curve, EcPrivateKey, Jwe};
use crate::policy::PolicyIntent;
use crate::report_data;
use crate::report_data::HashAlgorithm;
use crate::testing::{FakeAttester, FakeVerifier};
use crate::token::TokenSigner;
use crate::wire::ErrorBody;

fn rng(seed: u64) -> rand_chacha::ChaCha20Rng {
    use rand_core::SeedableRng as _;
    rand_chacha::ChaCha20Rng::seed_from_u64(seed)
}

struct World {
    kbs: Kbs,
    registry: Arc<MemoryRegistry>,
    clock: Arc<ManualClock>,
    attester: FakeAttester,
}

fn config(backend: Arc<dyn Backend>, clock: &Arc<ManualClock>) -> KbsConfig {
    KbsConfig::new(
        backend,
        Arc::new(FakeVerifier),
        signer(),
        Arc::clone(clock) as _,
        Arc::new(SeededEntropy::new(8)),
    )
}

/// The signer of every broker here.
fn signer() -> TokenSigner {
    TokenSigner::random(&mut rng(7))
}

fn intent() -> PolicyIntent {
    PolicyIntent::new(PinnedPcrs::boot_manager(), [Tee::Tpm]).unwrap()
}

async fn register(registry: &MemoryRegistry, number: u64) {
    let machines: &dyn MachineRegistry = registry;
    let machine: Machine = sample::machine(number);
    machines.create(&machine, UnclaimedLimit::Unlimited).await.unwrap();
    let aks: &dyn AkRegistry = registry;
    aks.submit(&sample::ak(number, number), &sample::line()).await.unwrap();
    aks.bind(&sample::approved_ak(number, number), &sample::line()).await.unwrap();
    let secrets: &dyn SecretStore = registry;
    secrets
        .put_new(&sample::secret_path(number), &sample::secret(number), &sample::line())
        .await
        .unwrap();
}

fn ports(registry: &Arc<MemoryRegistry>, clock: &Arc<ManualClock>) -> LivePorts {
    LivePorts::of(Arc::clone(registry), Arc::clone(clock) as _)
}

impl World {
    async fn new() -> Self {
        let registry = Arc::new(MemoryRegistry::new());
        let clock = Arc::new(ManualClock::new(sample::time(1000)));
        register(&registry, 1).await;
        register(&registry, 2).await;
        let images: &dyn ImageRegistry = &*registry;
        images.put(&sample::image(1)).await.unwrap();
        let backend = LiveBackend::new(ports(&registry, &clock), &intent());
        Self {
            kbs: Kbs::new(config(Arc::new(backend), &clock)),
            registry,
            clock,
            attester: FakeAttester::new(1, 1),
        }
    }

    async fn revoke(&self, machine: u64) {
        let machines: &dyn MachineRegistry = &*self.registry;
        let machine = sample::machine_id(machine);
        machines.revoke(&machine, &sample::line()).await.unwrap();
    }

    fn audit(&self, action: AuditAction) -> usize {
        let events = self.registry.events();
        events.iter().filter(|event| event.action == action).count()
    }
}

struct Answer {
    status: StatusCode,
    cookie: Option<String>,
    content_type: Option<String>,
    body: Vec<u8>,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    fn error(&self) -> ErrorBody {
        assert_eq!(self.content_type, None, "errors carry no content type");
        serde_json::from_slice(&self.body).unwrap()
    }

    #[track_caller]
    fn is_error(&self, status: u16, kind: &ErrorKind) {
        let body = self.error();
        assert_eq!((self.status.as_u16(), &body.error_kind()), (status, kind), "{body:?}");
        assert!(body.kind.starts_with(crate::wire::ERROR_NAMESPACE));
    }
}

struct Ask {
    method: &'static str,
    path: String,
    body: Vec<u8>,
    cookie: Option<String>,
    bearer: Option<String>,
}

fn post(path: &str, body: impl AsRef<[u8]>) -> Ask {
    Ask {
        method: "POST",
        path: format!("/kbs/v0/{path}"),
        body: body.as_ref().to_vec(),
        cookie: None,
        bearer: None,
    }
}

fn get(path: &str) -> Ask {
    Ask { method: "GET", ..post(path, "") }
}

impl Ask {
    fn cookie(mut self, cookie: &str) -> Self {
        self.cookie = Some(cookie.to_owned());
        self
    }

    fn bearer(mut self, token: &str) -> Self {
        self.bearer = Some(token.to_owned());
        self
    }

    async fn of(self, kbs: &Kbs) -> Answer {
        let mut request = Request::builder().method(self.method).uri(self.path);
        if let Some(cookie) = self.cookie {
            request = request.header("cookie", format!("a=b; kbs-session-id={cookie}; c=d"));
        }
        if let Some(token) = self.bearer {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(Body::from(self.body)).unwrap();
        let response = serve(State(kbs.clone()), request).await;
        let header = |name| {
            let value: Option<&axum::http::HeaderValue> = response.headers().get(name);
            value.map(|value| value.to_str().unwrap().to_owned())
        };
        let cookie = header(SET_COOKIE);
        let content_type = header(CONTENT_TYPE);
        Answer {
            status: response.status(),
            cookie,
            content_type,
            body: to_bytes(response.into_body(), 10_000_000).await.unwrap().to_vec(),
        }
    }
}

const AUTH: &str = r#"{"version":"0.4.0","tee":"tpm","extra-params":{"future":1},"more":2}"#;

async fn auth(kbs: &Kbs) -> (String, String) {
    let answer = post("auth", AUTH).of(kbs).await;
    assert_eq!(answer.status, StatusCode::OK);
    let cookie = answer.cookie.unwrap();
    let id = cookie.split(['=', ';']).nth(1).unwrap().to_owned();
    let body: Value = serde_json::from_slice(&answer.body).unwrap();
    (id, body["nonce"].as_str().unwrap().to_owned())
}

fn session_key() -> EcPrivateKey {
    EcPrivateKey::generate(Curve::P256, &mut rng(9))
}

#[test]
fn secrets_are_not_printed() {
    assert_eq!(format!("{:?}", signer()), "TokenSigner([redacted], 0 certificates)");
    assert_eq!(format!("{:?}", session_key()), "EcPrivateKey(P-256, [redacted])");
    let id = session_id::SessionId::random(&SeededEntropy::new(1));
    assert_eq!(format!("{id:?}"), "SessionId([redacted])");
}

async fn request(nonce: &str, attester: &FakeAttester) -> Value {
    use tec_core::port::Attester as _;
    let key = serde_json::to_value(session_key().public()).unwrap();
    let data = report_data::primary(nonce, &key, "", HashAlgorithm::Sha384).unwrap();
    let evidence = attester.attest(&data).await.unwrap().evidence;
    json!({
        "init-data": null,
        "runtime-data": {"nonce": nonce, "tee-pubkey": key},
        "tee-evidence": {"primary_evidence": evidence, "additional_evidence": ""},
    })
}

/// Attests and returns the cookie and the answer.
async fn attest_with(world: &World, attester: &FakeAttester) -> (String, Answer) {
    let (cookie, nonce) = auth(&world.kbs).await;
    let body = request(&nonce, attester).await;
    let ask = post("attest", body.to_string()).cookie(&cookie);
    let answer = ask.of(&world.kbs).await;
    (cookie, answer)
}

async fn attest(world: &World) -> String {
    let (cookie, answer) = attest_with(world, &world.attester).await;
    assert_eq!(answer.status, StatusCode::OK);
    cookie
}

fn own_path() -> String {
    format!("resource/{}", sample::secret_path(1))
}

#[tokio::test]
async fn policies_of_an_embedder_refuse_more_and_never_less() {
    const LENIENT: &str = "package policy\nimport rego.v1\n\
        trust_claims := {\"hardware\": 2, \"configuration\": 2, \"executables\": 2}";
    let world = World::new().await;
    let backend = |resource: &str| {
        let ports = ports(&world.registry, &world.clock);
        LiveBackend::new(ports, &intent()).with_policies(LENIENT, resource)
    };
    let status = async |allow: bool, attester: &FakeAttester| {
        let resource = format!("package policy\nimport rego.v1\nallow := {allow}");
        let kbs = Kbs::new(config(Arc::new(backend(&resource).unwrap()), &world.clock));
        let (cookie, nonce) = auth(&kbs).await;
        let body = request(&nonce, attester).await;
        post("attest", body.to_string()).cookie(&cookie).of(&kbs).await;
        get(&own_path()).cookie(&cookie).of(&kbs).await.status
    };
    assert_eq!(status(true, &world.attester).await, StatusCode::OK);
    assert_eq!(status(false, &world.attester).await, StatusCode::UNAUTHORIZED);
    for stranger in [FakeAttester::new(99, 1), FakeAttester::new(1, 2)] {
        assert_eq!(status(true, &stranger).await, StatusCode::UNAUTHORIZED);
    }
    assert!(backend("package other").is_err());
}

#[tokio::test]
async fn the_path_of_another_machine_is_refused_and_told_as_such() {
    let world = World::new().await;
    let cookie = attest(&world).await;
    let path = format!("resource/{}", sample::secret_path(2));
    let answer = get(&path).cookie(&cookie).of(&world.kbs).await;
    answer.is_error(401, &ErrorKind::PolicyDeny);
    assert_eq!(answer.error().code(), Some(Code::ReleaseDenied));
    assert_eq!(world.audit(AuditAction::KeyReleased), 0);
    assert_eq!(world.audit(AuditAction::KeyRefused), 1);
    let attempts: &dyn AttemptLog = &*world.registry;
    let id = answer.error().attempt().unwrap();
    let attempt = attempts.find(&id).await.unwrap().unwrap();
    assert_eq!(attempt.ladder.first_failure().unwrap().gate, Gate::ReleasePolicy);
}

/// Checks that the resource is denied with this code although the session is attested.
async fn denied_after(world: &World, cookie: &str, code: Code) {
    let answer = get(&own_path()).cookie(cookie).of(&world.kbs).await;
    answer.is_error(401, &ErrorKind::PolicyDeny);
    assert_eq!(answer.error().code(), Some(code));
    assert_eq!(world.audit(AuditAction::KeyReleased), 0);
}

#[tokio::test]
async fn revocation_counts_at_once_for_sessions_that_exist() {
    let world = World::new().await;
    let cookie = attest(&world).await;
    world.revoke(1).await;
    denied_after(&world, &cookie, Code::MachineUnknown).await;

    let world = World::new().await;
    let cookie = attest(&world).await;
    let aks: &dyn AkRegistry = &*world.registry;
    let key = sample::public_key(1).fingerprint();
    aks.revoke(&key, &sample::line()).await.unwrap();
    denied_after(&world, &cookie, Code::AkNotBound).await;

    let world = World::new().await;
    let cookie = attest(&world).await;
    let images: &dyn ImageRegistry = &*world.registry;
    images.revoke(&sample::image_name(1), &sample::line_at(1000)).await.unwrap();
    denied_after(&world, &cookie, Code::PcrMismatch).await;

    // Another image under the name of the one that was booted.
    let world = World::new().await;
    let cookie = attest(&world).await;
    let images: &dyn ImageRegistry = &*world.registry;
    let mut other = sample::image(2);
    other.name = sample::image_name(1);
    images.put(&other).await.unwrap();
    denied_after(&world, &cookie, Code::PcrMismatch).await;
}

#[tokio::test]
async fn a_refused_attempt_has_a_token_that_opens_nothing() {
    let cases = [
        (FakeAttester::new(99, 1), Code::AkNotBound, 0),
        (FakeAttester::new(1, 2), Code::PcrMismatch, 1),
    ];
    for (attester, code, audited) in cases {
        let world = World::new().await;
        let (cookie, answer) = attest_with(&world, &attester).await;
        assert_eq!(answer.status, StatusCode::OK);
        let token = answer.json()["token"].as_str().unwrap().to_owned();
        let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
        let claims: Value = serde_json::from_slice(&payload).unwrap();
        assert_ne!(claims["submods"]["cpu0"]["ear.status"], "affirming");
        assert_eq!(claims["submods"]["cpu0"]["tec.refused"], code.as_str());
        assert_eq!(world.audit(AuditAction::KeyRefused), audited);
        let answer = get(&own_path()).cookie(&cookie).of(&world.kbs).await;
        answer.is_error(401, &ErrorKind::PolicyDeny);
        let detail = answer.error().detail;
        assert_eq!(answer.error().code(), Some(code));
        assert!(detail.starts_with(&format!("{code} {} (attempt ", code.title())));
    }
}

#[tokio::test]
async fn a_missing_key_has_its_own_error() {
    let world = World::new().await;
    let cookie = attest(&world).await;
    let secrets: &dyn SecretStore = &*world.registry;
    secrets.remove(&sample::secret_path(1)).await.unwrap();
    let answer = get(&own_path()).cookie(&cookie).of(&world.kbs).await;
    answer.is_error(401, &ErrorKind::PluginInternalError);
    assert_eq!(answer.error().code(), Some(Code::KeyMissing));
}

#[tokio::test]
async fn evidence_of_an_old_session_is_refused_and_recorded() {
    let world = World::new().await;
    let (_, old_nonce) = auth(&world.kbs).await;
    let old = request(&old_nonce, &world.attester).await;
    let (cookie, nonce) = auth(&world.kbs).await;
    let answer = post("attest", old.to_string()).cookie(&cookie).of(&world.kbs).await;
    answer.is_error(401, &ErrorKind::AttestationError);
    assert_eq!(answer.error().code(), Some(Code::QuoteInvalid));

    // The nonce is spent: good evidence comes too late.
    let good = request(&nonce, &world.attester).await;
    let answer = post("attest", good.to_string()).cookie(&cookie).of(&world.kbs).await;
    answer.is_error(401, &ErrorKind::AttestationError);

    // Old evidence under the new nonce does not verify.
    let (cookie, nonce) = auth(&world.kbs).await;
    let mut replay = old;
    replay["runtime-data"]["nonce"] = nonce.into();
    let answer = post("attest", replay.to_string()).cookie(&cookie).of(&world.kbs).await;
    answer.is_error(401, &ErrorKind::AttestationError);
    let id = answer.error().attempt().unwrap();
    let attempts: &dyn AttemptLog = &*world.registry;
    let attempt = attempts.find(&id).await.unwrap().unwrap();
    let failure = attempt.ladder.first_failure().unwrap();
    assert_eq!(failure.gate, Gate::NonceAndSignature);
    assert_eq!(failure.state, StepState::Failed);
    assert_eq!(attempts.latest(None, 9).await.unwrap().len(), 2);
}

#[tokio::test]
async fn tokens_of_other_signers_open_nothing() {
    let world = World::new().await;
    let (_, answer) = attest_with(&world, &world.attester).await;
    let token = answer.json()["token"].as_str().unwrap().to_owned();
    let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
    let claims: Value = serde_json::from_slice(&payload).unwrap();
    let forged = TokenSigner::random(&mut rng(66)).sign(&claims).unwrap();
    let answer = get(&own_path()).bearer(&forged).of(&world.kbs).await;
    answer.is_error(401, &ErrorKind::TokenVerifierError);
    let answer = get(&own_path()).bearer("garbage").of(&world.kbs).await;
    answer.is_error(401, &ErrorKind::TokenVerifierError);

    // Even a token of the own signer opens nothing without an attested session of this server.
    let config = config(Arc::new(live_of(&world)), &world.clock);
    let answer = get(&own_path()).bearer(&token).of(&Kbs::new(config)).await;
    answer.is_error(401, &ErrorKind::PolicyDeny);
    assert_eq!(world.audit(AuditAction::KeyReleased), 0);
}

fn live_of(world: &World) -> LiveBackend {
    LiveBackend::new(ports(&world.registry, &world.clock), &intent())
}

#[tokio::test]
async fn malformed_attestations_are_recorded_and_never_verified() {
    let world = World::new().await;
    let changes: [(&str, Value); 8] = [
        ("/tee-evidence/additional_evidence", json!(r#"{"nvidia":{}}"#)),
        ("/tee-evidence/additional_evidence", json!("garbage")),
        ("/tee-evidence", json!({})),
        ("/runtime-data/tee-pubkey", json!({"kty": "EC"})),
        ("/runtime-data/tee-pubkey/x", json!("AAAA")),
        ("/runtime-data/tee-pubkey/alg", json!("RSA1_5")),
        ("/init-data", json!({"format": "json", "body": "{}"})),
        ("/tee-evidence/primary_evidence", json!("garbage")),
    ];
    for (pointer, value) in changes {
        let (cookie, nonce) = auth(&world.kbs).await;
        let mut body = request(&nonce, &world.attester).await;
        *body.pointer_mut(pointer).unwrap() = value;
        let answer = post("attest", body.to_string()).cookie(&cookie).of(&world.kbs).await;
        answer.is_error(401, &ErrorKind::AttestationError);
        assert_eq!(answer.error().code(), Some(Code::EvidenceMalformed), "{pointer}");
        assert!(answer.error().attempt().is_some());
    }
    let attempts = world.registry.latest(None, 100).await.unwrap();
    assert_eq!(attempts.len(), 8);
    assert_eq!(world.audit(AuditAction::KeyRefused), 0);
}

#[tokio::test]
async fn the_number_of_sessions_is_bounded() {
    let clock = Arc::new(ManualClock::new(sample::time(0)));
    let config = config(Arc::new(MemoryBackend::new()), &clock).with_limits(2, 1000);
    let kbs = Kbs::new(config);
    for _ in 0..2 {
        auth(&kbs).await;
    }
    post("auth", AUTH).of(&kbs).await.is_error(503, &ErrorKind::AttestationError);
    clock.advance_seconds(300);
    auth(&kbs).await;
}

/// An admin's key and a token signed with it.
fn admin(claims: &Value) -> (AdminAuth, String) {
    use ed25519_dalek::Signer as _;
    use ed25519_dalek::pkcs8::EncodePublicKey as _;
    let key = ed25519_dalek::SigningKey::from_bytes(&[5; 32]);
    let pem = key
        .verifying_key()
        .to_public_key_pem(ed25519_dalek::pkcs8::spki::der::pem::LineEnding::LF)
        .unwrap();
    let header = URL_SAFE_NO_PAD.encode(r#"{"typ":"JWT","alg":"EdDSA"}"#);
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims.to_string()));
    let signature = URL_SAFE_NO_PAD.encode(key.sign(signed.as_bytes()).to_bytes());
    (AdminAuth::from_pem(&pem).unwrap(), format!("{signed}.{signature}"))
}

/// A KBS like Trustee, which an admin supplies through the API.
async fn fed_kbs() -> (Kbs, String) {
    let clock = Arc::new(ManualClock::new(sample::time(1000)));
    let (auth, token) = admin(&json!({"role": "admin", "exp": i32::MAX}));
    let config = config(Arc::new(MemoryBackend::new()), &clock).with_admin(auth);
    let kbs = Kbs::new(config);
    let feed = async |path: &str, body: String| {
        let answer = post(path, body).bearer(&token).of(&kbs).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}");
    };
    let encoded = URL_SAFE_NO_PAD.encode(intent().render_attestation());
    let policy = json!({"type": "rego", "policy_id": "default_cpu", "policy": encoded});
    feed("attestation-policy", policy.to_string()).await;
    let encoded = URL_SAFE_NO_PAD.encode(intent().render_resource());
    feed("resource-policy", json!({"policy": encoded}).to_string()).await;
    let image = sample::image(1).expected.pcrs[0].value.to_string();
    let (ak, id): (_, MachineId) = (sample::public_key(1), sample::machine_id(1));
    let values = json!({
        "tpm_pcr4": [image],
        crate::policy::ak_reference_name(&ak): crate::policy::ak_reference_value(&ak, &id),
    });
    let payload = STANDARD.encode(values.to_string());
    let message = json!({"version": "0.1.0", "type": "sample", "payload": payload});
    feed("reference-value", message.to_string()).await;
    for number in [1, 2] {
        let path = format!("resource/{}", sample::secret_path(number));
        feed(&path, format!("secret {number}")).await;
    }
    (kbs, token)
}

#[tokio::test]
async fn the_admin_api_answers_as_documented() {
    let (kbs, token) = fed_kbs().await;
    let ask = |ask: Ask| ask.bearer(&token).of(&kbs);
    let answer = ask(get("reference-value/tpm_pcr4")).await;
    assert_eq!(answer.json().as_array().unwrap().len(), 1);
    ask(get("reference-value/unknown")).await.is_error(401, &ErrorKind::RvpsError);
    assert_eq!(ask(get("resource-policy")).await.json(), json!(["resource-policy"]));
    let delete = |path: &str| Ask { method: "DELETE", ..post(path, "") };
    assert_eq!(ask(delete(&own_path())).await.status, StatusCode::OK);
    ask(delete(&own_path())).await.is_error(401, &ErrorKind::PluginInternalError);
    let padded = base64::engine::general_purpose::URL_SAFE.encode("package policy");
    for policy in [padded, URL_SAFE_NO_PAD.encode("package x"), "!".to_owned()] {
        let body = json!({"policy": policy}).to_string();
        ask(post("resource-policy", body)).await.is_error(401, &ErrorKind::ParsePolicyError);
    }
    ask(post("resource-policy", "{}")).await.is_error(401, &ErrorKind::SerdeError);
    for message in [
        json!({"type": "swid", "payload": ""}),
        json!({"type": "sample", "payload": "!"}),
        json!({"type": "sample", "payload": STANDARD.encode("[]")}),
        json!({"type": "sample", "payload": STANDARD.encode("{\"../x\":1}")}),
        json!({"version": "0.2.0", "type": "sample", "payload": STANDARD.encode("{}")}),
    ] {
        let answer = ask(post("reference-value", message.to_string())).await;
        answer.is_error(401, &ErrorKind::RvpsError);
    }
    let revoked = json!({"type": "sample", "payload": STANDARD.encode(r#"{"tpm_pcr4":null}"#)});
    let answer = ask(post("reference-value", revoked.to_string())).await;
    assert_eq!(answer.content_type.as_deref(), Some("application/json"));
    let put = Ask { method: "PUT", ..post(&own_path(), "x") };
    ask(put).await.is_error(401, &ErrorKind::TokenNotFound);
}

#[tokio::test]
async fn admin_requests_without_a_good_token_are_refused() {
    let (kbs, _) = fed_kbs().await;
    let good = json!({"role": "admin", "exp": i32::MAX});
    let wrong = [
        json!({"role": "user", "exp": i32::MAX}),
        json!({"exp": i32::MAX}),
        json!({"role": ["admin"], "exp": i32::MAX}),
        json!({"role": "admin", "exp": 1}),
        json!({"role": "admin"}),
    ];
    for claims in &wrong {
        let answer = post(&own_path(), "x").bearer(&admin(claims).1).of(&kbs).await;
        answer.is_error(401, &ErrorKind::AdminAuthAccess);
    }
    post(&own_path(), "x").of(&kbs).await.is_error(401, &ErrorKind::AdminAuthAccess);

    // Without an admin key nobody is an admin, and content managed elsewhere takes no writes.
    let world = World::new().await;
    let answer = post(&own_path(), "x").bearer(&admin(&good).1).of(&world.kbs).await;
    answer.is_error(401, &ErrorKind::AdminAuthAccess);
    let config = config(Arc::new(live_of(&world)), &world.clock).with_admin(admin(&good).0);
    let answer = post(&own_path(), "x").bearer(&admin(&good).1).of(&Kbs::new(config)).await;
    answer.is_error(401, &ErrorKind::PluginInternalError);
}

#[test]
fn the_audience_counts_where_it_is_demanded() {
    let claims = json!({"role": "admin", "exp": 100, "aud": ["x", "a"]});
    let (auth, token) = admin(&claims);
    let now = tec_core::time::Timestamp::from_unix_seconds(50);
    assert!(auth.accepts(&token, now));
    assert!(auth.clone().with_audience("a").accepts(&token, now));
    assert!(!auth.with_audience("b").accepts(&token, now));
    assert!(AdminAuth::from_pem("-----BEGIN PUBLIC KEY-----").is_err());
}

#[tokio::test]
async fn without_policies_everything_is_denied() {
    let clock = Arc::new(ManualClock::new(sample::time(1000)));
    let backend = Arc::new(MemoryBackend::new());
    let path: ResourcePath = sample::secret_path(1);
    KeyBroker::put(&*backend, &path, &sample::secret(1)).await.unwrap();
    let kbs = Kbs::new(config(Arc::clone(&backend) as _, &clock));
    for policies in 0..2 {
        let (cookie, nonce) = auth(&kbs).await;
        let body = request(&nonce, &FakeAttester::new(1, 1)).await;
        post("attest", body.to_string()).cookie(&cookie).of(&kbs).await;
        let answer = get(&own_path()).cookie(&cookie).of(&kbs).await;
        answer.is_error(401, &ErrorKind::PolicyDeny);
        if policies == 0 {
            let text = intent().render_resource();
            backend.set_policy(PolicySlot::Resource, &text).await.unwrap();
        }
    }
}

#[tokio::test]
async fn sample_evidence_needs_the_dangerous_switch() {
    let clock = Arc::new(ManualClock::new(sample::time(1000)));
    let backend = Arc::new(MemoryBackend::new());
    let allow = "package policy\nimport rego.v1\nallow if input.submods.cpu0[\"ear.veraison.\
        annotated-evidence\"].sample.svn == \"1\"\n";
    backend.set_policy(PolicySlot::Resource, allow).await.unwrap();
    let path = sample::secret_path(1);
    KeyBroker::put(&*backend, &path, &sample::secret(1)).await.unwrap();
    let config = config(backend, &clock).dangerous_accept_sample();
    let kbs = Kbs::new(config);
    for (fill, status) in [(None, 200), (Some(0_u8), 401)] {
        let body = AUTH.replace("tpm", "sample");
        let answer = post("auth", body).of(&kbs).await;
        let nonce = answer.json()["nonce"].as_str().unwrap().to_owned();
        let cookie = answer.cookie.unwrap();
        let cookie = cookie.split(['=', ';']).nth(1).unwrap().to_owned();
        let key = serde_json::to_value(session_key().public()).unwrap();
        let mut data = report_data::primary(&nonce, &key, "", HashAlgorithm::Sha384).unwrap();
        if let Some(fill) = fill {
            data = [fill; 48];
        }
        let evidence = json!({"svn": "1", "report_data": STANDARD.encode(data)});
        let body = json!({
            "runtime-data": {"nonce": nonce, "tee-pubkey": key},
            "tee-evidence": {"primary_evidence": evidence, "additional_evidence": ""},
        });
        let answer = post("attest", body.to_string()).cookie(&cookie).of(&kbs).await;
        assert_eq!(answer.status.as_u16(), status);
        let answer = get(&own_path()).cookie(&cookie).of(&kbs).await;
        assert_eq!(answer.status.as_u16(), status);
    }
}

#[tokio::test]
async fn init_data_reaches_verifier_policy_and_token() {
    let world = World::new().await;
    let (cookie, nonce) = auth(&world.kbs).await;
    let mut body = request(&nonce, &world.attester).await;
    let text = "version = \"0.1.0\"\nalgorithm = \"sha256\"\n[data]\nuuid = \"7c9e\"\n";
    body["init-data"] = json!({"format": "toml", "body": text});
    let answer = post("attest", body.to_string()).cookie(&cookie).of(&world.kbs).await;
    let token = answer.json()["token"].as_str().unwrap().to_owned();
    let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
    let claims: Value = serde_json::from_slice(&payload).unwrap();
    let evidence = &claims["submods"]["cpu0"]["ear.veraison.annotated-evidence"];
    assert_eq!(evidence["init_data_claims"]["uuid"], "7c9e");
    let digest = tec_core::digest::Sha256Digest::of(text).to_string();
    assert_eq!(evidence["init_data"], digest.as_str());
    assert_eq!(evidence["runtime_data_claims"]["nonce"], nonce.as_str());
    assert!(evidence["tpm"]["pcr04"].is_string());
}

#[tokio::test]
async fn no_key_leaves_when_the_audit_log_is_away() {
    use tec_core::testing::{Fault, Faulty};
    let world = World::new().await;
    let broken: Arc<dyn AuditSink> =
        Arc::new(Faulty::crash_at(Arc::clone(&world.registry), 0, Fault::Before));
    let ports = LivePorts { audit: broken, ..ports(&world.registry, &world.clock) };
    let backend = LiveBackend::new(ports, &intent());
    let kbs = Kbs::new(config(Arc::new(backend), &world.clock));
    let (cookie, nonce) = auth(&kbs).await;
    let body = request(&nonce, &world.attester).await;
    post("attest", body.to_string()).cookie(&cookie).of(&kbs).await;
    let answer = get(&own_path()).cookie(&cookie).of(&kbs).await;
    answer.is_error(401, &ErrorKind::PluginInternalError);
}

#[tokio::test]
async fn the_memory_backend_keeps_the_contract_of_a_key_broker() {
    tec_core::testing::key_broker(async || MemoryBackend::new()).await;
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(200))]
    #[test]
    fn whatever_is_sent_is_answered_in_the_form_of_the_protocol(
        method in proptest::sample::select(vec!["GET", "POST", "PUT", "DELETE", "PATCH"]),
        path in "(/kbs/v0)?(/(auth|attest|resource|resource-policy|reference-value|[a-z.%0-9]{0,5})){0,5}(\\?[a-z=&%]{0,9})?",
        body in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200),
        template in proptest::prelude::any::<bool>(),
        cut in 0..400_usize,
        bearer in "[A-Za-z0-9._-]{0,60}",
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (kbs, token) = fed_kbs().await;
            let (cookie, nonce) = auth(&kbs).await;
            let good = request(&nonce, &FakeAttester::new(1, 1)).await.to_string();
            let body = if template { good.into_bytes().into_iter().take(cut).collect() } else { body };
            let path = if path.starts_with('/') { path } else { format!("/{path}") };
            for bearer in [Some(token), Some(bearer), None] {
                let ask = Ask {
                    method, path: path.clone(), body: body.clone(), bearer,
                    cookie: Some(cookie.clone()),
                };
                let answer = ask.of(&kbs).await;
                match answer.status.as_u16() {
                    200 => {}
                    // Requests that never reach the API are refused without JSON.
                    404 if !path.starts_with("/kbs/v0/") => assert!(answer.body.is_empty()),
                    405 => assert!(answer.body.is_empty()),
                    status @ (401 | 404) => {
                        assert_eq!(answer.error().error_kind().http_status(), status);
                    }
                    other => panic!("{other}"),
                }
            }
        });
    }
}
