//! Members admitted by the join service, and members whose membership ends.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, ObjectMeta, PostParams};
use serde_json::{Value, json};
use tec_core::ak::Fingerprint;
use tec_core::port::{CreateOutcome, PortErrorKind};
use tec_core::testing::sample;
use tec_e2e::kube::{Bench, cluster};
use tec_e2e::settings::own_program;
use tec_k8s::api::Machine;
use tec_k8s::client::KubeRegistry;
use tec_node::grant::Claim;
use tec_node::member::KubeEnrollments;
use tec_node::rpc::{Enrollments as _, Settled};
use tec_node::state::Role;
use tec_support::SystemClock;

struct World {
    bench: Bench,
    members: KubeEnrollments,
}

/// A claim of this attestation key, name and disk.
fn claim(key: u64, name: &str, disk: u8) -> Claim {
    Claim {
        ak: sample::public_key(key).fingerprint(),
        name: name.parse().unwrap(),
        role: Role::Worker,
        disk: format!("00000000-0000-0000-0000-0000000000{disk:02x}").parse().unwrap(),
        addresses: BTreeSet::from([[10, 0, 0, disk].into()]),
    }
}

fn ek(number: u64) -> Fingerprint {
    sample::public_key(100 + number).fingerprint()
}

impl World {
    async fn new(policy: &Value) -> Self {
        let bench = Bench::new().await.unwrap();
        let mut object = cluster("cluster");
        object.spec.approval = Some(serde_json::from_value(policy.clone()).unwrap());
        bench.create(&object).await.unwrap();
        let clock = Arc::new(SystemClock);
        let registry = KubeRegistry::new(bench.admin().unwrap(), &bench.namespace, clock);
        Self { bench, members: KubeEnrollments::new(registry) }
    }

    /// The outcome of a key's claim; the kind of a refusal.
    async fn settle(
        &self,
        key: u64,
        claim: &Claim,
        ek: Option<Fingerprint>,
    ) -> Result<Settled, PortErrorKind> {
        let settled = self.members.settle(claim, &sample::public_key(key), ek).await;
        settled.map_err(|error| error.kind())
    }

    async fn machines(&self) -> usize {
        let machines = self.bench.objects::<Machine>().unwrap();
        machines.list(&ListParams::default()).await.unwrap().items.len()
    }

    /// A node joins, and its kubelet registers.
    async fn join(&self, key: u64, claim: &Claim, ek: Option<Fingerprint>) {
        assert_eq!(self.settle(key, claim, ek).await, Ok(Settled::Bound));
        assert_eq!(self.members.add(claim).await.unwrap(), CreateOutcome::Created);
        let name = Some(claim.name.to_string());
        let metadata = ObjectMeta { name, ..ObjectMeta::default() };
        let node = Node { metadata, ..Node::default() };
        self.nodes().create(&PostParams::default(), &node).await.unwrap();
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.bench.admin().unwrap())
    }

    async fn has_node(&self, name: &str) -> bool {
        self.nodes().get_opt(name).await.unwrap().is_some()
    }

    /// Installs the manifest's policy, over the members of this namespace.
    async fn guard_nodes(&self) {
        let manifest = include_str!("../../../bootstrapper/deploy/join-service.yaml");
        let objects: Vec<Value> = serde_saphyr::from_multiple(manifest).unwrap();
        let is_policy = |object: &&Value| {
            object["kind"].as_str().is_some_and(|kind| kind.starts_with("ValidatingAdmission"))
        };
        for object in objects.iter().filter(is_policy) {
            let mut object = object.clone();
            object["metadata"]["name"] = json!(self.bench.namespace);
            if object["spec"]["policyName"].is_string() {
                object["spec"]["policyName"] = json!(self.bench.namespace);
                object["spec"]["paramRef"]["namespace"] = json!(self.bench.namespace);
            }
            let object: DynamicObject = serde_json::from_value(object).unwrap();
            let kind = ApiResource::from_gvk(&(&object.types.clone().unwrap()).try_into().unwrap());
            let objects = Api::<DynamicObject>::all_with(self.bench.admin().unwrap(), &kind);
            objects.create(&PostParams::default(), &object).await.unwrap();
        }
    }

    /// Whether a kubelet may register its Node; changes nothing.
    async fn may_register(&self, name: &str) -> bool {
        let mut object = Node::default();
        object.metadata.name = Some(name.to_owned());
        // Authorization is not under test: such a user may do anything.
        let request = Request::post("/api/v1/nodes?dryRun=All")
            .header("content-type", "application/json")
            .header("impersonate-user", format!("system:node:{name}"))
            .header("impersonate-group", "system:nodes")
            .header("impersonate-group", "system:masters")
            .body(serde_json::to_vec(&object).unwrap())
            .unwrap();
        let answer = self.bench.admin().unwrap().request::<Node>(request).await;
        if let Err(kube::Error::Api(status)) = &answer {
            assert!(status.message.contains("no member is named"), "{status:?}");
        }
        answer.is_ok()
    }

    /// Runs `kubectl tec member`; returns whether it succeeded, and its output.
    fn member(&self, words: &[&str]) -> (bool, String) {
        let mut command = Command::new(own_program("tec").unwrap());
        let kubeconfig = self.bench.plane.admin_kubeconfig().unwrap();
        command.args(["--namespace", &self.bench.namespace, "--kubeconfig"]);
        let ran = command.arg(kubeconfig).arg("member").args(words).output().unwrap();
        let said = [ran.stdout, ran.stderr].concat();
        (ran.status.success(), String::from_utf8_lossy(&said).into_owned())
    }
}

