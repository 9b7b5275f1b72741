//! What an admin or a full disk can do to the cluster itself: deleted definitions, and an etcd that refuses
//! writes.

use std::sync::Arc;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tec_core::machine::{Machine as Known, RegisteredBy};
use tec_core::migrate::TrustAnchor as _;
use tec_core::port::{Clock as _, SecretStore};
use tec_core::testing::sample;
use tec_e2e::kube::{Bench, ControlPlane, cluster, eventually};
use tec_e2e::packages::kustomize;
use tec_k8s::api::{ApprovedImage, ApprovedImageSpec, Machine, TrustedExecutionCluster};
use tec_k8s::client::KubeRegistry;
use tec_k8s::render::DANGEROUS_DELETE;
use tec_support::SystemClock;

use crate::packages::apply_all;

const IMAGES: &str = "approvedimages.trusted-execution-clusters.io";
const MACHINES: &str = "machines.trusted-execution-clusters.io";
const RECOVERY_KEYS: &str = "recoverykeys.trusted-execution-clusters.io";

fn definitions(client: &Client) -> Api<CustomResourceDefinition> {
    Api::all(client.clone())
}

fn image(number: u64) -> (ApprovedImage, String) {
    let mut spec = ApprovedImageSpec::default();
    spec.image = format!("registry.example/os@sha256:{number:064x}");
    let reference = spec.image.clone();
    (ApprovedImage::new(&format!("image-{number}"), spec), reference)
}

async fn approve(bench: &Bench, number: u64) {
    let (image, reference) = image(number);
    bench.labels.set(&reference, sample::image(number).expected);
    bench.create(&image).await.unwrap();
}

fn machine(number: u64) -> Machine {
    let id = sample::machine_id(number);
    Machine::from_core(&Known::unclaimed(id, RegisteredBy::Admin, SystemClock.now()))
}

async fn has_key(bench: &Bench, number: u64) {
    let what = format!("machine {number} has its key");
    let id = sample::machine_id(number);
    eventually(&what, async || Ok(bench.trust.key(&id).is_some())).await.unwrap();
}

#[tokio::test]
async fn a_definition_or_a_cluster_is_deleted_only_after_somebody_said_that_it_is_dangerous() {
    let plane = ControlPlane::start().await.unwrap();
    let client = plane.admin().unwrap();
    apply_all(&client, &kustomize("kustomize/crds").unwrap()).await;
    let definitions = definitions(&client);
    let attempt = DeleteParams { dry_run: true, ..DeleteParams::default() };
    eventually("the policy holds", async || {
        Ok(definitions.delete(MACHINES, &attempt).await.is_err())
    })
    .await
    .unwrap();
    for crd in tec_k8s::api::crds() {
        let name = crd.metadata.name.unwrap();
        let refused = definitions.delete(&name, &DeleteParams::default()).await.unwrap_err();
        assert!(refused.to_string().contains(DANGEROUS_DELETE), "{name}: {refused}");
    }
    let said = json!({"metadata": {"annotations": {DANGEROUS_DELETE: "yes"}}});
    let params = PatchParams::default();
    definitions.patch(MACHINES, &params, &Patch::Merge(&said)).await.unwrap();
    definitions.delete(MACHINES, &DeleteParams::default()).await.unwrap();

    let clusters: Api<TrustedExecutionCluster> = Api::default_namespaced(client);
    clusters.create(&PostParams::default(), &cluster("cluster")).await.unwrap();
    let refused = clusters.delete("cluster", &DeleteParams::default()).await.unwrap_err();
    assert!(refused.to_string().contains(DANGEROUS_DELETE), "{refused}");
    clusters.patch("cluster", &params, &Patch::Merge(&said)).await.unwrap();
    clusters.delete("cluster", &DeleteParams::default()).await.unwrap();
}

pub(crate) async fn remove_definition(bench: &Bench, name: &str) {
    let definitions = definitions(&bench.admin().unwrap());
    definitions.delete(name, &DeleteParams::default()).await.unwrap();
    eventually("the definition is gone", async || Ok(definitions.get_opt(name).await?.is_none()))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_cluster_of_an_earlier_version_without_recovery_keys_is_exported() {
    let bench = Bench::alone().await.unwrap();
    bench.create(&machine(1)).await.unwrap();
    remove_definition(&bench, RECOVERY_KEYS).await;
    let clock = Arc::new(SystemClock);
    let registry = KubeRegistry::new(bench.admin().unwrap(), &bench.namespace, clock);
    assert_eq!(registry.export(None, usize::MAX).await.unwrap().len(), 1);
    registry.audit_lines().await.unwrap();
    let secrets: &dyn SecretStore = &registry;
    let path = sample::recovery_path(1);
    assert!(secrets.find(&path).await.unwrap().is_none() && !secrets.exists(&path).await.unwrap());
    secrets.remove(&path).await.unwrap();
}

#[tokio::test]
async fn the_operator_goes_on_when_a_definition_is_back() {
    let mut bench = Bench::alone().await.unwrap();
    bench.create(&cluster("cluster")).await.unwrap();
    bench.start("one").unwrap();
    bench.create(&machine(1)).await.unwrap();
    approve(&bench, 1).await;
    has_key(&bench, 1).await;
    eventually("it may boot", async || Ok(bench.trust.images() == ["image-1"])).await.unwrap();
    let key = bench.trust.key(&sample::machine_id(1));
    remove_definition(&bench, IMAGES).await;
    // The image's approval was deleted with its definition.
    eventually("nothing may boot", async || Ok(bench.trust.images().is_empty())).await.unwrap();
    bench.plane.install_resources().await.unwrap();
    approve(&bench, 2).await;
    eventually("another image may", async || Ok(bench.trust.images() == ["image-2"]))
        .await
        .unwrap();
    bench.create(&machine(2)).await.unwrap();
    has_key(&bench, 2).await;
    assert_eq!(bench.trust.key(&sample::machine_id(1)), key);
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn nothing_is_lost_while_etcd_is_full_and_all_goes_on_when_there_is_room() {
    let mut bench = Bench::alone().await.unwrap();
    bench.create(&cluster("cluster")).await.unwrap();
    bench.start("one").unwrap();
    bench.create(&machine(1)).await.unwrap();
    has_key(&bench, 1).await;
    let key = bench.trust.key(&sample::machine_id(1));
    bench.plane.fill_etcd(true).await.unwrap();
    let refused = bench.create(&machine(2)).await.unwrap_err();
    assert!(refused.to_string().contains("space exceeded"), "{refused}");
    assert_eq!(bench.trust.key(&sample::machine_id(1)), key, "nodes boot on");
    // Without its lease the operator exits and is restarted, forever if necessary.
    let mut restarts = 0;
    eventually("it could not renew its lease", async || Ok(bench.take_ended())).await.unwrap();
    bench.plane.fill_etcd(false).await.unwrap();
    bench.trust.restart_operator();
    bench.start("two").unwrap();
    bench.create(&machine(2)).await.unwrap();
    eventually("the new machine has its key", async || {
        if bench.take_ended() {
            restarts += 1;
            bench.trust.restart_operator();
            bench.start(&format!("again-{restarts}"))?;
        }
        Ok(bench.trust.key(&sample::machine_id(2)).is_some())
    })
    .await
    .unwrap();
    assert_eq!(bench.trust.key(&sample::machine_id(1)), key);
    bench.stop().await.unwrap();
}
