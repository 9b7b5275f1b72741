//! The cluster object and its
//! children.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use tec_e2e::kube::{Bench, eventually};
use tec_k8s::api::TrustedExecutionCluster;

fn cluster(name: &str) -> TrustedExecutionCluster {
    serde_json::from_value(json!({
        "apiVersion": "trusted-execution-clusters.io/v1alpha1", "kind": "TrustedExecutionCluster",
        "metadata": {"name": name}, "spec": {},
    }))
    .unwrap()
}

/// Status and reason of a condition, as `True AddressFound`.
async fn condition(bench: &Bench, name: &str, kind: &str) -> Option<String> {
    let cluster = bench.objects::<TrustedExecutionCluster>().unwrap().get(name).await.unwrap();
    let found = cluster.status?.conditions.into_iter().find(|c| c.type_ == kind)?;
    Some(format!("{} {}", found.status, found.reason))
}

async fn says(bench: &Bench, name: &str, kind: &str, wanted: &str) {
    let what = format!("{kind} of {name} is {wanted}");
    let holds = async || Ok(condition(bench, name, kind).await.as_deref() == Some(wanted));
    eventually(&what, holds).await.unwrap();
}

#[tokio::test]
async fn a_trustee_that_comes_back_is_told_everything_again() {
    let mut bench = Bench::at_work().await.unwrap();
    says(&bench, "cluster", "Installed", "True InstallationCompleted").await;
    let deployments = bench.objects::<Deployment>().unwrap();
    let available = async |is: &str, at: &str| {
        let status = json!({"status": {"conditions": [{
            "type": "Available", "status": is, "lastTransitionTime": at, "lastUpdateTime": at,
        }]}});
        let patch = Patch::Merge(status);
        let params = PatchParams::default();
        deployments.patch_status("trustee-deployment", &params, &patch).await.unwrap();
    };
    let before = bench.trust.losses();
    available("True", "2026-01-01T00:00:00Z").await;
    eventually("it is told", async || Ok(bench.trust.losses() == before + 1)).await.unwrap();
    available("False", "2026-01-01T00:01:00Z").await;
    available("True", "2026-01-01T00:02:00Z").await;
    eventually("it is told again", async || Ok(bench.trust.losses() == before + 2)).await.unwrap();
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn an_address_that_comes_late_is_known() {
    let mut bench = Bench::new().await.unwrap();
    bench.create(&cluster("cluster")).await.unwrap();
    bench.start("one").unwrap();
    says(&bench, "cluster", "KnownTrusteeAddress", "False NoAddressFound").await;
    says(&bench, "cluster", "Installed", "True InstallationCompleted").await;
    let patch = Patch::Merge(json!({"spec": {"publicTrusteeAddr": "kbs.example:8080"}}));
    let clusters = bench.objects::<TrustedExecutionCluster>().unwrap();
    clusters.patch("cluster", &PatchParams::default(), &patch).await.unwrap();
    says(&bench, "cluster", "KnownTrusteeAddress", "True AddressFound").await;
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn a_further_key_broker_that_is_invalid_is_named() {
    let mut bench = Bench::new().await.unwrap();
    let mut object = cluster("cluster");
    object.spec.public_trustee_addr = Some("kbs.example:8080".to_owned());
    bench.create(&object).await.unwrap();
    bench.start("one").unwrap();
    says(&bench, "cluster", "KnownTrusteeAddress", "True AddressFound").await;
    let list = async |address: &str| {
        let trustee = json!({"address": address, "dangerousPlainHttp": true});
        let patch = Patch::Merge(json!({"spec": {"additionalTrustees": [trustee]}}));
        let clusters = bench.objects::<TrustedExecutionCluster>().unwrap();
        clusters.patch("cluster", &PatchParams::default(), &patch).await.unwrap();
    };
    list("https://other.example").await;
    says(&bench, "cluster", "KnownTrusteeAddress", "False InvalidAdditionalTrustee").await;
    list("other.example").await;
    says(&bench, "cluster", "KnownTrusteeAddress", "True AddressFound").await;
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn children_that_somebody_deletes_or_changes_are_put_right() {
    let mut bench = Bench::at_work().await.unwrap();
    says(&bench, "cluster", "Installed", "True InstallationCompleted").await;
    let deployments = bench.objects::<Deployment>().unwrap();
    let services = bench.objects::<Service>().unwrap();
    let maps = bench.objects::<ConfigMap>().unwrap();
    let wanted = maps.get("trustee-data").await.unwrap().data;
    let keys = bench.objects::<Secret>().unwrap();
    let pair = keys.get("trustee-auth").await.unwrap().data;
    deployments.delete("trustee-deployment", &DeleteParams::background()).await.unwrap();
    services.delete("kbs-service", &DeleteParams::default()).await.unwrap();
    let spoiled = Patch::Merge(json!({"data": {"kbs-config.toml": "insecure_http = true"}}));
    maps.patch("trustee-data", &PatchParams::default(), &spoiled).await.unwrap();
    let scaled = Patch::Merge(json!({"spec": {"replicas": 0}}));
    deployments.patch("register-server", &PatchParams::default(), &scaled).await.unwrap();
    eventually("all of them are as before", async || {
        let replicas =
            deployments.get("register-server").await?.spec.and_then(|spec| spec.replicas);
        Ok(deployments.get_opt("trustee-deployment").await?.is_some()
            && services.get_opt("kbs-service").await?.is_some()
            && maps.get("trustee-data").await?.data == wanted
            && replicas != Some(0))
    })
    .await
    .unwrap();
    assert_eq!(keys.get("trustee-auth").await.unwrap().data, pair, "keys are made once");
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn conditions_of_others_stay() {
    let mut bench = Bench::new().await.unwrap();
    bench.create(&cluster("cluster")).await.unwrap();
    let foreign = json!({"status": {"conditions": [{
        "type": "SomebodyElses", "status": "Unknown", "reason": "Whatever", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]}});
    let clusters = bench.objects::<TrustedExecutionCluster>().unwrap();
    let params = PatchParams::default();
    clusters.patch_status("cluster", &params, &Patch::Merge(foreign)).await.unwrap();
    bench.start("one").unwrap();
    says(&bench, "cluster", "Installed", "True InstallationCompleted").await;
    let stays = condition(&bench, "cluster", "SomebodyElses").await;
    assert_eq!(stays.as_deref(), Some("Unknown Whatever"));
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn a_second_cluster_object_does_no_harm() {
    let mut bench = Bench::at_work().await.unwrap();
    says(&bench, "cluster", "Installed", "True InstallationCompleted").await;
    bench.create(&cluster("another")).await.unwrap();
    says(&bench, "another", "Installed", "False NonUnique").await;
    says(&bench, "cluster", "Installed", "True InstallationCompleted").await;
    let clusters = bench.objects::<TrustedExecutionCluster>().unwrap();
    clusters.delete("cluster", &DeleteParams::default()).await.unwrap();
    says(&bench, "another", "Installed", "True InstallationCompleted").await;
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn of_two_replicas_one_leads_and_the_other_takes_over() {
    let mut bench = Bench::at_work().await.unwrap();
    let leases = bench.objects::<Lease>().unwrap();
    let holder = async || {
        let lease = leases.get_opt("trusted-cluster-operator").await.unwrap();
        lease.and_then(|lease| lease.spec?.holder_identity)
    };
    eventually("one leads", async || Ok(holder().await.as_deref() == Some("one"))).await.unwrap();
    let waiting = bench.start("two").unwrap();
    eventually("the other is ready", async || Ok(waiting.is_ready())).await.unwrap();
    says(&bench, "cluster", "Installed", "True InstallationCompleted").await;
    assert_eq!(holder().await.as_deref(), Some("one"));
    bench.stop_first();
    eventually("the other leads", async || Ok(holder().await.as_deref() == Some("two")))
        .await
        .unwrap();
    let services = bench.objects::<Service>().unwrap();
    services.delete("kbs-service", &DeleteParams::default()).await.unwrap();
    eventually("and works", async || Ok(services.get_opt("kbs-service").await?.is_some()))
        .await
        .unwrap();
    bench.stop().await.unwrap();
    assert_eq!(holder().await, None, "it lets go at the end");
}

#[tokio::test]
async fn deleting_the_cluster_object_removes_all_that_belongs_to_it() {
    let mut bench = Bench::at_work().await.unwrap();
    says(&bench, "cluster", "Installed", "True InstallationCompleted").await;
    let clusters = bench.objects::<TrustedExecutionCluster>().unwrap();
    clusters.delete("cluster", &DeleteParams::default()).await.unwrap();
    let deployments = bench.objects::<Deployment>().unwrap();
    let secrets = bench.objects::<Secret>().unwrap();
    eventually("children are collected", async || {
        let all = deployments.list(&kube::api::ListParams::default()).await?;
        let keys = secrets.get_opt("trustee-auth").await?;
        Ok(all.items.is_empty() && keys.is_none())
    })
    .await
    .unwrap();
    assert!(clusters.get_opt("cluster").await.unwrap().is_none_or(|c| c.name_any().is_empty()));
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn the_signer_of_tokens_is_renewed_before_it_ends_and_the_trustee_starts_with_it() {
    let mut bench = Bench::at_work().await.unwrap();
    says(&bench, "cluster", "Installed", "True InstallationCompleted").await;
    let secrets = bench.objects::<Secret>().unwrap();
    let deployments = bench.objects::<Deployment>().unwrap();
    let first = secrets.get("trustee-token-signer").await.unwrap().data;
    let pair = secrets.get("trustee-auth").await.unwrap().data;
    let template = async || {
        let deployment = deployments.get("trustee-deployment").await.unwrap();
        deployment.spec.unwrap().template.metadata
    };
    let before = template().await;
    bench.clock.advance(61 * 86_400);
    // Any event will do; without one, the next check is hours away.
    let services = bench.objects::<Service>().unwrap();
    let params = DeleteParams::default();
    services.delete("kbs-service", &params).await.unwrap();
    eventually("there is another signer, and another pod", async || {
        let signer = secrets.get("trustee-token-signer").await?.data;
        Ok(signer != first && template().await != before)
    })
    .await
    .unwrap();
    let same = secrets.get("trustee-auth").await.unwrap().data;
    assert_eq!(same, pair, "the admin's key stays");
    bench.stop().await.unwrap();
}