#[tokio::test]
async fn a_tpm_leaves_one_machine_until_it_is_approved_and_none_if_it_cannot_be() {
    let world = World::new(&json!({"policy": "Manual"})).await;
    let first = claim(1, "tpm-1", 1);
    for _ in 0..2 {
        assert_eq!(world.settle(1, &first, Some(ek(1))).await, Ok(Settled::AwaitsApproval));
    }
    let denied = Err(PortErrorKind::Denied);
    assert_eq!(world.settle(2, &claim(2, "tpm-1", 2), Some(ek(1))).await, denied, "another key");
    assert_eq!(world.settle(1, &claim(1, "tpm-1", 3), Some(ek(1))).await, denied, "another disk");
    assert_eq!(world.settle(1, &claim(1, "tpm-1", 4), None).await, denied, "without proof");
    assert_eq!(world.machines().await, 1);

    let world = World::new(&json!({"policy": "EndorsementKey", "endorsementKeys": []})).await;
    let unproven = world.settle(1, &first, None).await;
    assert_eq!(unproven, Ok(Settled::NeedsEndorsementKey));
    assert_eq!(world.machines().await, 0);
}

#[tokio::test]
async fn a_removed_member_is_out_and_its_name_is_free() {
    let world = World::new(&json!({"policy": "FirstUse"})).await;
    let (name, gone) = ("member-1", claim(1, "member-1", 1));
    world.join(1, &gone, Some(ek(1))).await;
    assert!(!world.member(&["remove", name]).0, "nobody is there to ask");
    let (ok, said) = world.member(&["remove", name, "--dry-run"]);
    assert!(ok && said.contains("delete Node member-1"), "{said}");
    assert!(world.has_node(name).await);
    assert!(world.members.is_in_service(&gone).await.unwrap());

    for _ in 0..2 {
        let (ok, said) = world.member(&["remove", name, "--yes"]);
        assert!(ok, "a removal that is repeated changes nothing: {said}");
    }
    assert!(!world.has_node(name).await);
    assert!(!world.members.is_in_service(&gone).await.unwrap());
    assert_eq!(world.settle(1, &gone, Some(ek(1))).await, Ok(Settled::DiskRetired));
    let denied = Err(PortErrorKind::Denied);
    assert_eq!(
        world.settle(1, &claim(1, name, 2), Some(ek(1))).await,
        denied,
        "the key was revoked"
    );
    assert_eq!(world.settle(2, &claim(2, name, 2), Some(ek(1))).await, denied, "so was the TPM");
    let thief = claim(3, name, 1);
    assert_eq!(world.settle(3, &thief, Some(ek(3))).await, Ok(Settled::DiskRetired));
    assert_eq!(world.members.add(&thief).await.unwrap(), CreateOutcome::Existed);

    let next = claim(3, name, 3);
    let held = world.settle(3, &next, Some(ek(3))).await;
    assert!(matches!(held, Ok(Settled::NameHeld(_))), "the old certificate counts: {held:?}");
    assert_eq!(world.members.add(&next).await.unwrap(), CreateOutcome::Existed);
    let (ok, said) = world.member(&["remove", name, "--yes", "--dangerous-free-name"]);
    assert!(ok, "{said}");
    world.join(3, &next, Some(ek(3))).await;
    let (ok, said) = world.member(&["remove", name, "--yes"]);
    assert!(!ok && said.contains("--disk"), "repeated once more, it spares the next one: {said}");
    assert!(world.has_node(name).await);
    let (ok, said) = world.member(&["list"]);
    let lines: Vec<_> = said.lines().filter(|line| line.starts_with(name)).collect();
    assert!(ok && lines.len() == 2, "{said}");
    assert!(lines.iter().any(|line| line.contains(" removed ")), "{said}");
    world.nodes().delete(name, &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn a_removal_that_was_cut_off_is_finished_and_its_kubelet_registers_no_node_meanwhile() {
    let world = World::new(&json!({"policy": "FirstUse"})).await;
    let (name, gone) = ("member-3", claim(1, "member-3", 1));
    world.join(1, &gone, Some(ek(1))).await;
    world.guard_nodes().await;
    // The API server picks up new policies only now and then.
    while world.may_register("member-of-none").await {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    world.nodes().delete(name, &DeleteParams::default()).await.unwrap();
    assert!(world.may_register(name).await);
    // The state left by a command whose process died.
    world.members.begin_removal(&gone, &BTreeSet::new()).await.unwrap();
    while world.may_register(name).await {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(!world.members.is_in_service(&gone).await.unwrap());
    assert_eq!(world.settle(1, &gone, Some(ek(1))).await, Ok(Settled::DiskRetired));
    assert!(world.member(&["list"]).1.contains(" leaving "));
    let other = claim(3, name, 3);
    assert_eq!(world.members.add(&other).await.unwrap(), CreateOutcome::Existed);
    let (ok, said) = world.member(&["remove", name, "--yes"]);
    assert!(ok, "{said}");
    assert!(!world.has_node(name).await);
    assert_eq!(world.members.list().await.unwrap(), []);
}

#[tokio::test]
async fn a_control_plane_leaves_only_while_another_one_is_ready() {
    let world = World::new(&json!({"policy": "FirstUse"})).await;
    let plane =
        |key: u8, name: &str| Claim { role: Role::ControlPlane, ..claim(key.into(), name, key) };
    let (first, second) = (plane(1, "plane-1"), plane(2, "plane-2"));
    world.join(1, &first, Some(ek(1))).await;
    world.join(2, &second, Some(ek(2))).await;
    let (ok, said) = world.member(&["remove", "plane-1", "--yes"]);
    assert!(!ok && said.contains("no other control plane"), "plane-2 is not Ready: {said}");
    assert!(world.members.is_in_service(&first).await.unwrap(), "nothing was changed");
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let params = kube::api::PatchParams::default();
    let patch = kube::api::Patch::Strategic(&ready);
    world.nodes().patch_status("plane-2", &params, &patch).await.unwrap();
    let (ok, said) = world.member(&["remove", "plane-1", "--yes"]);
    assert!(ok, "{said}");
    assert!(!world.member(&["remove", "plane-2", "--yes"]).0, "it is the last one");
    world.nodes().delete("plane-2", &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn a_replaced_node_joins_with_its_key_and_a_new_disk() {
    let world = World::new(&json!({"policy": "FirstUse"})).await;
    let name = "member-2";
    world.join(1, &claim(1, name, 1), Some(ek(1))).await;
    let reinstalled = claim(1, name, 2);
    let before = world.settle(1, &reinstalled, Some(ek(1))).await;
    assert_eq!(before, Err(PortErrorKind::Denied), "nobody said that it may");
    let (ok, said) = world.member(&["replace", name, "--tpm", "same", "--yes"]);
    assert!(ok, "{said}");
    assert_eq!(world.machines().await, 0);
    assert_eq!(world.settle(1, &claim(1, name, 1), Some(ek(1))).await, Ok(Settled::DiskRetired));
    world.join(1, &reinstalled, Some(ek(1))).await;

    let (ok, said) = world.member(&["addresses", name, "10.0.0.2", "fd00::2"]);
    assert!(ok, "{said}");
    let claims = world.members.list().await.unwrap();
    assert_eq!(claims[0].addresses, ["10.0.0.2", "fd00::2"].map(|one| one.parse().unwrap()).into());
    world.nodes().delete(name, &DeleteParams::default()).await.unwrap();
}
