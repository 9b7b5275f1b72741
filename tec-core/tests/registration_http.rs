//! The registration endpoints, request by request.
#![cfg(all(feature = "test-util", feature = "http"))]
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test's own tools may fail the test"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use tec_core::ak::{
    AkMatcher, AkState, Credential, EkBoundMatcher, EkOffer, ManualMatcher, PublicKey,
    SourceNetwork, TofuMatcher, TpmObjectError, TpmObjects,
};
use tec_core::endpoint::Endpoint;
use tec_core::flow::ClaimLimits;
use tec_core::http::{
    AkService, AkServiceConfig, ChallengeKey, MAX_BODY, RegisterService, RegisterServiceConfig,
};
use tec_core::id::ResourcePath;
use tec_core::ignition::ClevisPinGenerator;
use tec_core::luks::CompatLuksKey;
use tec_core::machine::MachineState;
use tec_core::port::{AkRegistry, MachineRegistry, SecretStore, UnclaimedLimit};
use tec_core::secret::{SecretArray, SecretBytes};
use tec_core::testing::{Fault, Faulty, ManualClock, MemoryRegistry, SeededEntropy, sample};

/// A TPM whose challenge is the secret itself, and whose public areas are the key in DER form.
#[derive(Debug)]
struct GlassTpm;

impl TpmObjects for GlassTpm {
    fn attestation_key(&self, area: &[u8]) -> Result<PublicKey, TpmObjectError> {
        PublicKey::from_der(area).map_err(|_| TpmObjectError::new("not restricted"))
    }

    fn challenge(
        &self,
        _ek: &EkOffer,
        _area: &[u8],
        secret: &SecretArray<32>,
        _rng: &mut dyn rand_core::CryptoRng,
    ) -> Result<Credential, TpmObjectError> {
        let open = secret.expose("a test reads it back").to_vec();
        Ok(Credential::new(open, Vec::new()))
    }
}

struct Server {
    registry: Arc<MemoryRegistry>,
    clock: Arc<ManualClock>,
    register: RegisterService,
    ak: AkService,
}

fn server(token: Option<&str>, limit: UnclaimedLimit, matcher: Arc<dyn AkMatcher>) -> Server {
    let registry = Arc::new(MemoryRegistry::new());
    let clock = Arc::new(ManualClock::new(sample::time(0)));
    let entropy = Arc::new(SeededEntropy::new(1));
    let kbs = Endpoint::new("https://kbs:8080".parse().unwrap(), "");
    let register = RegisterService::new(
        RegisterServiceConfig::new(
            registry.clone(),
            registry.clone(),
            Arc::new(ClevisPinGenerator::new(kbs)),
            clock.clone(),
            entropy.clone(),
            token.map(|token| SecretBytes::new(token.as_bytes().to_vec())),
        )
        .with_limit(limit)
        .with_unclaimed_seconds(60),
    );
    let ak = AkService::new(
        AkServiceConfig::new(
            registry.clone(),
            registry.clone(),
            matcher,
            registry.clone(),
            clock.clone(),
            entropy,
            Arc::new(GlassTpm),
        )
        .with_provision(registry.clone(), Arc::new(CompatLuksKey))
        .with_claims(ClaimLimits { total: 2, per_source: 2 }),
    );
    Server { registry, clock, register, ak }
}

fn open_server() -> Server {
    server(None, UnclaimedLimit::Unlimited, Arc::new(TofuMatcher))
}

impl Server {
    async fn get(&self, path: &str) -> (StatusCode, Value) {
        self.get_with(path, "GET", None).await
    }

    async fn get_with(&self, path: &str, method: &str, token: Option<&str>) -> (StatusCode, Value) {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(token) = token {
            request = request.header("authorization", token);
        }
        let response = self.register.respond(request.body(()).unwrap()).await;
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap())
    }

    async fn put(&self, path: &str, body: impl Into<Bytes>) -> (StatusCode, Value) {
        let request = Request::put(path).header("content-type", "application/json");
        self.send(request.body(Full::new(body.into())).unwrap()).await
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> (StatusCode, Value) {
        let response = self.ak.respond(request).await;
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap())
    }

    async fn machine(&self) -> String {
        let (_, ignition) = self.get("/ignition").await;
        let pin = ignition["storage"]["luks"][0]["clevis"]["custom"]["config"].as_str().unwrap();
        let pin: Value = serde_json::from_str(pin).unwrap();
        pin["path"].as_str().unwrap().split('/').nth(1).unwrap().to_owned()
    }

    async fn machines(&self) -> usize {
        MachineRegistry::list(&*self.registry, None, 10).await.unwrap().len()
    }
}

