//! What `spec.onUntrusted` does about machines that no longer attest well: on Nodes of a real API server.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tec_core::explain::Gate;
use tec_core::id::MachineId;
use tec_core::machine::{Machine as Known, RegisteredBy};
use tec_core::port::{AttemptLog as _, Clock as _};
use tec_core::testing::sample;
use tec_e2e::kube::{Bench, cluster, eventually};
use tec_k8s::api::{
    AttestationKey, CORDONED, MACHINE_LABEL, Machine, MachineStatus, PROTECTED_MACHINE_LABEL,
    TrustedExecutionCluster, UNTRUSTED_TAINT,
};
use tec_k8s::client::{AttemptRecords, KubeRegistry};
use tec_k8s::render::{Installation, Object, node_rights};
use tec_k8s::signal::Event;
use tec_support::SystemClock;

use crate::events::reported;
use crate::standing::plugin;

/// A namespace with a policy, and the Nodes of its machines.
struct World {
    bench: Bench,
    nodes: Api<Node>,
}

fn id(number: u64) -> MachineId {
    sample::machine_id(number)
}

impl World {
    /// With the rights on Nodes that the packages grant.
    async fn new(policy: Value) -> Self {
        let world = Self::without_rights(policy).await;
        let admin = world.bench.admin().unwrap();
        let mut installation = Installation::default();
        installation.namespace.clone_from(&world.bench.namespace);
        let params = PostParams::default();
        for object in node_rights(&installation) {
            match object {
                Object::ClusterRole(role) => {
                    let roles = Api::<ClusterRole>::all(admin.clone());
                    roles.create(&params, &role).await.unwrap();
                }
                Object::ClusterRoleBinding(binding) => {
                    let bindings = Api::<ClusterRoleBinding>::all(admin.clone());
                    bindings.create(&params, &binding).await.unwrap();
                }
                other => panic!("{other:?}"),
            }
        }
        world
    }

    async fn without_rights(policy: Value) -> Self {
        let mut object = cluster("cluster");
        object.spec.on_untrusted = Some(serde_json::from_value(policy).unwrap());
        let bench = Bench::at_work_on(&object).await.unwrap();
        let nodes = Api::all(bench.admin().unwrap());
        Self { bench, nodes }
    }

    /// Nodes have no namespace, and the tests share a control plane.
    fn name(&self, number: u64) -> String {
        format!("{}-worker-{number}", self.bench.namespace)
    }

    /// A machine with a bound key, and this node name.
    async fn machine(&self, number: u64, node: &str) {
        let known = Known::unclaimed(id(number), RegisteredBy::FirstBoot, SystemClock.now());
        let mut machine = Machine::from_core(&known);
        machine.spec.node_name = Some(node.to_owned());
        self.bench.create(&machine).await.unwrap();
        let key = AttestationKey::from_core(&sample::ak(number, number));
        self.bench.create(&key).await.unwrap();
        eventually("the key is bound", async || {
            Ok(self.status(number).await.attestation_key.is_some())
        })
        .await
        .unwrap();
    }

    /// A Node with this label and spec.
    async fn node(&self, name: &str, label: (&str, MachineId), spec: Value) {
        let labels = json!({label.0: label.1.to_string()});
        let node = json!({"metadata": {"name": name, "labels": labels}, "spec": spec});
        let node: Node = serde_json::from_value(node).unwrap();
        self.nodes.create(&PostParams::default(), &node).await.unwrap();
    }

    /// A machine and its Node, which name each other.
    async fn pair(&self, number: u64) {
        let name = self.name(number);
        self.node(&name, (MACHINE_LABEL, id(number)), json!({})).await;
        self.machine(number, &name).await;
    }

    /// What the guard records about a machine.
    async fn attempt(&self, number: u64, serial: u64, is_good: bool) {
        let admin = self.bench.admin().unwrap();
        let registry = KubeRegistry::new(admin, &self.bench.namespace, Arc::new(SystemClock));
        let mut attempt = sample::attempt_in_boot(serial, serial.try_into().unwrap());
        attempt.machine = Some(id(number));
        attempt.at = SystemClock.now();
        if !is_good {
            attempt.ladder.fail(Gate::Pcrs, "PCR 4 differs");
        }
        AttemptRecords::new(registry).record(&attempt).await.unwrap();
    }

