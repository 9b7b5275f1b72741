//! The guard in front of a Trustee that checks nothing: anyone with a session, or any token at all, gets
//! every resource.
#![expect(clippy::disallowed_methods, reason = "the double's server ends with its test")]

mod attacks;
mod authorities;
mod probes;
mod races;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Mutex;

use axum::body::to_bytes;
use axum::http::{HeaderMap, Method, StatusCode};
use serde_json::{Value, json};
use tec_core::attest::PinnedPcrs;
use tec_core::boot::WholeImages;
use tec_core::code::Code;
use tec_core::explain::{Gate, StepState};
use tec_core::flow::ReleaseError;
use tec_core::port::{
    AkRegistry, AttemptLog, Attester as _, AuditAction, ImageRegistry, MachineRegistry,
    UnclaimedLimit,
};
use tec_core::testing::{Call, Fault, Faulty, ManualClock, MemoryRegistry, SeededEntropy, sample};
use tokio::sync::{Notify, watch};

use super::*;
use crate::jwe::{Curve, EcPrivateKey};
use crate::report_data;
use crate::report_data::HashAlgorithm;
use crate::testing::{FakeAttester, FakeVerifier, never, stuck_after};
use crate::wire::{ErrorBody, ErrorKind};

const KEY: &[u8] = b"{\"ciphertext\":\"the key\"}";

#[derive(Debug, Clone, PartialEq)]
struct Seen {
    method: Method,
    path: String,
    headers: HeaderMap,
    body: Vec<u8>,
}

/// The requests to the double, and the sessions that it opened.
#[derive(Debug, Default)]
struct Lax {
    seen: Mutex<Vec<Seen>>,
    sessions: Mutex<HashSet<String>>,
    /// Answers resource requests with this refusal.
    denies: Mutex<Option<ErrorKind>>,
    /// Resources never end.
    stuck: Mutex<bool>,
    /// While it is closed, no answer leaves.
    door: Door,
}

impl Lax {
    fn paths(&self) -> Vec<String> {
        let seen = self.seen.lock().unwrap();
        seen.iter().map(|request| request.path.clone()).collect()
    }

    fn last(&self) -> Seen {
        self.seen.lock().unwrap().last().cloned().unwrap()
    }

    fn answer(&self, seen: &Seen) -> Response<Body> {
        let mut sessions = self.sessions.lock().unwrap();
        let json = |value: Value| Response::new(Body::from(value.to_string()));
        match seen.path.as_str() {
            "/kbs/v0/auth" => {
                let id = format!("{:032x}", sessions.len() + 1);
                let mut response =
                    json(json!({"nonce": format!("nonce {id}"), "extra-params": ""}));
                let cookie = format!("kbs-session-id={id}; Expires=Thu, 01 Jan 2026 00:21:40 GMT");
                response.headers_mut().insert("set-cookie", cookie.parse().unwrap());
                sessions.insert(id);
                response
            }
            "/kbs/v0/attest" => json(json!({"token": format!("token {}", sessions.len())})),
            path if path.starts_with("/kbs/v0/resource/") => {
                let denied = self.denies.lock().unwrap();
                let Some(kind) = &*denied else {
                    let body = if *self.stuck.lock().unwrap() {
                        stuck_after(KEY)
                    } else {
                        Body::from(KEY)
                    };
                    return Response::new(body);
                };
                let body = serde_json::to_vec(&ErrorBody::new(kind, "no")).unwrap();
                let mut response = Response::new(Body::from(body));
                *response.status_mut() = StatusCode::UNAUTHORIZED;
                response
            }
            _ => Response::new(Body::from(seen.body.clone())),
        }
    }

    async fn start() -> (Arc<Self>, SocketAddr) {
        let lax = Arc::new(Self::default());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(serve_lax).with_state(Arc::clone(&lax));
        tokio::spawn(async move { axum::serve(listener, router).await });
        (lax, address)
    }
}

async fn serve_lax(State(lax): State<Arc<Lax>>, request: Request<Body>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let seen = Seen {
        method: parts.method,
        path: parts.uri.path().to_owned(),
        headers: parts.headers,
        body: to_bytes(body, 1 << 20).await.unwrap().to_vec(),
    };
    let answer = lax.answer(&seen);
    lax.seen.lock().unwrap().push(seen);
    lax.door.pass().await;
    answer
}