fn key_body(machine: &str, key: u64) -> String {
    json!({ "public_key": sample::public_key(key).to_pem(), "uuid": machine }).to_string()
}

#[tokio::test]
async fn each_alias_registers_another_machine() {
    let server = open_server();
    for path in
        ["/ignition-clevis-pin-trustee", "/ignition", "/register", "/ignitioni-clevis-pin-trustee"]
    {
        let (status, ignition) = server.get(path).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(ignition["ignition"]["version"], "3.6.0");
    }
    assert_eq!(server.machines().await, 4);
}

#[tokio::test]
async fn other_paths_and_methods_are_refused_and_register_nothing() {
    let server = open_server();
    assert_eq!(server.get("/").await.0, StatusCode::NOT_FOUND);
    let (status, body) = server.get_with("/ignition", "POST", None).await;
    assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!((&body["error"], &body["code"]), (&json!("TEC-R405"), &json!(405)));
    assert_eq!(server.machines().await, 0);
}

#[tokio::test]
async fn a_token_is_asked_for_where_one_is_set() {
    let server = server(Some("s3cret"), UnclaimedLimit::Unlimited, Arc::new(TofuMatcher));
    for wrong in [None, Some("Bearer wrong"), Some("s3cret"), Some("Basic s3cret")] {
        let (status, body) = server.get_with("/ignition", "GET", wrong).await;
        assert_eq!((status, &body["error"]), (StatusCode::UNAUTHORIZED, &json!("TEC-R401")));
    }
    let (status, _) = server.get_with("/ignition", "GET", Some("Bearer s3cret")).await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn the_cap_holds_and_expired_machines_make_room() {
    let server = server(None, UnclaimedLimit::AtMost(2), Arc::new(TofuMatcher));
    for _ in 0..2 {
        assert_eq!(server.get("/ignition").await.0, StatusCode::OK);
    }
    let (status, body) = server.get("/ignition").await;
    assert_eq!((status, &body["error"]), (StatusCode::TOO_MANY_REQUESTS, &json!("TEC-R430")));
    server.clock.advance_seconds(61);
    assert_eq!(server.get("/ignition").await.0, StatusCode::OK);
    assert_eq!(server.machines().await, 1);
}

/// How many machines this address gets, one after the other.
async fn registered(register: &RegisterService, address: &str) -> u64 {
    let source = SourceNetwork::of(address.parse().unwrap());
    let mut number = 0;
    loop {
        let request = Request::get("/ignition").extension(source).body(()).unwrap();
        match register.respond(request).await.status() {
            StatusCode::OK => number += 1,
            refused => {
                assert_eq!(refused, StatusCode::TOO_MANY_REQUESTS);
                return number;
            }
        }
    }
}

#[tokio::test]
async fn a_network_that_registers_much_leaves_room_for_others_also_after_a_restart() {
    let limit = UnclaimedLimit::AtMost(8);
    let (server, kbs) = (server(None, limit, Arc::new(TofuMatcher)), "https://kbs:8080");
    let stranger = "2001:db8::1";
    assert_eq!(registered(&server.register, stranger).await, 4);
    assert_eq!(registered(&server.register, "2001:db8:0:ff::1").await, 0, "the same customer");
    let config = RegisterServiceConfig::new(
        server.registry.clone(),
        server.registry.clone(),
        Arc::new(ClevisPinGenerator::new(Endpoint::new(kbs.parse().unwrap(), ""))),
        server.clock.clone(),
        Arc::new(SeededEntropy::new(2)),
        None,
    );
    let restarted = RegisterService::new(config.with_limit(limit).with_unclaimed_seconds(60));
    assert_eq!(registered(&restarted, stranger).await, 2);
    for (node, expected) in [("192.0.2.1", 1), ("192.0.2.2", 1), ("192.0.2.3", 0)] {
        assert_eq!(registered(&restarted, node).await, expected, "{node}");
    }
    server.clock.advance_seconds(61);
    assert_eq!(registered(&restarted, stranger).await, 4, "all have expired");
}

#[tokio::test]
async fn refused_registrations_look_for_expired_machines_once_a_second() {
    let server = server(None, UnclaimedLimit::AtMost(0), Arc::new(TofuMatcher));
    let sweeps = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&sweeps);
    let machines = Faulty::new(Arc::clone(&server.registry), move |call| {
        let is_sweep = call.operation == "MachineRegistry::expire_unclaimed";
        counter.fetch_add(is_sweep.into(), Ordering::Relaxed);
        Fault::None
    });
    let kbs = Endpoint::new("https://kbs:8080".parse().unwrap(), "");
    let register = RegisterService::new(
        RegisterServiceConfig::new(
            Arc::new(machines),
            server.registry.clone(),
            Arc::new(ClevisPinGenerator::new(kbs)),
            server.clock.clone(),
            Arc::new(SeededEntropy::new(1)),
            None,
        )
        .with_limit(UnclaimedLimit::AtMost(0))
        .with_unclaimed_seconds(60),
    );
    let server = Server { register, ..server };
    for seconds in 1..=2 {
        for _ in 0..100 {
            let (status, _) = server.get("/ignition").await;
            assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
        }
        assert_eq!(sweeps.load(Ordering::Relaxed), seconds);
        server.clock.advance_seconds(1);
    }
}

