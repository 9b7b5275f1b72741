//! The registration endpoints with registries in memory, one request after another.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use ignition_config::Config;
use serde_json::{Value, json};
use tec_core::ak::{
    AkMatcher, AkRecord, AkState, Credential, EkBoundMatcher, ManualMatcher, TofuMatcher,
};
use tec_core::code::Code;
use tec_core::endpoint::Endpoint;
use tec_core::flow::ClaimLimits;
use tec_core::http::{
    AkService, AkServiceConfig, MAX_BODY, RegisterService, RegisterServiceConfig, ReplyBody,
};
use tec_core::id::ResourcePath;
use tec_core::ignition::ClevisPinGenerator;
use tec_core::luks::CompatLuksKey;
use tec_core::machine::{Machine, MachineState, RegisteredBy};
use tec_core::port::{AkRegistry, MachineRegistry, UnclaimedLimit};
use tec_core::secret::SecretBytes;
use tec_core::testing::sample::time;
use tec_core::testing::{ManualClock, MemoryRegistry, SeededEntropy};
use tec_tpm::ek::CredentialIssuer;
use tec_tpm::testing::SoftTpm;

use crate::Seed;
use crate::request::{Written, requests};
use crate::sample::{MACHINE, OTHER_MACHINE, p256_tpm, ready, rsa_tpm};

const TOKEN: &str = "registration-token";
/// Machines that may wait: the two existing ones, and one more.
const LIMIT: u64 = 3;
/// Maximum number of machines to list; a world has at most five.
const MANY: usize = 100;

/// Every request is answered with a documented status and JSON in the endpoint's form. What is refused leaves
/// nothing behind, what is bound is bound once, and only bound machines have disk keys. The first byte of an
/// input chooses matcher and token.
pub(crate) fn registration(data: &[u8]) {
    let Some((choice, rest)) = data.split_first() else {
        return;
    };
    let world = World::new(*choice);
    for request in requests(rest) {
        world.register(&request);
        world.submit(request);
    }
}

/// Everything in the store.
#[derive(Debug, PartialEq)]
struct Stored {
    machines: Vec<Machine>,
    aks: Vec<AkRecord>,
    secrets: Vec<ResourcePath>,
}

impl Stored {
    fn bound(&self) -> Vec<&AkRecord> {
        let bound = |ak: &&AkRecord| ak.state == AkState::Bound;
        self.aks.iter().filter(bound).collect()
    }

    fn check(&self) {
        for machine in &self.machines {
            let keys = self.bound().iter().filter(|ak| ak.machine == machine.id).count();
            assert!(keys <= 1, "a machine has one key");
            assert_eq!(machine.state == MachineState::Active, keys == 1);
            let path = ResourcePath::luks_root(&machine.id);
            assert_eq!(self.secrets.contains(&path), keys == 1, "who is bound has a disk key");
        }
        let known = |ak: &AkRecord| self.machines.iter().any(|machine| machine.id == ak.machine);
        assert!(self.aks.iter().all(known), "no key without a machine");
    }
}

struct World {
    registry: Arc<MemoryRegistry>,
    register: RegisterService,
    aks: AkService,
    has_token: bool,
}

