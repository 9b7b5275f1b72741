//! The servers that nodes reach, on a real API server, with the rights that their packages give
//! them. Names begin with the number of the check (upstream-operator 5.6).
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test's own tools may fail the test"
)]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::time::Duration;

use kube::Api;
use kube::ResourceExt as _;
use kube::api::ListParams;
use kube::api::PostParams;
use reqwest::StatusCode;
use serde_json::Value;
use serde_json::json;
use tec_core::testing::sample;
use tec_e2e::kube::ControlPlane;
use tec_e2e::kube::Server;
use tec_k8s::api::AttestationKey;
use tec_k8s::api::Machine;
use tec_k8s::api::TrustedExecutionCluster;
use tec_k8s::render::Component;
use tokio::sync::OnceCell;
use tokio::time::Instant;

/// What the operator or the kubelet changes counts by then.
const SOON: Duration = Duration::from_secs(30);
const CONFIG: &str = "/ignition-clevis-pin-trustee";

static PLANE: OnceCell<ControlPlane> = OnceCell::const_new();

/// One control plane for all tests; it ends with the process.
async fn plane() -> &'static ControlPlane {
    PLANE
        .get_or_init(async || {
            let plane = ControlPlane::start().await.unwrap();
            plane.install_resources().await.unwrap();
            plane
        })
        .await
}

struct World {
    plane: &'static ControlPlane,
    namespace: String,
    http: reqwest::Client,
}

