//! Replaces the upstream operator with our charts and operator.

mod upstream;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tec_core::testing::sample;
use tec_e2e::kube::{Bench, ControlPlane, eventually};
use tec_e2e::packages::{SET_REGISTRY, directory, documents, helm_at};
use tec_k8s::api::{ApprovedImage, AttestationKey, Machine, TrustedExecutionCluster};

use self::upstream::{IMAGE, MACHINES, WITHOUT_KEY, id, key, key_name, running};

/// Machines that never got a key are removed before that.
const TWO_DAYS: i64 = 2 * 86_400;

/// UIDs and members of all objects of a kind, by name.
async fn all<K>(bench: &Bench, members: &[&str]) -> BTreeMap<String, Value>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + DeserializeOwned
        + Serialize
        + std::fmt::Debug,
{
    let list = bench.objects::<K>().unwrap().list(&ListParams::default()).await.unwrap();
    let kept = |object: &K| {
        let whole = serde_json::to_value(object).unwrap();
        let members = members.iter().map(|member| whole.pointer(member).cloned());
        (object.name_any(), json!([object.uid(), members.collect::<Vec<_>>()]))
    };
    list.iter().map(kept).collect()
}

/// The objects that must not be lost or changed, by kind.
async fn treasure(bench: &Bench) -> Vec<BTreeMap<String, Value>> {
    vec![
        all::<TrustedExecutionCluster>(bench, &["/spec"]).await,
        all::<Machine>(bench, &["/spec"]).await,
        all::<AttestationKey>(bench, &["/spec"]).await,
        all::<ApprovedImage>(bench, &["/spec"]).await,
        all::<Secret>(bench, &["/data", "/type"]).await,
        all::<Service>(bench, &["/spec/clusterIP", "/spec/ports/0/port", "/spec/selector"]).await,
        all::<Deployment>(bench, &["/spec/selector"]).await,
    ]
}

/// Checks that everything that existed is unchanged; there may be more.
async fn is_kept(bench: &Bench, before: &[BTreeMap<String, Value>]) {
    for (before, now) in before.iter().zip(treasure(bench).await) {
        for (name, was) in before {
            assert_eq!(now.get(name), Some(was), "{name}");
        }
    }
}

/// Installs the charts over what upstream's packages created.
fn install_charts(bench: &Bench) {
    let kubeconfig = bench.plane.admin_kubeconfig().unwrap();
    let chart = |name: &str| directory().join("helm").join(name).to_str().unwrap().to_owned();
    let helm = |release: &str, name: &str| {
        let (chart, namespace) = (chart(name), format!("--namespace={}", bench.namespace));
        let install = ["install", release, &chart, &namespace, SET_REGISTRY, "--take-ownership"];
        helm_at(&kubeconfig, &install).unwrap()
    };
    helm("tec-crds", "tec-crds");
    helm("tec", "tec-operator");
}

async fn deployment(bench: &Bench, name: &str) -> Deployment {
    bench.objects::<Deployment>().unwrap().get(name).await.unwrap()
}

/// Reports, like the Deployment controller, that all pods run the current version.
pub(crate) async fn roll_out(bench: &Bench, name: &str) {
    let live = deployment(bench, name).await;
    let pods = live.spec.unwrap().replicas.unwrap();
    let status = json!({"status": running(live.metadata.generation.unwrap(), pods)});
    let deployments = bench.objects::<Deployment>().unwrap();
    let params = PatchParams::default();
    deployments.patch_status(name, &params, &Patch::Merge(status)).await.unwrap();
}

/// Waits for status, reason and message of a condition of the cluster object.
async fn cluster_says(bench: &Bench, kind: &str, wanted: &str) {
    let clusters = bench.objects::<TrustedExecutionCluster>().unwrap();
    let mut said = String::new();
    let outcome = eventually("the cluster object says it", async || {
        let cluster = clusters.get("trusted-execution-cluster").await?;
        let mut conditions = cluster.status.into_iter().flat_map(|status| status.conditions);
        let found = conditions.find(|condition| condition.type_ == kind);
        said =
            found.map_or_else(String::new, |c| format!("{} {} {}", c.status, c.reason, c.message));
        Ok(said.starts_with(wanted))
    });
    let outcome = outcome.await;
    assert!(outcome.is_ok(), "{kind} is {said:?}, not {wanted:?}");
}