    async fn status(&self, number: u64) -> MachineStatus {
        let machines = self.bench.objects::<Machine>().unwrap();
        let machine = machines.get(&Machine::name_of(&id(number))).await.unwrap();
        machine.status.unwrap_or_default()
    }

    /// Waits for the reason of the condition `ActedOn`; returns its message.
    async fn says(&self, number: u64, reason: &str) -> String {
        let mut message = None;
        let came = eventually(&format!("machine {number} is {reason}"), async || {
            let conditions = self.status(number).await.conditions;
            let said = conditions.into_iter().find(|c| c.type_ == "ActedOn");
            message = said.map(|said| (said.reason, said.message));
            Ok(message.as_ref().is_some_and(|(said, _)| said == reason))
        })
        .await;
        assert!(came.is_ok(), "machine {number} is not {reason}: {message:?}");
        message.unwrap().1
    }

    /// Waits for the reason of the cluster's condition; returns its message.
    async fn cluster_says(&self, reason: &str) -> String {
        let clusters = self.bench.objects::<TrustedExecutionCluster>().unwrap();
        let mut message = String::new();
        eventually(&format!("the cluster is {reason}"), async || {
            let status = clusters.get("cluster").await?.status.unwrap_or_default();
            let said = status.conditions.into_iter().find(|c| c.type_ == "ActsOnUntrusted");
            message = said.as_ref().map(|said| said.message.clone()).unwrap_or_default();
            Ok(said.is_some_and(|said| said.reason == reason))
        })
        .await
        .unwrap();
        message
    }

    async fn change_policy(&self, policy: Value) {
        let clusters = self.bench.objects::<TrustedExecutionCluster>().unwrap();
        let patch = Patch::Merge(json!({"spec": {"onUntrusted": policy}}));
        clusters.patch("cluster", &PatchParams::default(), &patch).await.unwrap();
    }

    /// Effects of our taints, sorted, and whether the Node is unschedulable.
    async fn marks(&self, name: &str) -> (Vec<String>, bool) {
        let node = self.nodes.get(name).await.unwrap();
        let spec = node.spec.unwrap_or_default();
        let ours = spec.taints.into_iter().flatten().filter(|taint| taint.key == UNTRUSTED_TAINT);
        let mut effects: Vec<_> = ours.map(|taint| taint.effect).collect();
        effects.sort();
        (effects, spec.unschedulable.unwrap_or_default())
    }

    async fn has_marks(&self, number: u64, effects: &[&str]) {
        let name = self.name(number);
        let what = format!("{name} has the taints {effects:?}");
        eventually(&what, async || Ok(self.marks(&name).await.0 == effects)).await.unwrap();
    }

    /// How many of these Nodes have a taint of ours.
    async fn tainted(&self, numbers: std::ops::RangeInclusive<u64>) -> usize {
        let mut tainted = 0;
        for number in numbers {
            tainted += usize::from(!self.marks(&self.name(number)).await.0.is_empty());
        }
        tainted
    }
}

#[tokio::test]
async fn the_node_of_a_refused_machine_is_tainted_until_it_attests_well_again() {
    let mut world = World::new(json!({"actions": ["Taint", "Cordon"]})).await;
    world.pair(1).await;
    world.pair(2).await;
    let before = world.nodes.get(&world.name(1)).await.unwrap().spec.unwrap_or_default();
    world.attempt(1, 1, true).await;
    world.attempt(2, 2, true).await;
    world.cluster_says("Acting").await;
    world.attempt(1, 3, false).await;
    let message = world.says(1, "Untrusted").await;
    assert!(message.contains("TEC-A412") && message.contains(&world.name(1)), "{message}");
    world.has_marks(1, &["NoSchedule"]).await;
    assert!(world.marks(&world.name(1)).await.1, "cordoned");
    reported(&world.bench, Event::UntrustedActedOn).await;
    let metrics = world.bench.metrics();
    assert!(metrics.contains("untrusted_machines{outcome=\"acted_on\"} 1\n"), "{metrics}");

    // An admin's hand does not end it while the machine is untrusted.
    let patch = Patch::Merge(json!({"spec": {"taints": before.taints}}));
    world.nodes.patch(&world.name(1), &PatchParams::default(), &patch).await.unwrap();
    world.attempt(1, 4, false).await;
    world.has_marks(1, &["NoSchedule"]).await;

    world.attempt(1, 5, true).await;
    world.says(1, "Restored").await;
    reported(&world.bench, Event::UntrustedRestored).await;
    let after = world.nodes.get(&world.name(1)).await.unwrap();
    assert!(!after.annotations().contains_key(CORDONED));
    let after = after.spec.unwrap_or_default();
    assert_eq!((after.taints, after.unschedulable), (before.taints, before.unschedulable));
    assert_eq!(world.tainted(2..=2).await, 0, "the other one attested well all the time");
    world.bench.stop().await.unwrap();
}