impl World {
    async fn new(word: &str) -> Self {
        let plane = plane().await;
        Self {
            plane,
            namespace: plane.namespace(word).await.unwrap(),
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
        }
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.plane.admin().unwrap(), &self.namespace)
    }

    async fn cluster(&self, name: &str, spec: &Value) -> TrustedExecutionCluster {
        let object = json!({
            "apiVersion": "trusted-execution-clusters.io/v1alpha1",
            "kind": "TrustedExecutionCluster",
            "metadata": { "name": name },
            "spec": spec,
        });
        let object = serde_json::from_value(object).unwrap();
        self.api()
            .create(&PostParams::default(), &object)
            .await
            .unwrap()
    }

    async fn server(&self, component: Component, flags: &[&OsStr]) -> Server {
        Server::start(self.plane, component, &self.namespace, flags)
            .await
            .unwrap()
    }

    async fn machines(&self) -> Vec<Machine> {
        self.api().list(&ListParams::default()).await.unwrap().items
    }

    async fn keys(&self) -> Vec<AttestationKey> {
        self.api().list(&ListParams::default()).await.unwrap().items
    }

    async fn get(&self, server: &Server, path: &str) -> (StatusCode, Value) {
        let answer = self.http.get(format!("http://{}{path}", server.address));
        let answer = answer.send().await.unwrap();
        let status = answer.status();
        (
            status,
            serde_json::from_str(&answer.text().await.unwrap()).unwrap_or_default(),
        )
    }

    /// Asks until the status is the one that is expected.
    async fn until(&self, server: &Server, expected: StatusCode) -> Value {
        let end = Instant::now() + SOON;
        loop {
            let (status, body) = self.get(server, CONFIG).await;
            if status == expected {
                return body;
            }
            assert!(
                Instant::now() < end,
                "{status} {body}: {}",
                server.log().unwrap()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn put(&self, server: &Server, body: &Value) -> (StatusCode, Value) {
        let answer = self
            .http
            .put(format!("http://{}/register-ak", server.address));
        let answer = answer.header("content-type", "application/json");
        let answer = answer.body(body.to_string()).send().await.unwrap();
        let status = answer.status();
        (
            status,
            serde_json::from_str(&answer.text().await.unwrap()).unwrap(),
        )
    }

    async fn machine(&self, number: u64) -> String {
        let id = sample::machine_id(number).to_string();
        let object = json!({
            "apiVersion": "trusted-execution-clusters.io/v1alpha1", "kind": "Machine",
            "metadata": { "name": format!("machine-{id}") }, "spec": { "id": id },
        });
        let object: Machine = serde_json::from_value(object).unwrap();
        self.api()
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
        id
    }
}

/// The config of the pin, which is text within the config of Ignition.
fn pin(config: &Value) -> Value {
    let clevis = &config["storage"]["luks"][0]["clevis"]["custom"];
    assert_eq!(
        (&clevis["pin"], &clevis["needsNetwork"]),
        (&json!("trustee"), &json!(true))
    );
    serde_json::from_str(clevis["config"].as_str().unwrap()).unwrap()
}

fn id_of(pin: &Value) -> String {
    let path = pin["path"].as_str().unwrap();
    let id = path
        .strip_prefix("default/")
        .and_then(|rest| rest.strip_suffix("/root"));
    id.unwrap().to_owned()
}

/// Without members that are null, which mean the same as none.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let members = members.into_iter().filter(|(_, value)| !value.is_null());
            members
                .map(|(name, value)| (name, without_nulls(value)))
                .collect()
        }
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn check_03_two_nodes_get_two_machines_and_the_documented_config() {
    let world = World::new("register").await;
    let cluster = world
        .cluster(
            "c",
            &json!({
                "publicTrusteeAddr": "kbs.example:8080",
                "publicAttestationKeyRegisterAddr": "ak.example:8001",
            }),
        )
        .await;
    let server = world.server(Component::RegisterServer, &[]).await;
    let first = world.until(&server, StatusCode::OK).await;
    let mut ids = BTreeSet::from([id_of(&pin(&first))]);
    for path in ["/ignition", "/register", "/ignitioni-clevis-pin-trustee"] {
        let (status, config) = world.get(&server, path).await;
        assert_eq!(status, StatusCode::OK, "{path}");
        ids.insert(id_of(&pin(&config)));
    }
    let machines = world.machines().await;
    assert_eq!((ids.len(), machines.len()), (4, 4));
    for machine in machines {
        assert!(ids.contains(&machine.spec.id));
        assert_eq!(machine.name_any(), format!("machine-{}", machine.spec.id));
        let owners = machine.owner_references();
        assert_eq!(owners.len(), 1);
        assert_eq!(Some(&owners[0].uid), cluster.metadata.uid.as_ref());
    }
    let id = id_of(&pin(&first));
    let expected = json!({
        "servers": [{ "url": "http://kbs.example:8080", "cert": "" }],
        "path": format!("default/{id}/root"),
        "attestation_key": { "registration": {
            "url": "http://ak.example:8001/register-ak", "uuid": id, "cert": "",
        }},
    });
    assert_eq!(without_nulls(pin(&first)), expected);
    let mut outer = without_nulls(first);
    outer["storage"]["luks"][0]["clevis"]["custom"]["config"] = Value::Null;
    let expected = json!({
        "ignition": { "version": "3.6.0" },
        "storage": {
            "filesystems": [{
                "device": "/dev/mapper/root", "format": "ext4", "label": "root",
                "wipeFilesystem": true,
            }],
            "luks": [{
                "name": "root", "label": "root", "device": "/dev/disk/by-partlabel/root",
                "wipeVolume": true,
                "clevis": { "custom": { "pin": "trustee", "needsNetwork": true } },
            }],
        },
    });
    assert_eq!(without_nulls(outer), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn check_04_without_address_or_authority_nobody_is_registered() {
    let world = World::new("fail-closed").await;
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca.crt");
    let flags = [OsStr::new("--kbs-ca"), ca.as_os_str()];
    let server = world.server(Component::RegisterServer, &flags).await;
    let not_ready = StatusCode::SERVICE_UNAVAILABLE;
    let body = world.until(&server, not_ready).await;
    assert_eq!(
        (&body["code"], &body["error"]),
        (&json!(503), &json!("TEC-R504"))
    );

    let cluster = world
        .cluster("c", &json!({ "trusteeSecret": "kbs-tls" }))
        .await;
    assert_eq!(world.get(&server, CONFIG).await.0, not_ready);
    let patch = json!({ "spec": { "publicTrusteeAddr": "kbs.example" } });
    let clusters: Api<TrustedExecutionCluster> = world.api();
    let params = kube::api::PatchParams::default();
    let patch = kube::api::Patch::Merge(patch);
    clusters
        .patch(&cluster.name_any(), &params, &patch)
        .await
        .unwrap();
    // The address is there, and the authority is not: what the log says is not told to nodes.
    let end = Instant::now() + SOON;
    while !server.log().unwrap().contains("ca.crt") {
        assert!(Instant::now() < end, "{}", server.log().unwrap());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (status, body) = world.get(&server, CONFIG).await;
    assert_eq!(status, not_ready);
    assert!(!body.to_string().contains("ca.crt"), "{body}");
    fs::write(&ca, "no certificate").unwrap();
    assert_eq!(world.get(&server, CONFIG).await.0, not_ready);
    assert_eq!(world.machines().await.len(), 0);

    // As soon as it is there, nodes that come back are registered.
    let key = rcgen::KeyPair::generate().unwrap();
    let authority = rcgen::CertificateParams::default()
        .self_signed(&key)
        .unwrap()
        .pem();
    fs::write(&ca, &authority).unwrap();
    let pin = pin(&world.until(&server, StatusCode::OK).await);
    assert_eq!(
        pin["servers"][0],
        json!({ "url": "https://kbs.example", "cert": authority })
    );
    assert_eq!(pin["attestation_key"], Value::Null);
    assert_eq!(world.machines().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn check_05_a_second_cluster_object_disturbs_nothing() {
    let world = World::new("two").await;
    world
        .cluster("z", &json!({ "publicTrusteeAddr": "first.example" }))
        .await;
    let server = world.server(Component::RegisterServer, &[]).await;
    world.until(&server, StatusCode::OK).await;
    // Ages are in whole seconds; of the same age, the name decides.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    world
        .cluster("a", &json!({ "publicTrusteeAddr": "second.example" }))
        .await;
    for _ in 0..10 {
        let (status, config) = world.get(&server, CONFIG).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(pin(&config)["servers"][0]["url"], "http://first.example");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let clusters: Api<TrustedExecutionCluster> = world.api();
    clusters
        .delete("z", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    let end = Instant::now() + SOON;
    loop {
        let (status, config) = world.get(&server, CONFIG).await;
        if status == StatusCode::OK && pin(&config)["servers"][0]["url"] == "http://second.example"
        {
            break;
        }
        assert!(Instant::now() < end, "{status} {config}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn check_06_keys_are_taken_once_and_only_for_machines_that_wait() {
    let world = World::new("keys").await;
    world
        .cluster("c", &json!({ "publicTrusteeAddr": "kbs.example" }))
        .await;
    let (id, other) = (world.machine(1).await, world.machine(2).await);
    let server = world.server(Component::AttestationKeyRegister, &[]).await;
    let key = |number| sample::public_key(number).to_pem();

    let body = json!({ "public_key": key(1), "uuid": id });
    let (status, answer) = world.put(&server, &body).await;
    assert_eq!(
        (status, answer),
        (StatusCode::CREATED, json!({ "status": "success" }))
    );
    for uuid in [&id, &other] {
        let (status, answer) = world
            .put(&server, &json!({ "public_key": key(1), "uuid": uuid }))
            .await;
        assert_eq!(
            (status, &answer["status"]),
            (StatusCode::CONFLICT, &json!("error"))
        );
    }
    let (_, answer) = world.put(&server, &body).await;
    assert_eq!(answer["message"], "Public key already registered");
    let alias = json!({ "attestation_key": key(2), "uuid": other });
    assert_eq!(world.put(&server, &alias).await.0, StatusCode::CREATED);

    // Nothing is kept of what can never be matched.
    let unknown = sample::machine_id(9).to_string();
    for (body, expected) in [
        (json!({ "public_key": key(3) }), 404),
        (json!({ "public_key": key(3), "uuid": unknown }), 404),
        (json!({ "public_key": key(3), "uuid": "x" }), 400),
        (json!({ "public_key": "no key", "uuid": id }), 422),
        (json!({ "uuid": id }), 400),
    ] {
        let (status, answer) = world.put(&server, &body).await;
        assert_eq!(
            (status.as_u16(), &answer["status"]),
            (expected, &json!("error")),
            "{body}"
        );
    }
    let keys = world.keys().await;
    assert_eq!(keys.len(), 2);
    for object in keys {
        assert!(object.name_any().starts_with("ak-"));
        assert_eq!(object.owner_references().len(), 1);
        assert!(object.public().is_ok());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn check_06_of_equal_keys_at_the_same_moment_one_is_kept() {
    let world = World::new("race").await;
    world
        .cluster("c", &json!({ "publicTrusteeAddr": "kbs.example" }))
        .await;
    let id = world.machine(1).await;
    // Two replicas, which know nothing of each other.
    let one = world.server(Component::AttestationKeyRegister, &[]).await;
    let two = world.server(Component::AttestationKeyRegister, &[]).await;
    let body = json!({ "public_key": sample::public_key(1).to_pem(), "uuid": id });
    let calls = (0..16).map(|number| world.put(if number % 2 == 0 { &one } else { &two }, &body));
    let answers = futures::future::join_all(calls).await;
    let created = answers
        .iter()
        .filter(|(status, _)| *status == StatusCode::CREATED)
        .count();
    let conflicts = answers
        .iter()
        .filter(|(status, _)| *status == StatusCode::CONFLICT)
        .count();
    assert_eq!((created, conflicts), (1, 15), "{answers:?}");
    assert_eq!(world.keys().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_cannot_fill_the_cluster() {
    let world = World::new("limits").await;
    world
        .cluster(
            "c",
            &json!({
                "publicTrusteeAddr": "kbs.example", "registration": { "maxUnclaimed": 3 },
            }),
        )
        .await;
    let server = world.server(Component::RegisterServer, &[]).await;
    world.until(&server, StatusCode::OK).await;
    let calls = (0..20).map(|_| world.get(&server, CONFIG));
    let answers = futures::future::join_all(calls).await;
    let refused = answers
        .iter()
        .filter(|(status, _)| *status == StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.count(), 18, "{answers:?}");
    assert_eq!(world.machines().await.len(), 3);

    let id = world.machines().await[0].spec.id.clone();
    let keys = world.server(Component::AttestationKeyRegister, &[]).await;
    for number in 1..=6 {
        let key = sample::public_key(number).to_pem();
        let (status, _) = world
            .put(&keys, &json!({ "public_key": key, "uuid": id }))
            .await;
        let expected = if number <= 4 {
            StatusCode::CREATED
        } else {
            StatusCode::TOO_MANY_REQUESTS
        };
        assert_eq!(status, expected, "{number}");
    }
    let metrics = world.http.get(format!("http://{}/metrics", keys.status));
    let metrics = metrics.send().await.unwrap().text().await.unwrap();
    for line in [
        "tec_ak_register_requests_total{code=\"ok\"} 4",
        "tec_ak_register_requests_total{code=\"TEC-R430\"} 2",
        "tec_ak_register_request_duration_seconds_count 6",
    ] {
        assert!(
            metrics.lines().any(|found| found == line),
            "{line} in {metrics}"
        );
    }
    assert!(!metrics.contains(&id));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_registration_policy_counts_at_once() {
    let world = World::new("policy").await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    fs::write(&file, "0123456789abcdef\n").unwrap();
    let flags = [OsStr::new("--token-file"), file.as_os_str()];
    let server = world.server(Component::RegisterServer, &flags).await;
    world
        .cluster(
            "c",
            &json!({
                "publicTrusteeAddr": "kbs.example", "registration": { "mode": "Token" },
            }),
        )
        .await;
    world.until(&server, StatusCode::UNAUTHORIZED).await;
    let call = world.http.get(format!("http://{}{CONFIG}", server.address));
    let call = call.header("authorization", "Bearer 0123456789abcdef");
    assert_eq!(call.send().await.unwrap().status(), StatusCode::OK);
    let manual = json!({ "spec": { "registration": { "mode": "Manual" } } });
    let clusters: Api<TrustedExecutionCluster> = world.api();
    let params = kube::api::PatchParams::default();
    let manual = kube::api::Patch::Merge(manual);
    clusters.patch("c", &params, &manual).await.unwrap();
    let body = world.until(&server, StatusCode::FORBIDDEN).await;
    assert_eq!(body["error"], "TEC-R403");
    assert_eq!(world.machines().await.len(), 1);
}
