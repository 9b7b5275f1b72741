//! The guard in front of a broker that reads requests as leniently as any server might, and releases
//! everything.

mod lax;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use axum::body::to_bytes;
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use serde_json::json;
use tec_core::attest::Tee;
use tec_core::id::{MachineId, ResourcePath};
use tec_core::port::{EvidenceRequest, Verifier as _};
use tec_core::testing::{ManualClock, MemoryRegistry, SeededEntropy};
use tec_core::time::Timestamp;
use tec_tpm::testing::SoftTpm;
use tec_tpm::verifier::TpmVerifier;
use tec_trustee::guard::{Guard, GuardConfig, Registries};
use tec_trustee::report_data::{HashAlgorithm, primary};
use tec_trustee::wire::{AttestRequest, AuthRequest, ErrorBody};
use tokio::runtime::Runtime;

use self::lax::{KEY, Lax, Reading, nonce, token};
use crate::Seed;
use crate::kbs::{answered, attestation, register, released};
use crate::request::{Written, requests};
use crate::sample::{MACHINE, OTHER_MACHINE, p256_tpm, ready, rsa_tpm};

/// Largest body of evidence, small enough for inputs to reach the limit.
const MAX_PAYLOAD: usize = 8192;
/// Maximum number of sessions: more than one input can open.
const MAX_SESSIONS: usize = 16;

/// Whatever is sent, the broker behind the guard gets only evidence of a registered machine, for the nonce of
/// the session that it reads in the request; and it is asked for resources only by sessions and tokens of
/// such evidence, for the path of that machine or of none.
pub(crate) fn guard(data: &[u8]) {
    let mut world = World::new();
    for request in requests(data) {
        world.send(request);
    }
}

/// The broker's sockets outlive a single input.
fn runtime() -> &'static (Runtime, Lax) {
    static RUNTIME: OnceLock<(Runtime, Lax)> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let lax = runtime.block_on(Lax::start());
        (runtime, lax)
    })
}

struct World {
    guard: Guard,
    registry: Arc<MemoryRegistry>,
    /// The machine whose evidence each session presented, by session number.
    attested: Vec<(u8, MachineId)>,
    /// Only one input at a time uses the broker.
    _alone: std::sync::MutexGuard<'static, ()>,
}

impl World {
    fn new() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, lax) = runtime();
        lax.reset();
        let registry = Arc::new(MemoryRegistry::new());
        let clock = Arc::new(ManualClock::new(Timestamp::from_unix_seconds(1000)));
        ready(register(&registry));
        let gatekeeper = Registries {
            aks: registry.clone(),
            boots: None,
            clocks: registry.clone(),
            platforms: None,
            attempts: registry.clone(),
            audit: registry.clone(),
            clock: clock.clone(),
        };
        let upstream = lax.address.to_string().parse().expect("an address");
        let config = GuardConfig::new(
            upstream,
            Arc::new(TpmVerifier::new()),
            Arc::new(gatekeeper),
            clock,
            Arc::new(SeededEntropy::new(53)),
        );
        let patience = std::time::Duration::from_secs(5);
        let config = config.with_limits(MAX_SESSIONS, MAX_PAYLOAD, patience);
        Self { guard: Guard::new(config), registry, attested: Vec::new(), _alone: alone }
    }

    fn send(&mut self, request: Request<Bytes>) -> (StatusCode, Bytes) {
        let before = released(&self.registry);
        let is_head = request.method() == Method::HEAD;
        let (runtime, lax) = runtime();
        let (status, body) = runtime.block_on(async {
            let response = answered(self.guard.router(), request).await;
            let status = response.status();
            let body = to_bytes(response.into_body(), usize::MAX).await;
            (status, body.expect("the body is whole"))
        });
        for reading in lax.take() {
            self.check(&reading);
        }
        if body.as_ref() == KEY {
            assert!(released(&self.registry) > before, "a release is noted");
        }
        match status.as_u16() {
            200 => {}
            413 => assert!(body.is_empty()),
            401 | 404 | 503 if is_head => assert!(body.is_empty()),
            401 | 404 | 503 => {
                let error: ErrorBody = serde_json::from_slice(&body).expect("an error body");
                assert!(!error.kind.is_empty());
            }
            other => panic!("no documented status: {other}"),
        }
        (status, body)
    }

    /// Checks what reached the broker, as it reads it.
    fn check(&mut self, reading: &Reading) {
        let verb = reading.path.first().map(String::as_str);
        match (reading.method.as_str(), verb) {
            ("POST", Some("attest")) => {
                let [session] = reading.sessions[..] else {
                    panic!("evidence is of one session: {reading:?}");
                };
                let machine = machine_of(&reading.body, session);
                self.attested.push((session, machine));
            }
            ("POST" | "DELETE", Some("resource"))
            | (_, Some("auth" | "attestation-policy" | "resource-policy" | "reference-value")) => {}
            (_, Some("resource")) => self.check_resource(reading),
            _ => panic!("nobody asked for that: {reading:?}"),
        }
    }

    fn check_resource(&self, reading: &Reading) {
        let tokens = reading.tokens.iter().map(|token| token.parse().ok());
        let sessions = reading.sessions.iter().copied().map(Some);
        let mut named: Vec<Option<u8>> = tokens.chain(sessions).collect();
        named.dedup();
        let [Some(session)] = named[..] else {
            panic!("one session asks: {reading:?}");
        };
        // The first evidence of a session is also that of its token.
        let found = self.attested.iter().find(|(known, _)| *known == session);
        let (_, own) = found.expect("a session that attested");
        let path = reading.path.get(1..).unwrap_or_default().join("/");
        if let Ok(path) = path.parse::<ResourcePath>() {
            assert!(path.machine().is_none_or(|machine| machine == *own));
        }
    }
}

