//! Each Event reason occurs on a real API server. The reasons of the key brokers are tested in guard.rs and
//! alerts.rs, those about untrusted machines in untrusted.rs, those about tags in follow.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Secret, Service};
use k8s_openapi::api::events::v1::Event as Reported;
use k8s_openapi::api::rbac::v1::Role;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tec_core::machine::{Machine as Known, RegisteredBy};
use tec_core::port::Clock as _;
use tec_core::testing::sample;
use tec_e2e::kube::{Bench, eventually, plain_cluster};
use tec_k8s::api::{ApprovedImage, ApprovedImageSpec, AttestationKey, Machine};
use tec_k8s::signal::Event;
use tec_support::SystemClock;

const DAY: i64 = 86_400;

/// Reason and object kind of every Event in the namespace.
async fn seen(bench: &Bench) -> anyhow::Result<BTreeSet<(String, String)>> {
    let events = bench.objects::<Reported>()?.list(&ListParams::default()).await?;
    let read = |event: Reported| Some((event.reason?, event.regarding?.kind?));
    Ok(events.into_iter().filter_map(read).collect())
}

pub(crate) async fn reported(bench: &Bench, event: Event) {
    let wanted = (event.as_str().to_owned(), event.on().to_owned());
    let came = eventually("the Event", async || Ok(seen(bench).await?.contains(&wanted))).await;
    assert!(came.is_ok(), "{wanted:?} is not among {:?}", seen(bench).await);
}

fn machine(number: u64) -> Machine {
    let id = sample::machine_id(number);
    Machine::from_core(&Known::unclaimed(id, RegisteredBy::FirstBoot, SystemClock.now()))
}

fn image(name: &str, number: u64) -> ApprovedImage {
    let mut spec = ApprovedImageSpec::default();
    spec.image = format!("registry.example/os@sha256:{number:064x}");
    ApprovedImage::new(name, spec)
}

async fn patch_status<K>(bench: &Bench, name: &str, status: Value)
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + serde::de::DeserializeOwned
        + std::fmt::Debug,
{
    let patch = Patch::Merge(json!({ "status": status }));
    let objects = bench.objects::<K>().unwrap();
    objects.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
}

#[tokio::test]
async fn every_reason_about_machines_and_keys_is_seen() {
    let mut bench = Bench::at_work_on(&plain_cluster("cluster")).await.unwrap();
    let first = bench.create(&AttestationKey::from_core(&sample::ak(1, 1))).await.unwrap();
    reported(&bench, Event::KeyWaiting).await;
    bench.create(&machine(1)).await.unwrap();
    reported(&bench, Event::KeyCreated).await;
    reported(&bench, Event::KeyBound).await;
    bench.create(&AttestationKey::from_core(&sample::ak(2, 1))).await.unwrap();
    reported(&bench, Event::KeyRejected).await;
    let other = AttestationKey::from_core(&sample::ak(3, 1)).spec.public_key;
    let edit = Patch::Merge(json!({"spec": {"publicKey": other}}));
    let keys = bench.objects::<AttestationKey>().unwrap();
    keys.patch(&first.name_any(), &PatchParams::default(), &edit).await.unwrap();
    reported(&bench, Event::KeyChanged).await;
    let mut copy = machine(1);
    copy.metadata.name = Some("copy".to_owned());
    bench.create(&copy).await.unwrap();
    reported(&bench, Event::DuplicateId).await;
    let secrets = bench.objects::<Secret>().unwrap();
    let name = sample::machine_id(1).to_string();
    secrets.delete(&name, &DeleteParams::default()).await.unwrap();
    reported(&bench, Event::KeyLost).await;
    bench.create(&machine(2)).await.unwrap();
    bench.clock.advance(2 * DAY);
    reported(&bench, Event::UnclaimedRemoved).await;
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn every_reason_about_images_is_seen() {
    let mut bench = Bench::at_work_on(&plain_cluster("cluster")).await.unwrap();
    bench.create(&image("one", 1)).await.unwrap();
    reported(&bench, Event::ComputationStarted).await;
    let jobs = bench.objects::<Job>().unwrap();
    let of_images = ListParams::default().labels("kind=compute-pcrs");
    let job = jobs.list(&of_images).await.unwrap().items.remove(0).name_any();
    let condition =
        |kind| json!({"type": kind, "status": "True", "reason": "BackoffLimitExceeded"});
    let conditions = [condition("FailureTarget"), condition("Failed")];
    let failed = json!({"startTime": "2026-01-01T00:00:00Z", "conditions": conditions});
    patch_status::<Job>(&bench, &job, failed).await;
    reported(&bench, Event::ComputationFailed).await;
    // What the Job would have written.
    let pcrs = json!({"pcrs": sample::image(1).expected.pcrs});
    patch_status::<ApprovedImage>(&bench, "one", pcrs).await;
    reported(&bench, Event::ComputationCompleted).await;
    let mut old = image("old", 2);
    old.spec.expires_at = Some("2020-01-01T00:00:00Z".to_owned());
    bench.create(&old).await.unwrap();
    reported(&bench, Event::ImageExpired).await;
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn every_reason_about_the_cluster_is_seen() {
    let mut bench = Bench::at_work_on(&plain_cluster("cluster")).await.unwrap();
    reported(&bench, Event::PlainHttp).await;
    reported(&bench, Event::Installed).await;
    let services = bench.objects::<Service>().unwrap();
    services.delete("kbs-service", &DeleteParams::default()).await.unwrap();
    reported(&bench, Event::DriftRepaired).await;
    bench.trust.set_down(true);
    bench.create(&machine(1)).await.unwrap();
    reported(&bench, Event::PublishFailed).await;
    bench.trust.set_down(false);
    reported(&bench, Event::TrusteeConverged).await;
    let stuck = json!({"conditions": [{
        "type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded",
        "message": "ReplicaSet has timed out progressing.",
    }]});
    patch_status::<Deployment>(&bench, "register-server", stuck).await;
    reported(&bench, Event::UpgradeFailed).await;
    bench.create(&plain_cluster("second")).await.unwrap();
    reported(&bench, Event::NonUnique).await;
    let roles = bench.objects::<Role>().unwrap();
    let mut role = roles.get("trusted-cluster-operator").await.unwrap();
    for rule in role.rules.iter_mut().flatten() {
        if rule.resources.iter().flatten().any(|resource| resource == "services") {
            rule.verbs.retain(|verb| ["get", "list", "watch"].contains(&verb.as_str()));
        }
    }
    roles.replace("trusted-cluster-operator", &PostParams::default(), &role).await.unwrap();
    services.delete("kbs-service", &DeleteParams::default()).await.unwrap();
    reported(&bench, Event::ApplyFailed).await;
    bench.stop().await.unwrap();
}

/// Reasons covered by this file and by those named at its top.
#[test]
fn no_reason_is_left_out() {
    let of_the_operator = [
        include_str!("events.rs"),
        include_str!("follow/refusals.rs"),
        include_str!("follow/releases.rs"),
        include_str!("untrusted.rs"),
    ];
    for event in Event::ALL {
        let is_waited_for = match event.program() {
            "operator" => {
                let wait = format!("bench, Event::{}).await", event.as_str());
                of_the_operator.iter().any(|file| file.contains(&wait))
            }
            _ => [include_str!("guard.rs"), include_str!("alerts.rs")]
                .iter()
                .any(|file| file.contains(&format!("\"{}\"", event.as_str()))),
        };
        assert!(is_waited_for, "no test sees {}", event.as_str());
    }
}