/// Holds answers back, and reports when a request has arrived.
#[derive(Debug)]
struct Door {
    open: watch::Sender<bool>,
    came: Notify,
}

impl Default for Door {
    fn default() -> Self {
        Self { open: watch::Sender::new(true), came: Notify::new() }
    }
}

impl Door {
    async fn pass(&self) {
        let mut open = self.open.subscribe();
        if !*open.borrow() {
            self.came.notify_one();
        }
        open.wait_for(|open| *open).await.unwrap();
    }
}

struct World {
    guard: Guard,
    lax: Arc<Lax>,
    registry: Arc<MemoryRegistry>,
    clock: Arc<ManualClock>,
}

async fn register(registry: &MemoryRegistry, number: u64) {
    let machines: &dyn MachineRegistry = registry;
    let machine = sample::machine(number);
    machines.create(&machine, UnclaimedLimit::Unlimited).await.unwrap();
    let aks: &dyn AkRegistry = registry;
    let approved = sample::approved_ak(number, number);
    aks.bind(&approved, &sample::line()).await.unwrap();
}

fn registries(registry: &Arc<MemoryRegistry>, clock: &Arc<ManualClock>) -> Registries {
    Registries {
        aks: Arc::clone(registry) as _,
        boots: None,
        clocks: Arc::clone(registry) as _,
        platforms: None,
        attempts: Arc::clone(registry) as _,
        audit: Arc::clone(registry) as _,
        clock: Arc::clone(clock) as _,
    }
}

fn config(upstream: SocketAddr, gatekeeper: Registries, clock: &Arc<ManualClock>) -> GuardConfig {
    GuardConfig::new(
        upstream.to_string().parse().unwrap(),
        Arc::new(FakeVerifier),
        Arc::new(gatekeeper),
        Arc::clone(clock) as _,
        Arc::new(SeededEntropy::new(8)),
    )
}

impl World {
    async fn new() -> Self {
        Self::with(|config| config).await
    }

    async fn with(change: impl FnOnce(GuardConfig) -> GuardConfig) -> Self {
        Self::built(|gatekeeper| gatekeeper, change).await
    }

    async fn guarded_by(change: impl FnOnce(Registries) -> Registries) -> Self {
        Self::built(change, |config| config).await
    }

    /// Machines 1 and 2 with their keys, in front of a broker that releases everything.
    async fn built(
        gatekeeper: impl FnOnce(Registries) -> Registries,
        change: impl FnOnce(GuardConfig) -> GuardConfig,
    ) -> Self {
        let (lax, upstream) = Lax::start().await;
        let registry = Arc::new(MemoryRegistry::new());
        let clock = Arc::new(ManualClock::new(sample::time(1000)));
        register(&registry, 1).await;
        register(&registry, 2).await;
        let gatekeeper = gatekeeper(registries(&registry, &clock));
        Self {
            guard: Guard::new(change(config(upstream, gatekeeper, &clock))),
            lax,
            registry,
            clock,
        }
    }

    async fn revoke(&self, machine: u64) {
        let machines: &dyn MachineRegistry = &*self.registry;
        let machine = sample::machine_id(machine);
        machines.revoke(&machine, &sample::line()).await.unwrap();
    }

    async fn ask(&self, request: Request<Body>) -> (StatusCode, HeaderMap, Vec<u8>) {
        let response = serve(State(self.guard.clone()), request).await;
        let (parts, body) = response.into_parts();
        let body = to_bytes(body, 1 << 20).await.unwrap().to_vec();
        (parts.status, parts.headers, body)
    }

    /// Begins a session; returns its cookie and nonce.
    async fn auth(&self) -> (String, String) {
        let (status, headers, body) = self.ask(post("auth", AUTH)).await;
        assert_eq!(status, StatusCode::OK);
        let cookie = headers["set-cookie"].to_str().unwrap();
        let id = cookie.split(['=', ';']).nth(1).unwrap().to_owned();
        let body: Value = serde_json::from_slice(&body).unwrap();
        (id, body["nonce"].as_str().unwrap().to_owned())
    }