/// The machine whose evidence a body contains, verified again for the session's nonce.
fn machine_of(body: &[u8], session: u8) -> MachineId {
    let request: AttestRequest = serde_json::from_slice(body).expect("a request");
    let runtime = &request.runtime_data;
    assert_eq!(runtime.nonce, nonce(session));
    let additional = &request.tee_evidence.additional_evidence;
    let report_data =
        primary(&runtime.nonce, &runtime.tee_pubkey, additional, HashAlgorithm::Sha384)
            .expect("a digest");
    let evidence = &request.tee_evidence.primary_evidence;
    let verifier = TpmVerifier::new();
    let verified = ready(verifier.verify(EvidenceRequest::new(Tee::Tpm, evidence, &report_data)));
    let key = verified.expect("evidence that verifies").ak;
    let machine = if key == p256_tpm().public_key() {
        MACHINE
    } else {
        assert_eq!(key, rsa_tpm().public_key(), "the key of a machine");
        OTHER_MACHINE
    };
    machine.parse().expect("a machine id")
}

const AUTH: &str = "POST /kbs/v0/auth\n\n";

fn auth() -> String {
    let body = serde_json::to_string(&AuthRequest::new("tpm", json!({}))).expect("an object");
    format!("{AUTH}{body}")
}

fn cookie(session: u8) -> String {
    format!("cookie: kbs-session-id={session:032x}")
}

fn attest(tpm: &SoftTpm, session: u8) -> String {
    let body = attestation(tpm, &nonce(session));
    format!("POST /kbs/v0/attest\n{}\n\n{body}", cookie(session))
}

fn get(machine: &str, headers: &str) -> String {
    format!("GET /kbs/v0/resource/default/{machine}/root\n{headers}")
}

/// A seed whose last request is answered with this status.
fn seed(name: &str, requests: &[String], last: StatusCode) -> Seed {
    let mut world = World::new();
    let (mut input, mut status) = (Written::new(""), StatusCode::OK);
    for request in requests {
        input = input.with(request);
        let parsed = crate::request::requests(request.as_bytes()).next();
        (status, _) = world.send(parsed.expect("a request"));
    }
    assert_eq!(status, last, "{name}");
    Seed::new(name, input.bytes())
}

pub(crate) fn seeds() -> Vec<Seed> {
    let (ok, refused) = (StatusCode::OK, StatusCode::UNAUTHORIZED);
    let own = get(MACHINE, &cookie(1));
    let bearer = |session: u8| format!("authorization: Bearer {}", token(session));
    let begin = |tpm: &SoftTpm| vec![auth(), attest(tpm, 1)];
    let with = |tpm: &SoftTpm, last: String| [begin(tpm), vec![last]].concat();
    let both = format!("{}\n{}", cookie(1), bearer(1));
    let forged = format!("{}\nauthorization: Bearer x.y.z", cookie(1));
    let taken = format!("{forged}\nconnection: cookie");
    let encoded = "cookie: kbs%2Dsession-id=02; kbs-session-id=01".to_owned();
    let stranger = SoftTpm::p256(9).with_still_clock();
    let relay = [auth(), attest(p256_tpm(), 1), attest(rsa_tpm(), 1)];
    let relay = [relay.as_slice(), &[get(OTHER_MACHINE, &cookie(1))]].concat();
    let odd = "HEAD /kbs/v0/resource/a/b/c\nauthorization: Bearer 1".to_owned();
    let plugin = "GET /kbs/v0/pkcs11/wrap-key\nauthorization: Bearer 1".to_owned();
    let admin = "POST /kbs/v0/resource-policy\nauthorization: Bearer admin\n\n{}".to_owned();
    let path = "GET /kbs/v0/x/%2e%2e/attest".to_owned();
    vec![
        seed("own_key", &with(p256_tpm(), own.clone()), ok),
        seed("by_token", &with(p256_tpm(), get(MACHINE, &bearer(1))), ok),
        seed("by_both", &with(p256_tpm(), get(MACHINE, &both)), ok),
        seed("of_another", &with(rsa_tpm(), own.clone()), refused),
        seed("stranger", &with(&stranger, own), refused),
        seed("forged", &with(p256_tpm(), get(MACHINE, &forged)), refused),
        seed("taken", &with(p256_tpm(), get(MACHINE, &taken)), refused),
        seed("encoded", &with(p256_tpm(), get(MACHINE, &encoded)), refused),
        seed("relay", &relay, refused),
        seed("odd_method", &[odd], refused),
        seed("plugin", &[plugin], StatusCode::NOT_FOUND),
        seed("admin", &[admin], ok),
        seed("path", &[path], StatusCode::NOT_FOUND),
    ]
}