impl World {
    fn new(choice: u8) -> Self {
        let registry = Arc::new(MemoryRegistry::new());
        for id in [MACHINE, OTHER_MACHINE] {
            let id = id.parse().expect("a machine id");
            let machine = Machine::unclaimed(id, RegisteredBy::FirstBoot, time(0));
            let machines: &dyn MachineRegistry = &*registry;
            let created = ready(machines.create(&machine, UnclaimedLimit::Unlimited));
            created.expect("registries in memory do not fail");
        }
        let matcher: Arc<dyn AkMatcher> = match choice & 3 {
            1 => Arc::new(EkBoundMatcher::any_ek()),
            2 => Arc::new(ManualMatcher),
            _ => Arc::new(TofuMatcher),
        };
        let has_token = choice & 4 != 0;
        let kbs = "https://kbs.example.org:8080".parse().expect("an address");
        let clock = Arc::new(ManualClock::new(time(1)));
        let entropy = Arc::new(SeededEntropy::new(1));
        let register = RegisterService::new(
            RegisterServiceConfig::new(
                registry.clone(),
                registry.clone(),
                Arc::new(ClevisPinGenerator::new(Endpoint::new(kbs, "PEM"))),
                clock.clone(),
                entropy.clone(),
                has_token.then(|| SecretBytes::new(TOKEN.as_bytes().to_vec())),
            )
            .with_limit(UnclaimedLimit::AtMost(LIMIT))
            .with_unclaimed_seconds(3600),
        );
        let aks = AkService::new(
            AkServiceConfig::new(
                registry.clone(),
                registry.clone(),
                matcher,
                registry.clone(),
                clock,
                entropy,
                Arc::new(CredentialIssuer::new()),
            )
            .with_provision(registry.clone(), Arc::new(CompatLuksKey))
            .with_claims(ClaimLimits::default()),
        );
        Self { registry, register, aks, has_token }
    }

    fn stored(&self) -> Stored {
        let machines: &dyn MachineRegistry = &*self.registry;
        let aks: &dyn AkRegistry = &*self.registry;
        Stored {
            machines: ready(machines.list(None, MANY)).expect("registries in memory do not fail"),
            aks: ready(aks.list(None)).expect("registries in memory do not fail"),
            secrets: self.registry.secret_paths(),
        }
    }

    fn register(&self, request: &Request<Bytes>) {
        let before = self.stored();
        let mut sent = request.clone().map(drop);
        let (path, headers) = (request.uri().path().to_owned(), request.headers().clone());
        *sent.headers_mut() = headers.clone();
        let reply = Reply::of(ready(self.register.respond(sent)));
        let mut after = self.stored();
        after.check();
        if reply.status != StatusCode::OK {
            reply.check_refusal("error");
            assert_eq!(before, after, "a refusal leaves nothing behind");
            return;
        }
        assert!(path.starts_with("/ignition") || path == "/register", "{path}");
        assert!(!self.has_token || shows_token(&headers), "the token is asked for");
        let (config, warnings) = Config::parse_slice(&reply.body).expect("Ignition");
        assert!(warnings.is_empty(), "{warnings:?} of {config:?}");
        let is_new = |machine: &Machine| !before.machines.contains(machine);
        let place = after.machines.iter().position(is_new).expect("a machine more");
        let machine = after.machines.remove(place);
        assert_eq!(machine.state, MachineState::Unclaimed);
        assert_eq!(before, after, "one machine more, and nothing else");
        let text = String::from_utf8_lossy(&reply.body);
        assert!(text.contains(ResourcePath::luks_root(&machine.id).as_str()));
    }

    fn submit(&self, request: Request<Bytes>) {
        let before = self.stored();
        let too_large = request.body().len() > MAX_BODY;
        let reply = Reply::of(ready(self.aks.respond(request.map(Full::new))));
        let after = self.stored();
        after.check();
        let new = after.bound().len() - before.bound().len();
        let kept = after.aks.len() - before.aks.len();
        let others = (&before.machines, &before.secrets) == (&after.machines, &after.secrets);
        match reply.status {
            StatusCode::CREATED => {
                assert_eq!((new, too_large), (1, false));
                assert_eq!(after.secrets.len(), before.secrets.len() + 1);
            }
            StatusCode::ACCEPTED => assert!(new == 0 && kept <= 1 && others),
            _ => {
                reply.check_refusal("code");
                assert_eq!(before, after, "a refusal leaves nothing behind");
            }
        }
    }
}

fn shows_token(headers: &HeaderMap) -> bool {
    headers.get(AUTHORIZATION).is_some_and(|value| value == format!("Bearer {TOKEN}").as_str())
}

struct Reply {
    status: StatusCode,
    body: Bytes,
}