#[tokio::test]
async fn a_dry_run_only_tells() {
    let policy = json!({"actions": ["Taint", "Quarantine"], "dryRun": true});
    let mut world = World::new(policy).await;
    world.pair(1).await;
    world.attempt(1, 1, false).await;
    let message = world.says(1, "DryRun").await;
    for part in ["Taint", "Quarantine", &world.name(1), "TEC-A412"] {
        assert!(message.contains(part), "{part} in {message}");
    }
    reported(&world.bench, Event::UntrustedDryRun).await;
    world.cluster_says("DryRun").await;
    assert_eq!(world.tainted(1..=1).await, 0);
    let machines = world.bench.objects::<Machine>().unwrap();
    let machine = machines.get(&Machine::name_of(&id(1))).await.unwrap();
    assert_eq!(machine.spec.quarantined_at, None);
    assert!(machine.status.unwrap().acted_on.is_none());
    world.bench.stop().await.unwrap();
}

#[tokio::test]
async fn of_three_bad_machines_no_more_than_the_limit_are_acted_on() {
    let mut world = World::new(json!({"actions": ["Taint", "Quarantine"], "maxNodes": 1})).await;
    for number in 1..=3 {
        world.pair(number).await;
    }
    for number in 1..=3 {
        world.attempt(number, number, false).await;
    }
    world.cluster_says("LimitReached").await;
    reported(&world.bench, Event::UntrustedLimitReached).await;
    eventually("one is tainted, and two wait", async || {
        let metrics = world.bench.metrics();
        let counts = ["{outcome=\"acted_on\"} 1\n", "{outcome=\"over_limit\"} 2\n"];
        Ok(world.tainted(1..=3).await == 1 && counts.iter().all(|part| metrics.contains(part)))
    })
    .await
    .unwrap();
    // A replica that takes over counts the same way.
    world.bench.kill().await;
    world.bench.start("two").unwrap();
    for number in 1..=3 {
        world.attempt(number, number + 10, false).await;
    }
    eventually("the second replica counted", async || {
        Ok(world.bench.metrics().contains("{outcome=\"over_limit\"} 2\n"))
    })
    .await
    .unwrap();
    assert_eq!(world.tainted(1..=3).await, 1);
    world.change_policy(json!({"actions": ["Taint"], "maxNodes": "100%"})).await;
    eventually("all are tainted", async || Ok(world.tainted(1..=3).await == 3)).await.unwrap();
    world.bench.stop().await.unwrap();
}

#[tokio::test]
async fn a_node_that_names_another_machine_or_node_harms_nobody() {
    let policy = json!({"actions": ["Taint", "Cordon"], "maxNodes": 9});
    let mut world = World::new(policy).await;
    world.pair(1).await;
    // A bad machine that claims the Node of a good one.
    world.machine(2, &world.name(1)).await;
    // A Node that claims the machine of another one, and a protected label that contradicts it.
    let evil = format!("{}-evil", world.bench.namespace);
    world.node(&evil, (MACHINE_LABEL, id(3)), json!({})).await;
    world.machine(3, &world.name(3)).await;
    world.node(&world.name(4), (PROTECTED_MACHINE_LABEL, id(5)), json!({})).await;
    world.machine(4, &world.name(4)).await;
    world.attempt(1, 1, true).await;
    for number in 2..=4 {
        world.attempt(number, number, false).await;
    }
    let message = world.says(2, "NoNode").await;
    assert!(message.contains("does not name the machine"), "{message}");
    let message = world.says(3, "NoNode").await;
    assert!(message.contains("this cluster has no Node"), "{message}");
    world.says(4, "NoNode").await;
    reported(&world.bench, Event::UntrustedNoNode).await;
    for node in [world.name(1), evil, world.name(4)] {
        assert_eq!(world.marks(&node).await, (vec![], false), "{node}");
    }
    world.bench.stop().await.unwrap();
}