    async fn attest(&self, key: u64) -> (String, StatusCode, Vec<u8>) {
        let (id, nonce) = self.auth().await;
        let evidence = evidence(&nonce, key).await;
        let request = with_cookie(post("attest", &evidence), &id);
        let (status, _, body) = self.ask(request).await;
        (id, status, body)
    }

    async fn get(&self, machine: u64, cookie: &str) -> (StatusCode, HeaderMap, Vec<u8>) {
        self.ask(with_cookie(get(machine), cookie)).await
    }

    fn audit(&self, action: AuditAction) -> usize {
        let events = self.registry.events();
        events.iter().filter(|event| event.action == action).count()
    }
}

const AUTH: &str = r#"{"version":"0.4.0","tee":"tpm","extra-params":{}}"#;

fn post(path: &str, body: &str) -> Request<Body> {
    let request = Request::post(format!("/kbs/v0/{path}"));
    request.body(Body::from(body.to_owned())).unwrap()
}

fn get(machine: u64) -> Request<Body> {
    let path = format!("/kbs/v0/resource/{}", sample::secret_path(machine));
    Request::get(path).body(Body::empty()).unwrap()
}

fn with(mut request: Request<Body>, name: &'static str, value: &str) -> Request<Body> {
    request.headers_mut().append(name, value.parse().unwrap());
    request
}

fn with_cookie(request: Request<Body>, id: &str) -> Request<Body> {
    with(request, "cookie", &format!("a=b; kbs-session-id={id}"))
}

async fn evidence(nonce: &str, key: u64) -> String {
    evidence_with(nonce, key, 9).await
}

/// Evidence with the session key from a seed.
async fn evidence_with(nonce: &str, key: u64, seed: u64) -> String {
    use rand_core::SeedableRng as _;
    let mut rng = rand_chacha::ChaCha20Rng::seed_from_u64(seed);
    let session_key = EcPrivateKey::generate(Curve::P256, &mut rng);
    let session_key = serde_json::to_value(session_key.public()).unwrap();
    let data = report_data::primary(nonce, &session_key, "", HashAlgorithm::Sha384).unwrap();
    let evidence = FakeAttester::new(key, 1).attest(&data).await.unwrap().evidence;
    // White space shows that nothing is rewritten.
    format!(
        r#"{{ "init-data": null,  "runtime-data": {{"nonce": "{nonce}", "tee-pubkey": {session_key}}},
        "tee-evidence": {{"primary_evidence": {evidence}, "additional_evidence": ""}} }}"#
    )
}

fn error(body: &[u8]) -> ErrorBody {
    serde_json::from_slice(body).unwrap()
}

