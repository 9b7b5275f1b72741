//! A real Trustee in place of our own key broker: in the pod that the operator renders, with the files that
//! it writes, the guard in front, fed by the operator, and queried by nodes with software TPMs.
//!
//! `TRUSTEE_BIN` is the path of its program `kbs`, of generation v0.21, built elsewhere with the TPM
//! verifier.

use std::net::SocketAddr;
use std::path::PathBuf;

use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt as _;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;
use tec_core::code::Code;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_e2e::kube::{Bench, Container, Guarded, eventually, plain_cluster};
use tec_k8s::api::{AttestationKey, Machine, PublishMode, PublishSpec};
use tec_support::testing::free_address;
use tec_tpm::testing::SoftTpm;
use tec_tpm::tpm::AnyTpm as _;
use tec_trustee::wire::{ErrorBody, ErrorKind};

use super::broker::{Node, approve};
use super::guard;

const DEPLOYMENT: &str = "trustee-deployment";
/// Address of the key broker in its pod.
const LOOPBACK: &str = "127.0.0.1:8081";

/// The Trustee to test.
fn kbs() -> PathBuf {
    let kbs = std::env::var_os("TRUSTEE_BIN").map(PathBuf::from).unwrap();
    assert!(kbs.is_file(), "TRUSTEE_BIN is not a file: {}", kbs.display());
    kbs
}

struct World {
    bench: Bench,
    kbs: PathBuf,
    upstream: SocketAddr,
    /// The guard's address.
    url: String,
    guard: guard::Pod,
    trustee: Option<(Container, Guarded)>,
    _operator: Guarded,
}

impl World {
    async fn new(kbs: PathBuf) -> Self {
        let mut world = Self::without_pod(kbs, PublishMode::KbsApi).await;
        world.start_trustee().await;
        world
    }

    /// The operator is running, and the guard has nothing behind it.
    async fn without_pod(kbs: PathBuf, mode: PublishMode) -> Self {
        let bench = Bench::new().await.unwrap();
        let mut object = plain_cluster("cluster");
        let mut publish = PublishSpec::default();
        publish.mode = mode;
        object.spec.publish = Some(publish);
        bench.create(&object).await.unwrap();
        let upstream = free_address().unwrap();
        let guard = guard::Pod::start(&bench, upstream).await;
        let url = format!("http://{}", guard::address(&guard.program).await);
        let operator = bench.start_program("one", &["--trustee-url", &url]).unwrap();
        approve(&bench, "image").await;
        let world = Self { bench, kbs, upstream, url, guard, trustee: None, _operator: operator };
        eventually("the operator makes the pod", async || world.is_rendered().await).await.unwrap();
        world
    }

    /// The result of the pod's probes.
    async fn is_ready(&self) -> bool {
        let metrics = guard::metrics_address(&self.guard.program).await;
        let answer = client().get(format!("http://{metrics}/readyz")).send().await.unwrap();
        answer.status().is_success()
    }

    async fn is_rendered(&self) -> anyhow::Result<bool> {
        let deployments = self.bench.objects::<Deployment>()?;
        Ok(deployments.get_opt(DEPLOYMENT).await?.is_some())
    }

    /// A new pod, with new volumes.
    async fn start_trustee(&mut self) {
        self.trustee = None;
        let upstream = self.upstream.to_string();
        let container = Container::of(&self.bench, (DEPLOYMENT, "kbs"), (LOOPBACK, &upstream));
        let container = container.await.unwrap();
        let program = container.start(&self.kbs, self.bench.plane.logs()).unwrap();
        let listens = async || Ok(std::net::TcpStream::connect(self.upstream).is_ok());
        let came = eventually("the Trustee listens", listens).await;
        assert!(came.is_ok(), "{came:?} {}", program.log().unwrap());
        self.trustee = Some((container, program));
    }

    /// Reports pods like the controller that runs them.
    async fn report(&self, available: i32) {
        let status = json!({"status": {
            "replicas": 1, "availableReplicas": available, "readyReplicas": available,
            "updatedReplicas": 1, "observedGeneration": 1,
            "conditions": [{
                "type": "Available", "status": if available > 0 { "True" } else { "False" },
            }],
        }});
        let deployments = self.bench.objects::<Deployment>().unwrap();
        let params = PatchParams::default();
        deployments.patch_status(DEPLOYMENT, &params, &Patch::Merge(status)).await.unwrap();
    }