#[tokio::test]
async fn the_first_key_is_bound_and_its_machine_provisioned() {
    let server = open_server();
    let machine = server.machine().await;
    let (status, body) = server.put("/register-ak", key_body(&machine, 1)).await;
    assert_eq!((status, body), (StatusCode::CREATED, json!({ "status": "success" })));
    let id = machine.parse().unwrap();
    let stored = MachineRegistry::find(&*server.registry, &id).await.unwrap().unwrap();
    assert_eq!(stored.state, MachineState::Active);
    assert!(server.registry.exists(&ResourcePath::luks_root(&id)).await.unwrap());

    let (status, body) = server.put("/register-ak", key_body(&machine, 1)).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert_eq!(body["message"], "Public key already registered");
    let (status, body) = server.put("/register-ak", key_body(&machine, 2)).await;
    assert_eq!((status, &body["code"]), (StatusCode::CONFLICT, &json!("TEC-R410")));
    let other = server.machine().await;
    let (status, body) = server.put("/register-ak", key_body(&other, 1)).await;
    assert_eq!((status, &body["code"]), (StatusCode::CONFLICT, &json!("TEC-R412")));
    assert_eq!(body["uuid"], machine, "whose key it is");
    assert_eq!(body["status"], "error");
}

#[tokio::test]
async fn the_older_member_name_is_understood() {
    let server = open_server();
    let machine = server.machine().await;
    let pem = sample::public_key(1).to_pem();
    let body = json!({ "attestation_key": pem, "uuid": machine }).to_string();
    assert_eq!(server.put("/register-ak", body).await.0, StatusCode::CREATED);
}

#[tokio::test]
async fn malformed_registrations_are_refused_and_nothing_is_stored() {
    let server = open_server();
    let machine = server.machine().await;
    let pem = sample::public_key(1).to_pem();
    let unknown = "7c9e6679-7425-40de-944b-e07fc1f90ae7";
    let other_key = STANDARD.encode(sample::public_key(2).as_der());
    let cases: [(Value, &str); 10] = [
        (json!({}), "TEC-R400"),
        (json!([]), "TEC-R400"),
        (json!({ "public_key": pem, "uuid": machine, "extra": 1 }), "TEC-R400"),
        (json!({ "public_key": pem, "attestation_key": pem, "uuid": machine }), "TEC-R400"),
        (json!({ "public_key": pem, "uuid": "not-a-uuid" }), "TEC-R400"),
        (json!({ "public_key": "-----BEGIN", "uuid": machine }), "TEC-R422"),
        (json!({ "public_key": pem, "uuid": machine, "tpm_public": "!" }), "TEC-R400"),
        (json!({ "public_key": pem, "uuid": machine, "tpm_public": "AAAA" }), "TEC-R422"),
        (json!({ "public_key": pem, "uuid": machine, "tpm_public": other_key }), "TEC-R422"),
        (json!({ "public_key": pem, "uuid": unknown }), "TEC-R404"),
    ];
    for (body, code) in cases {
        let (status, reply) = server.put("/register-ak", body.to_string()).await;
        assert!(status.is_client_error(), "{body}");
        assert_eq!((&reply["code"], &reply["status"]), (&json!(code), &json!("error")), "{body}");
    }
    let (_, reply) = server.put("/register-ak", "{").await;
    assert_eq!(reply["code"], "TEC-R400");
    assert!(AkRegistry::list(&*server.registry, None).await.unwrap().is_empty());
}