#[tokio::test]
async fn a_node_that_removes_its_label_after_the_taint_keeps_the_taint() {
    let mut world = World::new(json!({"actions": ["Taint"]})).await;
    world.pair(1).await;
    world.attempt(1, 1, false).await;
    world.has_marks(1, &["NoSchedule"]).await;
    let patch = Patch::Merge(json!({"metadata": {"labels": {MACHINE_LABEL: null}}}));
    world.nodes.patch(&world.name(1), &PatchParams::default(), &patch).await.unwrap();
    world.change_policy(json!({"actions": ["Taint", "Cordon"]})).await;
    eventually("it is cordoned, too", async || Ok(world.marks(&world.name(1)).await.1))
        .await
        .unwrap();
    world.has_marks(1, &["NoSchedule"]).await;
    world.attempt(1, 2, true).await;
    world.has_marks(1, &[]).await;
    world.bench.stop().await.unwrap();
}

#[tokio::test]
async fn a_quarantine_is_imposed_once_and_lifted_by_an_admin_alone() {
    let mut world = World::new(json!({"actions": ["Quarantine"]})).await;
    // Its Node is in another cluster.
    world.machine(1, "elsewhere").await;
    world.attempt(1, 1, false).await;
    let machines = world.bench.objects::<Machine>().unwrap();
    let name = Machine::name_of(&id(1));
    let is_quarantined = async |is: bool| {
        eventually(&format!("quarantined: {is}"), async || {
            Ok(machines.get(&name).await?.spec.quarantined_at.is_some() == is)
        })
        .await
        .unwrap();
    };
    is_quarantined(true).await;
    let reason = machines.get(&name).await.unwrap().spec.quarantine_reason.unwrap();
    assert!(reason.contains("TEC-A412"), "{reason}");
    world.says(1, "Untrusted").await;
    eventually("the Trustee lost it", async || Ok(world.bench.trust.key(&id(1)).is_none()))
        .await
        .unwrap();
    world.attempt(1, 2, true).await;
    world.says(1, "Restored").await;
    is_quarantined(true).await;

    world.attempt(1, 3, false).await;
    let id = id(1).to_string();
    let released = plugin(&world.bench, &["machine", "release", &id]).await;
    assert!(released.status.success());
    is_quarantined(true).await;
    world.says(1, "Untrusted").await;
    let released = plugin(&world.bench, &["machine", "release", &id]).await;
    assert!(released.status.success());
    world.attempt(1, 4, false).await;
    world.change_policy(json!({"actions": ["Quarantine"], "maxNodes": 7})).await;
    eventually("a round has passed", async || {
        Ok(world.cluster_says("Acting").await.contains("at most 7"))
    })
    .await
    .unwrap();
    is_quarantined(false).await;
    world.bench.stop().await.unwrap();
}

#[tokio::test]
async fn without_the_right_to_change_nodes_the_command_that_grants_it_is_told() {
    let mut world = World::without_rights(json!({"actions": ["Taint"]})).await;
    world.pair(1).await;
    world.attempt(1, 1, false).await;
    world.says(1, "NoNodeRights").await;
    reported(&world.bench, Event::UntrustedNoRights).await;
    let message = world.cluster_says("NoNodeRights").await;
    for part in ["actOnNodes=true", "kubectl create clusterrole", &world.bench.namespace] {
        assert!(message.contains(part), "{part} in {message}");
    }
    world.change_policy(json!({"actions": ["Taint", "Quarantine"]})).await;
    world.says(1, "Untrusted").await;
    let machines = world.bench.objects::<Machine>().unwrap();
    let machine = machines.get(&Machine::name_of(&id(1))).await.unwrap();
    assert!(machine.spec.quarantined_at.is_some(), "it needs no right on Nodes");
    assert_eq!(world.tainted(1..=1).await, 0);
    world.bench.stop().await.unwrap();
}

#[tokio::test]
async fn a_machine_that_falls_silent_is_untrusted_after_the_time_of_the_policy() {
    let policy = json!({"actions": ["Taint"], "staleAfterSeconds": 3600});
    let mut world = World::new(policy).await;
    world.pair(1).await;
    world.attempt(1, 1, true).await;
    world.cluster_says("Acting").await;
    assert_eq!(world.tainted(1..=1).await, 0);
    world.bench.clock.advance(3700);
    // Any change starts a round.
    world.change_policy(json!({"maxNodes": 2})).await;
    world.has_marks(1, &["NoSchedule"]).await;
    let message = world.says(1, "Untrusted").await;
    assert!(message.contains("not attested since"), "{message}");
    world.bench.stop().await.unwrap();
}