    /// Waits until a node gets its own key, and returns it.
    async fn unlocks(&self, node: &Node) -> Vec<u8> {
        let mut last = None;
        let mut key = Vec::new();
        let came = eventually("the node unlocks", async || {
            match node.unlock_at(&self.url, &node.id).await {
                Ok(released) => key = released,
                Err(error) => last = Some(error),
            }
            Ok(!key.is_empty())
        })
        .await;
        assert!(came.is_ok(), "{last:?}\n{}\n{}", self.log(), self.guard.program.log().unwrap());
        key
    }

    async fn is_refused(&self, node: &Node) -> Code {
        let mut code = None;
        eventually("the node is refused", async || {
            code = node.unlock_at(&self.url, &node.id).await.err().map(|error| error.code());
            Ok(code.is_some())
        })
        .await
        .unwrap();
        code.unwrap()
    }

    fn log(&self) -> String {
        self.trustee.as_ref().map(|(_, program)| program.log().unwrap()).unwrap_or_default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs trustee: set TRUSTEE_BIN"]
async fn a_real_trustee_releases_to_the_machine_itself_after_an_approved_boot_alone() {
    let world = World::new(kbs()).await;
    let (mut one, two) =
        (Node::register(&world.bench, 1).await, Node::register(&world.bench, 2).await);
    let key = world.unlocks(&one).await;
    assert_ne!(world.unlocks(&two).await, key);
    let refused = one.unlock_at(&world.url, &two.id).await.unwrap_err();
    assert_eq!(refused.code(), Code::ReleaseDenied, "another machine's key");

    let evil = Sha256Digest::of("evil");
    one.tpm.as_ref().unwrap().pcr_extend(PcrIndex::BOOT_MANAGER, &evil).unwrap();
    assert_eq!(world.is_refused(&one).await, Code::PcrMismatch, "another boot");
    one.reboot();
    assert_eq!(world.unlocks(&one).await, key);

    let keys = world.bench.objects::<AttestationKey>().unwrap();
    let revoke = Patch::Merge(json!({"spec": {"revokedAt": "2026-01-01T00:00:00Z"}}));
    keys.patch(&one.key.name_any(), &PatchParams::default(), &revoke).await.unwrap();
    assert_eq!(world.is_refused(&one).await, Code::AkNotBound, "revoked");
    let stranger = two.on_another_tpm();
    assert_eq!(world.is_refused(&stranger).await, Code::AkNotBound, "a key of no machine");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs trustee: set TRUSTEE_BIN"]
async fn a_real_trustee_that_lost_its_pod_is_filled_again_with_the_same_keys() {
    let mut world = World::new(kbs()).await;
    let node = Node::register(&world.bench, 1).await;
    world.report(1).await;
    let key = world.unlocks(&node).await;
    assert!(world.is_ready().await);
    world.trustee = None;
    assert!(!world.is_ready().await);
    world.report(0).await;
    world.start_trustee().await;
    assert!(world.is_ready().await);
    world.report(1).await;
    assert_eq!(world.unlocks(&node).await, key);
}

/// Its admin API is closed; everything is a file from a ConfigMap or a Secret.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs trustee: set TRUSTEE_BIN"]
async fn a_real_trustee_whose_files_are_mounted_releases_to_the_machine_itself() {
    let mut world = World::without_pod(kbs(), PublishMode::Volumes).await;
    let (mut one, two) =
        (Node::register(&world.bench, 1).await, Node::register(&world.bench, 2).await);
    let machines = world.bench.objects::<Machine>().unwrap();
    let published = async || {
        let all = machines.list(&ListParams::default()).await?;
        let mut all = all.iter().map(|machine| machine.status.clone().unwrap_or_default());
        Ok(all.all(|status| !status.published_to.is_empty() && status.attestation_key.is_some()))
    };
    eventually("everything is mounted", published).await.unwrap();
    world.start_trustee().await;
    let key = world.unlocks(&one).await;
    assert_ne!(world.unlocks(&two).await, key);
    let refused = one.unlock_at(&world.url, &two.id).await.unwrap_err();
    assert_eq!(refused.code(), Code::ReleaseDenied, "another machine's key");
    let evil = Sha256Digest::of("evil");
    one.tpm.as_ref().unwrap().pcr_extend(PcrIndex::BOOT_MANAGER, &evil).unwrap();
    assert_eq!(world.is_refused(&one).await, Code::PcrMismatch, "another boot");
    one.reboot();
    assert_eq!(world.unlocks(&one).await, key);
}

/// Requests of strangers: method, path, header, body.
type Ask = (&'static str, &'static str, Option<(&'static str, &'static str)>, &'static str);

const STRANGERS: &[Ask] = &[
    ("POST", "/kbs/v0/auth", None, ""),
    ("POST", "/kbs/v0/auth", None, "{"),
    ("POST", "/kbs/v0/auth", None, r#"{"version":"0.4.0","tee":"tpm"}"#),
    ("POST", "/kbs/v0/auth", None, r#"{"version":"0.4.1","tee":"tpm","extra-params":{}}"#),
    ("POST", "/kbs/v0/auth", None, r#"{"version":"0.3.0","tee":"tpm","extra-params":{}}"#),
    ("POST", "/kbs/v0/auth", None, r#"{"version":"0.4.0","tee":"wizard","extra-params":{}}"#),
    ("GET", "/kbs/v0/auth", None, ""),
    ("PUT", "/kbs/v0/attest", None, ""),
    ("POST", "/kbs/v0/attest", None, "{}"),
    ("POST", "/kbs/v0/attest", Some(("cookie", "kbs-session-id=")), "{}"),
    (
        "POST",
        "/kbs/v0/attest",
        Some(("cookie", "kbs-session-id=00000000000040008000000000000000")),
        "{}",
    ),
    ("GET", "/kbs/v0/resource/a/b/c", None, ""),
    ("GET", "/kbs/v0/resource/a/b/c", Some(("authorization", "Bearer garbage")), ""),
    ("GET", "/kbs/v0/resource/a/b/c", Some(("authorization", "Bearer a.b.c")), ""),
    ("GET", "/kbs/v0/resource/a/b/c", Some(("authorization", "Basic Zm9v")), ""),
    ("GET", "/kbs/v0/resource/a/b", None, ""),
    ("GET", "/kbs/v0/resource/a/b/c/d", None, ""),
    ("GET", "/kbs/v0/resource", None, ""),
    ("POST", "/kbs/v0/resource/a/b/c", None, "x"),
    ("POST", "/kbs/v0/resource/a/b/c", Some(("authorization", "Bearer garbage")), "x"),
    ("DELETE", "/kbs/v0/resource/a/b/c", None, ""),
    ("PUT", "/kbs/v0/resource/a/b/c", None, "x"),
    ("POST", "/kbs/v0/resource-policy", None, "{}"),
    ("GET", "/kbs/v0/resource-policy", None, ""),
    ("POST", "/kbs/v0/attestation-policy", None, "{}"),
    ("GET", "/kbs/v0/attestation-policy", None, ""),
    ("POST", "/kbs/v0/reference-value", None, "{}"),
    ("GET", "/kbs/v0/reference-value/x", None, ""),
    ("DELETE", "/kbs/v0/reference-value/x", None, ""),
    ("GET", "/kbs/v0/nothing", None, ""),
    ("GET", "/kbs/v0/", None, ""),
    ("GET", "/kbs/v0", None, ""),
    ("GET", "/", None, ""),
    ("GET", "/healthz", None, ""),
    ("POST", "/healthz", None, ""),
    ("PATCH", "/kbs/v0/auth", None, ""),
    ("HEAD", "/healthz", None, ""),
];

fn client() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::new()
}

/// Status, media type, and type of the error.
async fn reply(
    server: SocketAddr,
    (method, path, header, body): &Ask,
) -> (u16, Option<String>, Option<ErrorKind>) {
    let mut request = client().request(method.parse().unwrap(), format!("http://{server}{path}"));
    if let Some((name, value)) = header {
        request = request.header(*name, *value);
    }
    let answer = request.body(*body).send().await.unwrap();
    let media = answer.headers().get("content-type").map(|value| value.to_str().unwrap().into());
    let (status, body) = (answer.status().as_u16(), answer.bytes().await.unwrap());
    let error = serde_json::from_slice::<ErrorBody>(&body).ok();
    (status, media, error.map(|error| error.error_kind()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs trustee: set TRUSTEE_BIN"]
async fn our_broker_refuses_strangers_as_a_real_trustee_does() {
    let world = World::new(kbs()).await;
    let ours = guard::broker(&SoftTpm::rsa(1)).await;
    for ask in STRANGERS {
        assert_eq!(reply(ours, ask).await, reply(world.upstream, ask).await, "{ask:?}");
    }
}
