//! A newer operator whose Deployments roll out one after another, or fail to.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt as _;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;
use tec_e2e::kube::{Bench, eventually};
use tec_k8s::render::{Deploy, Images};

use crate::builtin::builtin;
use crate::swap::roll_out;
use crate::tls::until;

/// All components, in rollout order.
const ALL: [&str; 3] = ["key-broker", "attestation-key-register", "register-server"];
const OLD: &str = "registry.example/tec:1";
const NEW: &str = "registry.example/tec:2";

fn version(image: &str) -> Deploy {
    Deploy::new(Images::from_variables(|_| Some(image.to_owned())).unwrap())
}

/// An operator with these images, replacing the previous one.
async fn operator(bench: &mut Bench, identity: &str, image: &str) {
    bench.stop().await.unwrap();
    bench.deploy = version(image);
    bench.trust.restart_operator();
    bench.start(identity).unwrap();
}

/// The image of each Deployment.
async fn images(bench: &Bench) -> BTreeMap<String, String> {
    let all = bench.objects::<Deployment>().unwrap().list(&ListParams::default()).await.unwrap();
    let image = |deployment: &Deployment| {
        let pod = deployment.spec.clone().unwrap().template.spec.unwrap();
        (deployment.name_any(), pod.containers[0].image.clone().unwrap())
    };
    all.iter().map(image).collect()
}

async fn has(bench: &Bench, name: &str, image: &str) {
    let what = format!("{name} is to run {image}");
    eventually(&what, async || Ok(images(bench).await.get(name).is_some_and(|it| it == image)))
        .await
        .unwrap();
}

/// Every component that should run this image does, one after another.
async fn all_roll_out(bench: &Bench, image: &str) {
    for name in ALL {
        has(bench, name, image).await;
        roll_out(bench, name).await;
    }
    until(bench, "Upgrade", "True", "Complete").await;
    assert_eq!(images(bench).await, ALL.map(|name| (name.to_owned(), image.to_owned())).into());
}

/// Reports, like the Deployment controller, that new pods did not start in time.
async fn does_not_start(bench: &Bench, name: &str) {
    let deployments = bench.objects::<Deployment>().unwrap();
    let generation = deployments.get(name).await.unwrap().metadata.generation;
    let status = json!({"status": {
        "observedGeneration": generation, "replicas": 3, "updatedReplicas": 1, "availableReplicas": 2,
        "conditions": [
            {"type": "Available", "status": "True"},
            {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded",
             "message": "the new ReplicaSet has timed out progressing."},
        ],
    }});
    let params = PatchParams::default();
    deployments.patch_status(name, &params, &Patch::Merge(status)).await.unwrap();
}

#[tokio::test]
async fn a_key_broker_that_does_not_start_stops_the_upgrade_and_the_operator_before_rolls_it_back()
{
    let mut bench = Bench::new().await.unwrap();
    bench.create(&builtin()).await.unwrap();
    operator(&mut bench, "one", OLD).await;
    all_roll_out(&bench, OLD).await;

    operator(&mut bench, "two", NEW).await;
    has(&bench, "key-broker", NEW).await;
    until(&bench, "Upgrade", "False", "InProgress").await;
    does_not_start(&bench, "key-broker").await;
    let said = until(&bench, "Upgrade", "False", "Failed").await;
    let wanted = "waits for key-broker: the new ReplicaSet has timed out progressing.; held back until \
                  then, in order: attestation-key-register, register-server";
    assert_eq!(said, wanted);
    assert_eq!(until(&bench, "Ready", "False", "Progressing").await, wanted);
    let now = images(&bench).await;
    assert_eq!([&now[ALL[1]], &now[ALL[2]]], [OLD, OLD], "nodes reach the servers of before");

    operator(&mut bench, "three", OLD).await;
    all_roll_out(&bench, OLD).await;
    operator(&mut bench, "four", NEW).await;
    all_roll_out(&bench, NEW).await;
    bench.stop().await.unwrap();
}
