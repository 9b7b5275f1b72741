//! What an image
//! measures.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;
use tec_core::digest::Sha256Digest;
use tec_core::image::{ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::pcr::PcrIndex;
use tec_core::testing::sample;
use tec_e2e::kube::{Bench, cluster, eventually};
use tec_k8s::api::{ApprovedImage, ApprovedImageSpec, PAUSED};
use tec_k8s::render::ImageAccess;

fn reference(number: u64) -> String {
    format!("registry.example/os@sha256:{number:064x}")
}

fn image(name: &str, number: u64) -> ApprovedImage {
    let mut spec = ApprovedImageSpec::default();
    spec.image = reference(number);
    ApprovedImage::new(name, spec)
}

fn label(bench: &Bench, number: u64) {
    bench.labels.set(&reference(number), sample::image(number).expected);
}

async fn committed(bench: &Bench, name: &str, wanted: &str) {
    let images = bench.objects::<ApprovedImage>().unwrap();
    eventually(&format!("{name} is {wanted}"), async || {
        let conditions = images.get(name).await?.status.map(|status| status.conditions);
        let found = conditions.unwrap_or_default().into_iter().find(|c| c.type_ == "Committed");
        Ok(found.is_some_and(|c| format!("{} {}", c.status, c.reason) == wanted))
    })
    .await
    .unwrap();
}

async fn published(bench: &Bench, wanted: &[&str]) {
    eventually(&format!("{wanted:?} may boot"), async || Ok(bench.trust.images() == wanted))
        .await
        .unwrap();
}

async fn jobs(bench: &Bench) -> Vec<Job> {
    let jobs = bench.objects::<Job>().unwrap();
    jobs.list(&ListParams::default().labels("kind=compute-pcrs")).await.unwrap().items
}

#[tokio::test]
async fn a_label_is_taken_without_a_job_and_the_last_image_leaves_none() {
    let mut bench = Bench::at_work().await.unwrap();
    label(&bench, 1);
    bench.create(&image("one", 1)).await.unwrap();
    committed(&bench, "one", "True ImageCommitted").await;
    published(&bench, &["one"]).await;
    let images = bench.objects::<ApprovedImage>().unwrap();
    let status = images.get("one").await.unwrap().status.unwrap();
    assert_eq!(status.pcrs, sample::image(1).expected.pcrs);
    assert!(status.first_seen.is_some());
    assert!(jobs(&bench).await.is_empty());
    images.delete("one", &DeleteParams::default()).await.unwrap();
    published(&bench, &[]).await;
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn an_image_that_says_nothing_of_a_pinned_register_is_told_of() {
    let mut bench = Bench::at_work().await.unwrap();
    let event = ImageEvent::new("EV_IPL", PcrIndex::MOK, Sha256Digest::of("MokList"), "mok");
    let expected = ExpectedPcr::from_events(PcrIndex::MOK, [event]);
    bench.labels.set(&reference(1), ExpectedPcrs::new(vec![expected]));
    bench.create(&image("one", 1)).await.unwrap();
    let images = bench.objects::<ApprovedImage>().unwrap();
    eventually("the register is named", async || {
        let status = images.get("one").await?.status;
        let mut said = status.iter().flat_map(|status| &status.conditions);
        Ok(said.any(|c| c.status == "True" && c.message.contains("no prediction of PCR 4:")))
    })
    .await
    .unwrap();
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn a_job_computes_what_no_label_says_and_its_failure_is_told() {
    let mut bench = Bench::at_work().await.unwrap();
    bench.create(&image("one", 1)).await.unwrap();
    committed(&bench, "one", "False Computing").await;
    let all = jobs(&bench).await;
    assert_eq!(all.len(), 1);
    let pod = all[0].spec.clone().unwrap().template;
    assert_eq!(pod.metadata.unwrap().labels.unwrap()["approved-image"], "one");
    let pod = pod.spec.unwrap();
    let arguments = pod.containers[0].args.clone().unwrap();
    assert_eq!(arguments[..3], ["publish", "--approved-image", "one"]);
    assert_eq!(pod.service_account_name.as_deref(), Some("compute-pcrs"));
    assert_eq!(pod.restart_policy.as_deref(), Some("Never"));
    let now = "2026-01-01T00:00:00Z";
    let failed = json!({"status": {"startTime": now, "conditions": [
        {"type": "FailureTarget", "status": "True", "reason": "BackoffLimitExceeded", "message": "it broke"},
        {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "it broke"},
    ]}});
    let api = bench.objects::<Job>().unwrap();
    let params = PatchParams::default();
    api.patch_status(&all[0].name_any(), &params, &Patch::Merge(failed)).await.unwrap();
    committed(&bench, "one", "False ComputationFailed").await;
    // What the Job would have written.
    let pcrs = json!({"status": {"pcrs": sample::image(1).expected.pcrs}});
    let images = bench.objects::<ApprovedImage>().unwrap();
    images.patch_status("one", &params, &Patch::Merge(pcrs)).await.unwrap();
    committed(&bench, "one", "True ImageCommitted").await;
    published(&bench, &["one"]).await;
    eventually("the Job is removed", async || Ok(jobs(&bench).await.is_empty())).await.unwrap();
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn two_objects_of_one_digest_share_one_job() {
    let mut bench = Bench::at_work().await.unwrap();
    bench.create(&image("one", 1)).await.unwrap();
    bench.create(&image("two", 1)).await.unwrap();
    committed(&bench, "one", "False Computing").await;
    committed(&bench, "two", "False Computing").await;
    assert_eq!(jobs(&bench).await.len(), 1);
    let pcrs = json!({"status": {"pcrs": sample::image(1).expected.pcrs}});
    let images = bench.objects::<ApprovedImage>().unwrap();
    images.patch_status("one", &PatchParams::default(), &Patch::Merge(pcrs)).await.unwrap();
    for name in ["one", "two"] {
        committed(&bench, name, "True ImageCommitted").await;
    }
    published(&bench, &["one", "two"]).await;
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn a_new_cluster_object_does_not_bring_old_approvals_back() {
    let mut bench = Bench::at_work().await.unwrap();
    label(&bench, 1);
    bench.create(&image("one", 1)).await.unwrap();
    published(&bench, &["one"]).await;
    let clusters = bench.objects::<tec_k8s::api::TrustedExecutionCluster>().unwrap();
    clusters.delete("cluster", &DeleteParams::default()).await.unwrap();
    published(&bench, &[]).await;
    let images = bench.objects::<ApprovedImage>().unwrap();
    eventually("the image goes with it", async || Ok(images.get_opt("one").await?.is_none()))
        .await
        .unwrap();
    let again: tec_k8s::api::TrustedExecutionCluster = serde_json::from_value(json!({
        "apiVersion": "trusted-execution-clusters.io/v1alpha1", "kind": "TrustedExecutionCluster",
        "metadata": {"name": "cluster"}, "spec": {},
    }))
    .unwrap();
    bench.create(&again).await.unwrap();
    label(&bench, 2);
    bench.create(&image("two", 2)).await.unwrap();
    published(&bench, &["two"]).await;
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn an_approval_ends_by_itself_and_when_it_is_taken_back() {
    let mut bench = Bench::at_work().await.unwrap();
    for number in [1, 2] {
        label(&bench, number);
    }
    let mut short = image("short", 1);
    let now = tec_core::port::Clock::now(&bench.clock);
    short.spec.expires_at = Some(now.plus_seconds(3600).to_string());
    bench.create(&short).await.unwrap();
    bench.create(&image("two", 2)).await.unwrap();
    published(&bench, &["short", "two"]).await;
    let images = bench.objects::<ApprovedImage>().unwrap();
    let revoke = Patch::Merge(json!({"spec": {"revokedAt": now.to_string()}}));
    images.patch("two", &PatchParams::default(), &revoke).await.unwrap();
    published(&bench, &["short"]).await;
    committed(&bench, "two", "False Revoked").await;
    bench.clock.advance(3601);
    let touch = Patch::Merge(json!({"metadata": {"annotations": {"touched": "now"}}}));
    images.patch("short", &PatchParams::default(), &touch).await.unwrap();
    published(&bench, &[]).await;
    committed(&bench, "short", "False Expired").await;
    bench.stop().await.unwrap();
}

/// The kubelet pulls the image and the program with the Secrets of the pod, and uses those of its account
/// only for a pod that names none.
#[tokio::test]
async fn a_mounted_image_takes_secrets_of_both_types_and_leaves_the_program_its_own() {
    let mut bench = Bench::new().await.unwrap();
    bench.deploy.image_access = ImageAccess::Volume;
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "one"}, "spec": {
            "containers": [{"name": "operator", "image": "ours.example/operator"}],
            "imagePullSecrets": [{"name": "ours"}],
        },
    }))
    .unwrap();
    bench.create(&pod).await.unwrap();
    for (name, entry, content) in
        [("new", "dockerconfigjson", r#"{"auths":{}}"#), ("old", "dockercfg", "{}")]
    {
        let secret: Secret = serde_json::from_value(json!({
            "metadata": {"name": name}, "type": format!("kubernetes.io/{entry}"),
            "stringData": {format!(".{entry}"): content},
        }))
        .unwrap();
        bench.create(&secret).await.unwrap();
    }
    bench.create(&cluster("cluster")).await.unwrap();
    bench.start("one").unwrap();
    for (number, secret) in [(1, "new"), (2, "old")] {
        let mut object = image(secret, number);
        object.spec.pull_secret = Some(secret.to_owned());
        bench.create(&object).await.unwrap();
        committed(&bench, secret, "False Computing").await;
    }
    let secrets = |job: Job| {
        let label = job.metadata.labels.unwrap().remove("approved-image").unwrap();
        let pod = job.spec.unwrap().template.spec.unwrap();
        let named = pod.image_pull_secrets.unwrap_or_default().into_iter();
        (label, named.map(|secret| secret.name).collect::<Vec<_>>())
    };
    let mut named: Vec<_> = jobs(&bench).await.into_iter().map(secrets).collect();
    named.sort();
    let both = |secret: &str| (secret.to_owned(), vec!["ours".to_owned(), secret.to_owned()]);
    assert_eq!(named, [both("new"), both("old")]);
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn an_image_that_is_paused_gets_no_job_until_the_pause_ends_and_counts_as_it_is() {
    let mut bench = Bench::at_work().await.unwrap();
    let images = bench.objects::<ApprovedImage>().unwrap();
    let params = PatchParams::default();
    let pause = async |name: &str, value: Option<&str>| {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {PAUSED: value}}}));
        images.patch(name, &params, &patch).await.unwrap();
    };
    let says = async |name: &str, wanted: &str| {
        eventually(&format!("{name} is paused: {wanted}"), async || {
            let status = images.get(name).await?.status.unwrap_or_default();
            let mut paused = status.conditions.iter().filter(|c| c.type_ == "Paused");
            Ok(paused.any(|condition| condition.status == wanted))
        })
        .await
        .unwrap();
    };
    let mut paused = image("paused", 1);
    paused.metadata.annotations = Some([(PAUSED.to_owned(), "true".to_owned())].into());
    bench.create(&paused).await.unwrap();
    says("paused", "True").await;
    // A different image is handled later, and gets its Job.
    bench.create(&image("other", 2)).await.unwrap();
    committed(&bench, "other", "False Computing").await;
    assert_eq!(jobs(&bench).await.len(), 1);
    pause("paused", None).await;
    says("paused", "False").await;
    committed(&bench, "paused", "False Computing").await;
    assert_eq!(jobs(&bench).await.len(), 2);

    label(&bench, 3);
    bench.create(&image("live", 3)).await.unwrap();
    published(&bench, &["live"]).await;
    pause("live", Some("true")).await;
    says("live", "True").await;
    assert_eq!(bench.trust.images(), ["live"]);
    let revoked = Patch::Merge(json!({"spec": {"revokedAt": "2026-11-24T00:00:00Z"}}));
    images.patch("live", &params, &revoked).await.unwrap();
    published(&bench, &[]).await;
    bench.stop().await.unwrap();
}