/// The Trustee's Deployment contains exactly what we render.
async fn trustee_is_ours(bench: &Bench) {
    let spec = deployment(bench, "trustee-deployment").await.spec.unwrap();
    let strategy = spec.strategy.unwrap();
    assert_eq!(strategy.type_.as_deref(), Some("Recreate"));
    assert_eq!(strategy.rolling_update, None);
    let pod = spec.template.spec.unwrap();
    let named = |volume: &k8s_openapi::api::core::v1::Volume| volume.name.clone();
    let volumes: Vec<_> = pod.volumes.iter().flatten().map(named).collect();
    assert!(volumes.contains(&"tls".to_owned()), "{volumes:?}");
    assert!(!volumes.contains(&"kbs-tls".to_owned()), "{volumes:?}");
    let auth = pod.volumes.iter().flatten().find(|volume| volume.name == "trustee-auth").unwrap();
    assert!(auth.secret.is_none() && auth.config_map.is_some(), "{auth:?}");
    let broker = pod.containers.iter().find(|container| container.name == "kbs").unwrap();
    assert_eq!(broker.ports, None, "only the guard has the public port");
    assert_eq!(broker.env.as_ref().unwrap()[0].value.as_deref(), Some("info"));
    let mounts = broker.volume_mounts.iter().flatten();
    assert!(mounts.clone().all(|mount| mount.mount_path != "/etc/tls"), "{mounts:?}");
    assert!(pod.containers.iter().any(|container| container.name == "kbs-guard"));
}

async fn server_is_ours(bench: &Bench, name: &str) {
    let spec = deployment(bench, name).await.spec.unwrap();
    assert_eq!(spec.replicas, Some(2));
    assert_eq!(spec.strategy.unwrap().type_.as_deref(), Some("RollingUpdate"));
    let pod = spec.template.spec.unwrap();
    assert_eq!(pod.service_account_name.as_deref(), Some(name));
    assert_eq!(pod.volumes.unwrap()[0].name, "tls");
}

/// Whether the Deployment still runs upstream's version.
async fn is_upstreams(bench: &Bench, name: &str) -> bool {
    let spec = deployment(bench, name).await.spec.unwrap();
    let image = spec.template.spec.unwrap().containers[0].image.clone().unwrap();
    image.starts_with("registry.example/")
}

/// A cluster with the definitions that we know.
async fn world() -> Bench {
    world_of(upstream::definitions(), Vec::new()).await
}

/// Definitions and cluster object of a checkout of the upstream operator, after `make manifests`.
async fn world_of_checkout() -> Bench {
    let checkout = std::env::var_os("UPSTREAM_OPERATOR_DIR").map(PathBuf::from).unwrap();
    let read = |below: &str| {
        let files = std::fs::read_dir(checkout.join(below)).unwrap();
        let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
        paths.sort();
        let text = |path| documents(&std::fs::read_to_string(path).unwrap()).unwrap();
        paths.into_iter().flat_map(text).collect::<Vec<Value>>()
    };
    let mut definitions = read("config/crd");
    definitions.retain(|crd| crd["spec"]["group"] == "trusted-execution-clusters.io");
    assert_eq!(definitions.len(), 4, "run make manifests in {}", checkout.display());
    world_of(definitions, read("config/deploy")).await
}

async fn world_of(definitions: Vec<Value>, objects: Vec<Value>) -> Bench {
    let plane = Arc::new(ControlPlane::start().await.unwrap());
    upstream::define(plane.admin().unwrap(), definitions).await;
    let bench = Bench::on(plane).await.unwrap();
    let of_file = objects.into_iter().find(|object| object["kind"] == "TrustedExecutionCluster");
    let mut cluster = upstream::cluster();
    if let Some(mut object) = of_file {
        // The file omits what users fill in.
        object["spec"] = cluster["spec"].take();
        object["metadata"] = json!({"name": object["metadata"]["name"]});
        cluster = object;
    }
    upstream::everything(&bench, cluster).await;
    bench
}

#[tokio::test]
async fn all_of_an_upstream_cluster_is_taken_over_in_order_and_nothing_is_lost() {
    all_is_taken_over(world().await).await;
}