impl Reply {
    fn of(response: Response<ReplyBody>) -> Self {
        let (parts, body) = response.into_parts();
        assert_eq!(
            parts.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes),
            Some(&b"application/json"[..])
        );
        let body = ready(body.collect()).expect("the body is whole").to_bytes();
        let json: Value = serde_json::from_slice(&body).expect("the body is JSON");
        assert!(json.is_object());
        assert!(!body.windows(TOKEN.len()).any(|window| window == TOKEN.as_bytes()));
        Self { status: parts.status, body }
    }

    /// The body contains the code's public sentence, and the status is the code's.
    fn check_refusal(&self, member: &str) {
        let json: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let text = |member: &str| json.get(member).and_then(Value::as_str).unwrap_or_default();
        let code: Code = text(member).parse().expect("a code");
        assert_eq!(code.http_status(), self.status.as_u16());
        assert_eq!(text("message"), code.title());
    }
}

pub(crate) fn seeds() -> Vec<Seed> {
    let key = |tpm: &SoftTpm, machine: &str| json!({"public_key": tpm.public_key().to_pem(), "uuid": machine});
    let (ecc, rsa) = (p256_tpm(), rsa_tpm());
    let put = "PUT /register-ak";
    let tofu = Written::new("0")
        .json(put, &key(ecc, MACHINE))
        .json(put, &key(ecc, MACHINE))
        .json(put, &key(rsa, MACHINE))
        .json(put, &key(ecc, OTHER_MACHINE));
    let register = Written::new("0")
        .with("GET /ignition-clevis-pin-trustee")
        .with("GET /register")
        .with("POST /ignition");
    let token = Written::new("4")
        .with(&format!("GET /ignition\nauthorization: Bearer {TOKEN}"))
        .with("GET /ignition\nauthorization: Bearer x");
    let area = json!({
        "attestation_key": ecc.public_key().to_pem(), "uuid": MACHINE,
        "tpm_public": STANDARD.encode(ecc.ak_public_area()),
    });
    let malformed = Written::new("0")
        .json(put, &json!({"public_key": "x", "uuid": MACHINE}))
        .json(put, &json!({"public_key": ecc.public_key().to_pem(), "uuid": "x"}))
        .with("PUT /register-ak\ncontent-type: text/plain\n\n{}")
        .with("GET /register-ak");
    vec![
        Seed::new("tofu", tofu.bytes()),
        Seed::new("register", register.bytes()),
        Seed::new("token", token.bytes()),
        Seed::new("area", Written::new("0").json(put, &area).bytes()),
        Seed::new("manual", Written::new("2").json(put, &key(rsa, MACHINE)).bytes()),
        Seed::new("malformed", malformed.bytes()),
        Seed::new("proof", proof(ecc)),
    ]
}

/// A registration with a challenge, and the TPM's correct answer.
fn proof(tpm: &SoftTpm) -> Vec<u8> {
    let submission = json!({
        "public_key": tpm.public_key().to_pem(), "uuid": MACHINE,
        "tpm_public": STANDARD.encode(tpm.ak_public_area()),
        "ek_public": tpm.ek().public.to_pem(),
    });
    let first = Written::new("1").json("PUT /register-ak", &submission);
    let input = first.bytes();
    let request = requests(input.get(1..).unwrap_or_default()).next();
    let request = request.expect("the request that was just written");
    let reply = ready(World::new(b'1').aks.respond(request.map(Full::new)));
    let reply: Value = serde_json::from_slice(&Reply::of(reply).body).expect("JSON");
    let text = |member: &str| reply.get(member).and_then(Value::as_str).expect("a text");
    let bytes = |member: &str| STANDARD.decode(text(member)).expect("base64");
    let credential = Credential::new(bytes("id_object"), bytes("encrypted_secret"));
    let answer = tpm.activate_credential(&credential).expect("its own challenge");
    let answer = STANDARD.encode(answer.expose("the node sends it back"));
    let proof = json!({"challenge": text("challenge"), "secret": answer});
    Written::new("1")
        .json("PUT /register-ak", &submission)
        .json("PUT /register-ak/proof", &proof)
        .json("PUT /register-ak/proof", &proof)
        .bytes()
}