#[tokio::test]
async fn large_bodies_and_other_content_types_are_refused() {
    let server = open_server();
    let (status, reply) = server.put("/register-ak", vec![b' '; MAX_BODY + 1]).await;
    assert_eq!((status, &reply["code"]), (StatusCode::PAYLOAD_TOO_LARGE, &json!("TEC-R413")));
    let with_kind = |kind: &str| {
        let request = Request::put("/register-ak").header("content-type", kind);
        request.body(Full::new(Bytes::from("{}"))).unwrap()
    };
    for kind in ["text/plain", "application/jsonx", ""] {
        assert_eq!(server.send(with_kind(kind)).await.0, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
    let json_kind = with_kind("Application/JSON; charset=utf-8");
    assert_eq!(server.send(json_kind).await.0, StatusCode::BAD_REQUEST);
    let request = Request::post("/register-ak").body(Full::new(Bytes::new())).unwrap();
    assert_eq!(server.send(request).await.0, StatusCode::METHOD_NOT_ALLOWED);
}

fn ek_body(machine: &str) -> String {
    json!({
        "public_key": sample::public_key(1).to_pem(),
        "uuid": machine,
        "tpm_public": STANDARD.encode(sample::public_key(1).as_der()),
        "ek_public": sample::public_key(9).to_pem(),
    })
    .to_string()
}

#[tokio::test]
async fn an_endorsement_key_proves_the_key() {
    let matcher = Arc::new(EkBoundMatcher::any_ek());
    let server = server(None, UnclaimedLimit::Unlimited, matcher);
    let machine = server.machine().await;
    let (_, reply) = server.put("/register-ak", key_body(&machine, 1)).await;
    assert_eq!(reply["code"], "TEC-R423");
    assert!(AkRegistry::list(&*server.registry, None).await.unwrap().is_empty());

    let (status, reply) = server.put("/register-ak", ek_body(&machine)).await;
    assert_eq!((status, &reply["status"]), (StatusCode::ACCEPTED, &json!("challenge")));
    let wrong = STANDARD.encode([7; 32]);
    for wrong in ["AAAA", &wrong] {
        let wrong = json!({ "challenge": reply["challenge"], "secret": wrong }).to_string();
        assert_eq!(server.put("/register-ak/proof", wrong).await.1["code"], "TEC-R423");
    }
    let (status, _) = server.answer(&reply).await;
    assert_eq!(status, StatusCode::CREATED);
    let bound = server.registry.bound_to(&machine.parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(bound.ek, Some(sample::public_key(9).fingerprint()));
}

#[tokio::test]
async fn an_answer_that_is_sent_again_binds_nothing_anew() {
    let matcher = Arc::new(EkBoundMatcher::any_ek());
    let server = server(None, UnclaimedLimit::Unlimited, matcher);
    let machine = server.machine().await;
    let (_, reply) = server.put("/register-ak", ek_body(&machine)).await;
    assert_eq!(server.answer(&reply).await.0, StatusCode::CREATED);
    assert_eq!(server.answer(&reply).await.1["code"], "TEC-R409");
    server.revoke(1).await;
    assert_eq!(server.answer(&reply).await.1["code"], "TEC-R422");
    assert_eq!(server.key_state(1).await, Some(AkState::Revoked));
}

#[tokio::test]
async fn a_challenge_may_be_answered_at_another_replica_that_has_the_key() {
    let matcher = Arc::new(EkBoundMatcher::any_ek());
    let mut server = server(None, UnclaimedLimit::Unlimited, matcher.clone());
    let machine = server.machine().await;
    let key = || Arc::new(ChallengeKey::new(SecretArray::new([1; 32])));
    server.ak = server.replica(matcher.clone(), key());
    let (_, reply) = server.put("/register-ak", ek_body(&machine)).await;

    let stranger = Arc::new(ChallengeKey::random(&SeededEntropy::new(2)));
    server.ak = server.replica(matcher.clone(), stranger);
    assert_eq!(server.answer(&reply).await.1["code"], "TEC-R423");
    server.ak = server.replica(matcher, key());
    assert_eq!(server.answer(&reply).await.0, StatusCode::CREATED);
}

#[tokio::test]
async fn a_late_answer_does_not_count() {
    let matcher = Arc::new(EkBoundMatcher::any_ek());
    let server = server(None, UnclaimedLimit::Unlimited, matcher);
    let machine = server.machine().await;
    let (_, reply) = server.put("/register-ak", ek_body(&machine)).await;
    server.clock.advance_seconds(121);
    assert_eq!(server.answer(&reply).await.1["code"], "TEC-R423");
}

impl Server {
    /// The correct answer to a challenge.
    async fn answer(&self, challenge: &Value) -> (StatusCode, Value) {
        let right =
            json!({ "challenge": challenge["challenge"], "secret": challenge["id_object"] });
        self.put("/register-ak/proof", right.to_string()).await
    }

    /// Another server over the same registry.
    fn replica(&self, matcher: Arc<dyn AkMatcher>, key: Arc<ChallengeKey>) -> AkService {
        let registry = &self.registry;
        AkService::new(
            AkServiceConfig::new(
                registry.clone(),
                registry.clone(),
                matcher,
                registry.clone(),
                self.clock.clone(),
                Arc::new(SeededEntropy::new(3)),
                Arc::new(GlassTpm),
            )
            .with_challenge_key(key),
        )
    }

    async fn revoke(&self, key: u64) {
        let key = sample::public_key(key).fingerprint();
        let revoked = AkRegistry::revoke(&*self.registry, &key, &sample::line()).await;
        revoked.unwrap();
    }

    async fn key_state(&self, key: u64) -> Option<AkState> {
        let key = sample::public_key(key).fingerprint();
        let found = AkRegistry::find(&*self.registry, &key).await.unwrap();
        found.map(|record| record.state)
    }
}

#[tokio::test]
async fn the_waiting_keys_of_one_network_leave_room_for_that_of_another() {
    let server = server(None, UnclaimedLimit::Unlimited, Arc::new(ManualMatcher));
    let machine = server.machine().await;
    let submit = async |key: u64, network: u8| {
        let source = SourceNetwork::of([192, 0, 2, network].into());
        let request = Request::put("/register-ak").header("content-type", "application/json");
        let body = Full::new(key_body(&machine, key).into());
        server.send(request.extension(source).body(body).unwrap()).await.0
    };
    for key in 1..=9 {
        let expected = if key <= 2 { StatusCode::ACCEPTED } else { StatusCode::TOO_MANY_REQUESTS };
        assert_eq!(submit(key, 1).await, expected, "key {key} of a stranger");
    }
    assert_eq!(submit(10, 2).await, StatusCode::ACCEPTED, "the key of the node");
}

#[tokio::test]
async fn a_strangers_key_is_not_bound_to_a_machine_whose_key_was_revoked() {
    let server = open_server();
    let machine = server.machine().await;
    let (status, _) = server.put("/register-ak", key_body(&machine, 1)).await;
    assert_eq!(status, StatusCode::CREATED);
    server.revoke(1).await;
    let (status, reply) = server.put("/register-ak", key_body(&machine, 2)).await;
    assert_eq!((status, &reply["status"]), (StatusCode::ACCEPTED, &json!("pending")));
    assert_eq!(reply["code"], "TEC-R424");
    assert_eq!(server.key_state(2).await, Some(AkState::Pending));
}

#[tokio::test]
async fn beyond_the_limit_of_first_use_keys_wait_for_an_admin() {
    let server = open_server();
    for key in 1..=2 {
        let machine = server.machine().await;
        let (status, _) = server.put("/register-ak", key_body(&machine, key)).await;
        assert_eq!(status, StatusCode::CREATED);
    }
    let machine = server.machine().await;
    let (status, reply) = server.put("/register-ak", key_body(&machine, 3)).await;
    assert_eq!((status, &reply["code"]), (StatusCode::ACCEPTED, &json!("TEC-R431")));
    assert_eq!(server.key_state(3).await, Some(AkState::Pending));
}

/// Registers key `key` with the endorsement key `ek`, and answers the challenge.
async fn prove(server: &Server, machine: &str, key: u64, ek: u64) -> (StatusCode, Value) {
    let body = json!({
        "public_key": sample::public_key(key).to_pem(),
        "uuid": machine,
        "tpm_public": STANDARD.encode(sample::public_key(key).as_der()),
        "ek_public": sample::public_key(ek).to_pem(),
    });
    let (_, reply) = server.put("/register-ak", body.to_string()).await;
    server.answer(&reply).await
}

#[tokio::test]
async fn only_the_endorsement_key_of_before_proves_a_further_key() {
    let matcher = Arc::new(EkBoundMatcher::any_ek());
    let server = server(None, UnclaimedLimit::Unlimited, matcher);
    let machine = server.machine().await;
    assert_eq!(prove(&server, &machine, 1, 9).await.0, StatusCode::CREATED);
    server.revoke(1).await;
    let (status, reply) = prove(&server, &machine, 2, 8).await;
    assert_eq!((status, &reply["status"]), (StatusCode::ACCEPTED, &json!("pending")));
    assert_eq!(server.key_state(2).await, Some(AkState::Pending));
    // Revoking a pending key does not make its endorsement key the machine's previous one.
    server.revoke(2).await;
    assert_eq!(prove(&server, &machine, 4, 8).await.0, StatusCode::ACCEPTED);
    assert_eq!(prove(&server, &machine, 3, 9).await.0, StatusCode::CREATED);
    assert_eq!(server.key_state(3).await, Some(AkState::Bound));
}
