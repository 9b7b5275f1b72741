//! A Trustee with a closed admin API: the operator as a process publishes through ConfigMaps and Secrets that
//! are mounted into its pod.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, PodTemplateSpec};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;
use tec_core::machine::{Machine as Known, RegisteredBy};
use tec_core::port::Clock as _;
use tec_core::testing::sample;
use tec_e2e::kube::{Bench, cluster, eventually};
use tec_k8s::api::{
    ApprovedImage, ApprovedImageSpec, AttestationKey, Machine, PublishMode, PublishSpec,
};
use tec_support::SystemClock;

const DIGEST: &str = "trusted-execution-clusters.io/trustee-restart-digest";

async fn template(bench: &Bench) -> Option<PodTemplateSpec> {
    let deployments = bench.objects::<Deployment>().unwrap();
    let deployment = deployments.get_opt("trustee-deployment").await.unwrap()?;
    Some(deployment.spec?.template)
}

/// Digest of the files, once mounted.
async fn digest(bench: &Bench) -> Option<String> {
    template(bench).await?.metadata?.annotations?.remove(DIGEST)
}

/// Mounted disk keys, by file.
async fn mounted(bench: &Bench) -> Vec<String> {
    let pod = template(bench).await.and_then(|template| template.spec);
    let volumes = pod.and_then(|pod| pod.volumes).unwrap_or_default();
    let keys = volumes.into_iter().find(|volume| volume.name == "resource-dir");
    let sources = keys.and_then(|volume| volume.projected?.sources);
    let secrets = sources.into_iter().flatten().filter_map(|source| source.secret);
    secrets.map(|secret| secret.name).collect()
}

/// The content of all ConfigMaps, by key.
async fn files(bench: &Bench) -> BTreeMap<String, String> {
    let config_maps = bench.objects::<ConfigMap>().unwrap();
    let all = config_maps.list(&ListParams::default()).await.unwrap();
    all.items.into_iter().filter_map(|map| map.data).flatten().collect()
}

fn machine(number: u64) -> Machine {
    let (id, now) = (sample::machine_id(number), SystemClock.now());
    Machine::from_core(&Known::unclaimed(id, RegisteredBy::FirstBoot, now))
}

#[tokio::test]
async fn files_follow_what_is_known_and_one_new_pod_covers_several_machines() {
    let bench = Bench::new().await.unwrap();
    let mut object = cluster("cluster");
    let mut publish = PublishSpec::default();
    publish.mode = PublishMode::Volumes;
    object.spec.publish = Some(publish);
    bench.create(&object).await.unwrap();
    let _operator = bench.start_program("one", &[]).unwrap();
    let mut spec = ApprovedImageSpec::default();
    spec.image = format!("registry.example/os@sha256:{:064x}", 1);
    bench.create(&ApprovedImage::new("image", spec)).await.unwrap();
    let pcrs = json!({"status": {"pcrs": sample::image(1).expected.pcrs}});
    let images = bench.objects::<ApprovedImage>().unwrap();
    let params = PatchParams::default();
    images.patch_status("image", &params, &Patch::Merge(pcrs)).await.unwrap();
    for number in 1..=3 {
        bench.create(&machine(number)).await.unwrap();
    }
    let key = bench.create(&AttestationKey::from_core(&sample::ak(1, 1))).await.unwrap();
    let ids: Vec<String> = (1..=3).map(|number| sample::machine_id(number).to_string()).collect();
    eventually("three disk keys are mounted", async || Ok(mounted(&bench).await == ids))
        .await
        .unwrap();
    let published = async || {
        let name = machine(1).name_any();
        let status = bench.objects::<Machine>()?.get(&name).await?.status.unwrap_or_default();
        Ok(status.published_to == ["trustee"] && status.attestation_key.is_some())
    };
    eventually("the machine says so", published).await.unwrap();
    let public = sample::public_key(1).to_base64();
    eventually("its key and image are known", async || {
        let files = files(&bench).await;
        let values = files.values().any(|value| value.contains(&public));
        Ok(values
            && files["image-pcrs.json"].contains("image")
            && files.contains_key("policy.rego"))
    })
    .await
    .unwrap();
    let files = files(&bench).await;
    assert!(files["default_cpu.rego"].contains("package policy"));
    assert!(!files["kbs-config.toml"].contains("public.pub"), "there is no admin");
    let first = digest(&bench).await.unwrap();

    let machines = bench.objects::<Machine>().unwrap();
    machines.delete(&machine(2).name_any(), &DeleteParams::default()).await.unwrap();
    eventually("its disk key is mounted no longer", async || {
        Ok(mounted(&bench).await == [&*ids[0], &ids[2]])
    })
    .await
    .unwrap();
    assert_ne!(digest(&bench).await.unwrap(), first);
    let deployments = bench.objects::<Deployment>().unwrap();
    let params = DeleteParams::background();
    deployments.delete("trustee-deployment", &params).await.unwrap();
    eventually("who deletes the Deployment gets another one with all volumes", async || {
        Ok(template(&bench).await.is_some() && mounted(&bench).await == [&*ids[0], &ids[2]])
    })
    .await
    .unwrap();
    drop(key);
}