#[tokio::test]
async fn a_registered_machine_notices_no_difference() {
    let world = World::new().await;
    let (id, nonce) = world.auth().await;
    let sent = evidence(&nonce, 1).await;
    let request = with(post("attest", &sent), "x-anything", "kept");
    let (status, _, body) = world.ask(with_cookie(request, &id)).await;
    assert_eq!((status, &body[..]), (StatusCode::OK, &br#"{"token":"token 1"}"#[..]));
    let seen = world.lax.last();
    assert_eq!(seen.body, sent.as_bytes());
    assert_eq!(seen.headers["x-anything"], "kept");
    assert_eq!(seen.headers["cookie"], format!("a=b; kbs-session-id={id}"));

    let (status, _, body) = world.get(1, &id).await;
    assert_eq!((status, &body[..]), (StatusCode::OK, KEY));
    assert_eq!(world.audit(AuditAction::KeyReleased), 1);
    let attempts: &dyn AttemptLog = &*world.registry;
    let attempt = attempts.latest(None, 1).await.unwrap().remove(0);
    assert!(attempt.ladder.is_released());
    let state = |gate| attempt.ladder.steps.iter().find(|step| step.gate == gate);
    assert_eq!(state(Gate::Pcrs).unwrap().state, StepState::Skipped);
}

#[tokio::test]
async fn after_the_initramfs_a_machine_gets_its_key_from_no_trustee() {
    let world = World::new().await;
    let gatekeeper = registries(&world.registry, &world.clock);
    let mut attempt = sample::attempt_in_boot(1, 1);
    let (own, other) = (sample::secret_path(1), "default/shared/config".parse().unwrap());
    for late in [None, Some("leave-initrd".to_owned())] {
        attempt.late = late;
        let passage = Passage::of(attempt.clone());
        let permitted = gatekeeper.permit(&passage, &own).await;
        let is_refused = matches!(permitted, Err(ReleaseError::Refused(Code::InitramfsEnded)));
        assert_eq!(
            (permitted.is_ok(), is_refused),
            (attempt.late.is_none(), attempt.late.is_some())
        );
        gatekeeper.permit(&passage, &other).await.unwrap();
    }
}

#[tokio::test]
async fn evidence_of_a_key_that_is_not_bound_stays_outside() {
    let world = World::new().await;
    let (_, status, body) = world.attest(3).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert_eq!(error(&body).code(), Some(Code::AkNotBound));
    let aks: &dyn AkRegistry = &*world.registry;
    aks.revoke(&sample::public_key(2).fingerprint(), &sample::line()).await.unwrap();
    let (_, status, body) = world.attest(2).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert_eq!(error(&body).code(), Some(Code::AkNotBound));
    assert!(!world.lax.paths().iter().any(|path| path.ends_with("attest")));
    assert!(world.guard.metrics().contains("{code=\"TEC-A404\"} 2"));
}

#[tokio::test]
async fn what_the_verifier_refuses_stays_outside() {
    let world = World::new().await;
    for spoil in [
        |sent: String| sent.replace("\"key\"", "\"clef\""),
        |sent: String| sent.replace("\"bound\":\"", "\"bound\":\"00"),
        |sent: String| sent.replace("nonce 0", "nonce 1"),
        |sent: String| {
            sent.replace(
                "\"additional_evidence\": \"\"",
                "\"additional_evidence\": \"{\\\"tpm\\\":1}\"",
            )
        },
        |sent: String| sent[..sent.len() / 2].to_owned(),
        |sent: String| {
            sent.replace("\"init-data\": null", "\"init-data\": null, \"init-data\": null")
        },
    ] {
        let (id, nonce) = world.auth().await;
        let sent = spoil(evidence(&nonce, 1).await);
        let (status, _, body) = world.ask(with_cookie(post("attest", &sent), &id)).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{sent}");
        assert_eq!(error(&body).error_kind(), ErrorKind::AttestationError);
        let (status, _, _) = world.get(1, &id).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED);
    }
    assert!(world.lax.paths().iter().all(|path| path.ends_with("auth")));
}

#[tokio::test]
async fn only_tokens_that_came_through_count() {
    let world = World::new().await;
    let (_, status, body) = world.attest(1).await;
    assert_eq!(status, StatusCode::OK);
    let token: Value = serde_json::from_slice(&body).unwrap();
    let bearer = |token: &str| with(get(1), "authorization", &format!("Bearer {token}"));
    let (status, _, body) = world.ask(bearer(token["token"].as_str().unwrap())).await;
    assert_eq!((status, &body[..]), (StatusCode::OK, KEY));
    for forged in ["token 2", "eyJhbGciOiJFUzI1NiJ9.e30.AA"] {
        let (status, _, body) = world.ask(bearer(forged)).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED);
        assert_eq!(error(&body).error_kind(), ErrorKind::TokenNotFound);
    }
    world.clock.advance_seconds(601);
    let (status, ..) = world.ask(bearer("token 1")).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn the_refusal_of_the_broker_passes_with_a_code_beside_it() {
    let world = World::new().await;
    let (id, ..) = world.attest(1).await;
    *world.lax.denies.lock().unwrap() = Some(ErrorKind::PolicyDeny);
    let (status, headers, body) = world.get(1, &id).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert_eq!(error(&body), ErrorBody::new(&ErrorKind::PolicyDeny, "no"));
    assert_eq!(headers["tec-code"], Code::ReleaseDenied.as_str());
    let attempts: &dyn AttemptLog = &*world.registry;
    let attempt = attempts.latest(None, 1).await.unwrap().remove(0);
    assert_eq!(headers["tec-attempt"], attempt.id.to_string());
    assert_eq!(attempt.ladder.first_failure().unwrap().gate, Gate::ReleasePolicy);
    assert_eq!(world.audit(AuditAction::KeyRefused), 1);
}

#[tokio::test]
async fn with_images_the_registers_are_looked_at_too() {
    let images = Arc::new(MemoryRegistry::new());
    let boots = ApprovedBoots {
        images: Arc::clone(&images) as _,
        pins: PinnedPcrs::boot_manager().into(),
        states: Arc::new(WholeImages),
    };
    let world =
        World::guarded_by(|registries| Registries { boots: Some(boots), ..registries }).await;
    let (_, status, body) = world.attest(1).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert_eq!(error(&body).code(), Some(Code::PcrMismatch));
    let images: &dyn ImageRegistry = &*images;
    images.put(&sample::image(1)).await.unwrap();
    let (_, status, _) = world.attest(1).await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn sessions_are_bounded_and_the_broker_is_spared_the_rest() {
    let world = World::with(|config| config.with_limits(3, 1 << 20, BODY_TIMEOUT)).await;
    for _ in 0..3 {
        world.auth().await;
    }
    for _ in 0..1000 {
        let (status, ..) = world.ask(post("auth", AUTH)).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    }
    assert_eq!(world.lax.paths().len(), 3);
    assert!(world.guard.metrics().contains("tec_guard_sessions 3\n"));
    world.clock.advance_seconds(601);
    world.auth().await;
}

#[tokio::test]
async fn bodies_are_bounded_in_size_and_in_time() {
    let limits = |config: GuardConfig| config.with_limits(9, 1000, Duration::from_millis(50));
    let world = World::with(limits).await;
    let (id, _) = world.auth().await;
    let request = with_cookie(post("attest", &" ".repeat(1001)), &id);
    assert_eq!(world.ask(request).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    let request = Request::post("/kbs/v0/attest").body(never()).unwrap();
    let (status, _, body) = world.ask(with_cookie(request, &id)).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert_eq!(error(&body).detail, "the body did not come in time");
}

#[tokio::test]
async fn evidence_of_other_sorts_never_reaches_the_broker() {
    let world = World::with(|config| config.with_tees([Tee::Tpm, Tee::Sample])).await;
    for tee in ["sample", "az-snp-vtpm", "snp", "tdx", "TPM", ""] {
        let (status, ..) = world.ask(post("auth", &AUTH.replace("tpm", tee))).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{tee}");
    }
    assert!(world.lax.paths().is_empty());
}

#[tokio::test]
async fn all_else_passes_as_it_is() {
    let world = World::new().await;
    let body = vec![0, 159, 146, 150, 10];
    let request = Request::post("/kbs/v0/resource/a/b/c")
        .header("authorization", "Bearer admin")
        .body(Body::from(body.clone()))
        .unwrap();
    let (status, ..) = world.ask(request).await;
    assert_eq!(status, StatusCode::OK);
    let seen = world.lax.last();
    assert_eq!((seen.method, seen.body), (Method::POST, body));
    assert_eq!(seen.headers["authorization"], "Bearer admin");
    let request = Request::get("/healthz").body(Body::empty()).unwrap();
    assert_eq!(world.ask(request).await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_broker_that_is_gone_is_a_503() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let world = World::with(|mut config| {
        config.upstream = address.to_string().parse().unwrap();
        config
    })
    .await;
    let (status, ..) = world.ask(post("auth", AUTH)).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
}

fn no_audit(call: Call) -> Fault {
    match call.operation {
        "AuditSink::append" => Fault::Before,
        _ => Fault::None,
    }
}

#[tokio::test]
async fn no_audit_line_means_no_key() {
    let deaf = Faulty::new(Arc::new(MemoryRegistry::new()), no_audit);
    let world =
        World::guarded_by(|registries| Registries { audit: Arc::new(deaf), ..registries }).await;
    let (id, status, _) = world.attest(1).await;
    assert_eq!(status, StatusCode::OK);
    let (status, _, body) = world.get(1, &id).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert_eq!(error(&body).code(), Some(Code::StoreUnavailable));
}
