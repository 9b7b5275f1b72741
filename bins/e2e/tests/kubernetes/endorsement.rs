//! The operator's behavior when an endorsement key must prove attestation keys.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, PodSpec, Secret};
use kube::api::{ObjectMeta, Patch, PatchParams};
use serde_json::{Value, json};
use tec_e2e::kube::{Bench, cluster, eventually};
use tec_k8s::api::TrustedExecutionCluster;

async fn approve_by(bench: &Bench, approval: &Value) -> Result<(), String> {
    let clusters = bench.objects::<TrustedExecutionCluster>().unwrap();
    let patch = Patch::Merge(json!({"spec": {"approval": approval}}));
    let patched = clusters.patch("cluster", &PatchParams::default(), &patch).await;
    patched.map(drop).map_err(|error| error.to_string())
}

/// Waits for the condition `Installed` with this status, and returns its message.
async fn installed(bench: &Bench, status: &str, part: &str) -> String {
    let clusters = bench.objects::<TrustedExecutionCluster>().unwrap();
    let mut message = String::new();
    let came = eventually("the condition", async || {
        let found = clusters.get("cluster").await?;
        let generation = found.metadata.generation;
        let conditions = found.status.unwrap_or_default().conditions;
        let mut of_kind = conditions.into_iter().filter(|one| one.type_ == "Installed");
        let Some(condition) = of_kind.next() else { return Ok(false) };
        message = condition.message;
        let is_new = condition.observed_generation == generation;
        Ok(is_new && condition.status == status && message.contains(part))
    });
    came.await.unwrap_or_else(|error| panic!("{error:#}: {message}"));
    message
}

async fn pod(bench: &Bench) -> PodSpec {
    let deployments = bench.objects::<Deployment>().unwrap();
    let found = deployments.get("attestation-key-register").await.unwrap();
    found.spec.unwrap().template.spec.unwrap()
}

async fn key(bench: &Bench) -> Option<Vec<u8>> {
    let secrets = bench.objects::<Secret>().unwrap();
    let found = secrets.get_opt("endorsement-challenge-key").await.unwrap();
    Some(found?.data?.remove("key")?.0)
}

#[tokio::test]
async fn replicas_share_a_key_and_roots_that_are_missing_are_named() {
    let mut bench = Bench::at_work_on(&cluster("cluster")).await.unwrap();
    installed(&bench, "True", "").await;
    assert_eq!(key(&bench).await, None, "no other policy needs one");
    let roots = json!({"policy": "EndorsementKey", "endorsementRootsConfigMap": "makers"});
    approve_by(&bench, &roots).await.unwrap();
    let said = installed(&bench, "False", "ConfigMap makers").await;
    assert!(said.contains("kubectl create configmap makers --from-file=ca.crt=FILE"), "{said}");

    let pod = pod(&bench).await;
    let flags = pod.containers[0].args.clone().unwrap();
    for flag in ["--ek-roots=/etc/ek-roots/ca.crt", "--challenge-key-file=/etc/challenge-key/key"] {
        assert!(flags.iter().any(|found| found == flag), "{flag}: {flags:?}");
    }
    let volumes = pod.volumes.unwrap();
    let mounted = volumes.iter().find_map(|volume| volume.config_map.clone()).unwrap();
    assert_eq!((&*mounted.name, mounted.optional), ("makers", Some(true)));
    let made = key(&bench).await.unwrap();
    assert_eq!(made.len(), 32);

    let mut config_map = ConfigMap {
        metadata: ObjectMeta { name: Some("makers".to_owned()), ..ObjectMeta::default() },
        ..ConfigMap::default()
    };
    let text = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
    config_map.data = Some(BTreeMap::from([("ca.crt".to_owned(), text.to_owned())]));
    bench.create(&config_map).await.unwrap();
    installed(&bench, "True", "").await;
    assert_eq!(key(&bench).await.unwrap(), made, "it is made once");
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn roots_without_the_policy_that_needs_them_are_refused() {
    let bench = Bench::new().await.unwrap();
    bench.create(&cluster("cluster")).await.unwrap();
    for policy in [json!("FirstUse"), json!("Manual"), Value::Null] {
        let approval = json!({"policy": policy, "endorsementRootsConfigMap": "makers"});
        let refused = approve_by(&bench, &approval).await.unwrap_err();
        assert!(refused.contains("needs the policy EndorsementKey"), "{refused}");
    }
}