#[tokio::test]
#[ignore = "needs upstream-operator: set UPSTREAM_OPERATOR_DIR"]
async fn all_of_a_cluster_with_the_manifests_of_upstream_is_taken_over_in_order() {
    all_is_taken_over(world_of_checkout().await).await;
}

async fn all_is_taken_over(mut bench: Bench) {
    let before = treasure(&bench).await;
    let values = all::<ConfigMap>(&bench, &["/data"]).await;
    install_charts(&bench);
    is_kept(&bench, &before).await;
    bench.labels.set(&upstream::reference(), sample::image(1).expected);
    bench.clock.advance(TWO_DAYS);
    bench.start("one").unwrap();

    // The key broker first; the other servers stay unchanged until it runs.
    let order = "False InProgress waits for trustee-deployment: its change was not looked at yet; held \
                 back until then, in order: attestation-key-register, register-server";
    cluster_says(&bench, "Upgrade", order).await;
    cluster_says(&bench, "Ready", "False Progressing waits for trustee-deployment").await;
    trustee_is_ours(&bench).await;
    assert!(is_upstreams(&bench, "attestation-key-register").await);
    assert!(is_upstreams(&bench, "register-server").await);
    roll_out(&bench, "trustee-deployment").await;
    let order = "False InProgress waits for attestation-key-register: its change was not looked at yet; \
                 held back until then, in order: register-server";
    cluster_says(&bench, "Upgrade", order).await;
    server_is_ours(&bench, "attestation-key-register").await;
    assert!(is_upstreams(&bench, "register-server").await);
    roll_out(&bench, "attestation-key-register").await;
    let order = "False InProgress waits for register-server: its change was not looked at yet";
    cluster_says(&bench, "Upgrade", order).await;
    server_is_ours(&bench, "register-server").await;
    roll_out(&bench, "register-server").await;
    cluster_says(&bench, "Upgrade", "True Complete").await;

    for number in MACHINES {
        let machine = sample::machine_id(number);
        let what = format!("machine {number} has its key at the Trustee");
        let ak = (number != WITHOUT_KEY).then(|| key(number).fingerprint());
        eventually(&what, async || {
            let held = bench.trust.key(&machine) == Some(upstream::disk_key(number));
            Ok(held && bench.trust.ak(&machine) == ak)
        })
        .await
        .unwrap();
    }
    eventually("the image may boot", async || Ok(bench.trust.images() == [IMAGE])).await.unwrap();
    is_kept(&bench, &before).await;
    let now = all::<ConfigMap>(&bench, &["/data"]).await;
    for map in ["image-pcrs", "trustee-rv-data"] {
        assert_eq!(now.get(map), values.get(map), "{map}");
    }
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn a_machine_of_an_upstream_cluster_goes_with_all_that_belongs_to_it() {
    a_machine_goes(world().await).await;
}

#[tokio::test]
#[ignore = "needs upstream-operator: set UPSTREAM_OPERATOR_DIR"]
async fn a_machine_of_a_cluster_with_the_manifests_of_upstream_goes_with_all_that_belongs_to_it() {
    a_machine_goes(world_of_checkout().await).await;
}

async fn a_machine_goes(mut bench: Bench) {
    install_charts(&bench);
    // The state left by its operator when it was stopped in the middle.
    let machines = bench.objects::<Machine>().unwrap();
    let name = format!("machine-{}", id(1));
    machines.delete(&name, &DeleteParams::background()).await.unwrap();
    let keys = bench.objects::<AttestationKey>().unwrap();
    keys.delete(&key_name(1), &DeleteParams::background()).await.unwrap();
    let secrets = bench.objects::<Secret>().unwrap();
    eventually("the Secret of the key waits for its finalizer", async || {
        let secret = secrets.get(&key_name(1)).await?;
        Ok(secret.metadata.deletion_timestamp.is_some())
    })
    .await
    .unwrap();
    bench.start("one").unwrap();
    eventually("all of it is gone", async || {
        let machine = machines.get_opt(&name).await?;
        let disk_key = secrets.get_opt(&id(1)).await?;
        let key = secrets.get_opt(&key_name(1)).await?;
        Ok(machine.is_none() && disk_key.is_none() && key.is_none())
    })
    .await
    .unwrap();
    assert!(secrets.get_opt(&id(2)).await.unwrap().is_some());
    bench.stop().await.unwrap();
}
