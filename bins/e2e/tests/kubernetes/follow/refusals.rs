//! What keeps a tag from being followed.

use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tec_core::code::Code;
use tec_core::port::PortErrorKind;
use tec_core::testing::sample;
use tec_e2e::kube::{cluster, eventually};
use tec_k8s::api::{ApprovedImage, FollowedImage, PAUSED, TrustedExecutionCluster};
use tec_k8s::signal::Event;

use super::world::{TAG, World, followed, name, reference, signed};
use crate::events::reported;
use crate::standing::done;

impl World {
    async fn change_cluster(&self, spec: Value) {
        let clusters = self.bench.objects::<TrustedExecutionCluster>().unwrap();
        let patch = Patch::Merge(json!({ "spec": spec }));
        clusters.patch("cluster", &PatchParams::default(), &patch).await.unwrap();
    }

    /// Waits for the Job of a release, and lets it fail.
    async fn job_fails(&self, release: u64, why: &str) {
        let jobs = self.bench.objects::<Job>().unwrap();
        let label = format!("approved-image={}", name(release));
        let mut job = None;
        eventually("the Job is there", async || {
            job = jobs.list(&ListParams::default().labels(&label)).await?.items.pop();
            Ok(job.is_some())
        })
        .await
        .unwrap();
        let condition = |kind| json!({"type": kind, "status": "True", "reason": "BackoffLimitExceeded", "message": why});
        let conditions = [condition("FailureTarget"), condition("Failed")];
        let status = json!({"startTime": "2026-01-01T00:00:00Z", "conditions": conditions});
        let patch = Patch::Merge(json!({ "status": status }));
        let job = job.unwrap().name_any();
        jobs.patch_status(&job, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Writes what the Job of a release would have written.
    async fn job_ends_well(&self, release: u64) {
        let images = self.bench.objects::<ApprovedImage>().unwrap();
        eventually("the image is there", async || {
            Ok(images.get_opt(&name(release)).await?.is_some())
        })
        .await
        .unwrap();
        let pcrs = json!({"status": {"pcrs": sample::image(release).expected.pcrs}});
        let params = PatchParams::default();
        images.patch_status(&name(release), &params, &Patch::Merge(pcrs)).await.unwrap();
    }
}

#[tokio::test]
async fn without_a_signature_policy_no_image_of_a_tag_is_approved() {
    let mut world = World::of(&cluster("cluster"), &json!({})).await;
    let why = world.says("Following", "SignatureRequired", "spec.imageSignatures").await;
    assert!(why.contains("dangerouslyUnsigned"), "{why}");
    assert_eq!(world.images().await, [""; 0]);
    world.change_cluster(json!({"imageSignatures": {"configMap": "image-signers"}})).await;
    world.says("Following", "Approving", &name(1)).await;
    // The policy is gone before the image is measured.
    world.push(2);
    world.change_cluster(json!({"imageSignatures": null})).await;
    world.look().await;
    world.says("Following", "SignatureRequired", "").await;
    assert_eq!(world.images().await, [name(1)]);
    world.bench.stop().await.unwrap();
}

#[tokio::test]
async fn an_image_that_must_be_signed_is_not_measured_once_the_policy_is_gone() {
    let mut world = World::of(&signed(), &json!({})).await;
    world.job_fails(1, "TEC-I426: no accepted key signed it").await;
    world.says("Following", "ImageRefused", "TEC-I426").await;
    world.change_cluster(json!({"imageSignatures": null})).await;
    let images = world.bench.objects::<ApprovedImage>().unwrap();
    let touch = Patch::Merge(json!({"metadata": {"annotations": {"touched": "now"}}}));
    images.patch(&name(1), &PatchParams::default(), &touch).await.unwrap();
    eventually("it says so", async || {
        let status = images.get(&name(1)).await?.status.unwrap_or_default();
        let mut said = status.conditions.iter();
        Ok(said.any(|c| c.type_ == "Committed" && c.reason == "SignatureRequired"))
    })
    .await
    .unwrap();
    assert_eq!(world.bench.trust.images(), [""; 0], "its label would do otherwise");
    world.bench.stop().await.unwrap();
}

#[tokio::test]
async fn an_unsigned_image_is_refused_by_name_and_the_old_one_stays() {
    let mut world = World::of(&signed(), &json!({"keep": 0})).await;
    world.job_ends_well(1).await;
    world.says("Following", "TagFollowed", &name(1)).await;
    world.may_boot(&[1]).await;
    world.push(2);
    world.look().await;
    world.job_fails(2, "TEC-I426: no accepted key signed it").await;
    let why = world.says("Following", "ImageRefused", "TEC-I426").await;
    assert!(why.contains(&name(2)), "{why}");
    reported(&world.bench, Event::FollowFailed).await;
    world.look().await;
    world.may_boot(&[1]).await;
    // The next one is signed, and the refused one is given up.
    world.push(3);
    world.look().await;
    world.job_ends_well(3).await;
    world.may_boot(&[3]).await;
    eventually("the refused one is given up", async || {
        Ok(world.image(&name(2)).await.is_some_and(|image| image.spec.revoked_at.is_some()))
    })
    .await
    .unwrap();
    world.bench.stop().await.unwrap();
}

#[tokio::test]
async fn a_tag_that_goes_back_brings_no_old_image_back_unless_an_admin_approves_it() {
    let mut world = World::new(json!({"keep": 0})).await;
    world.says("Following", "TagFollowed", &name(1)).await;
    world.release(2).await;
    world.may_boot(&[2]).await;
    world.push(1);
    world.look().await;
    let why = world.says("Following", "RolledBack", &name(1)).await;
    assert!(why.contains(&name(2)) && why.contains(&reference(1)), "{why}");
    reported(&world.bench, Event::TagRolledBack).await;
    world.look().await;
    world.may_boot(&[2]).await;
    world.approve("again", 1).await;
    world.look().await;
    world.says("Following", "TagFollowed", "approved by an admin as again").await;
    world.images_may_boot(&["again".to_owned(), name(2)]).await;
    // The tag goes on.
    world.release(3).await;
    world.images_may_boot(&["again".to_owned(), name(3)]).await;
    world.bench.stop().await.unwrap();
}

#[tokio::test]
async fn an_old_image_from_before_the_tag_was_followed_is_not_approved() {
    let mut world = World::new(json!({"keep": 0})).await;
    world.says("Following", "TagFollowed", &name(1)).await;
    for (release, at) in [(2, 98), (3, 97)] {
        world.bench.tags.set_built(&reference(release), sample::time(at));
    }
    world.release(2).await;
    world.may_boot(&[2]).await;
    world.push(3);
    world.look().await;
    let why = world.says("Following", "RolledBack", "was built before").await;
    assert!(why.contains(&name(2)) && why.contains(&reference(3)), "{why}");
    assert_eq!(world.images().await, [name(1), name(2)]);
    // It states no time of its own.
    world.release(5).await;
    world.may_boot(&[5]).await;
    world.bench.stop().await.unwrap();
}

#[tokio::test]
async fn what_an_admin_revoked_or_deleted_is_not_approved_again() {
    let mut world = World::new(json!({"keep": 0})).await;
    world.may_boot(&[1]).await;
    done(&world.bench, &["image", "revoke", &name(1), "--yes"]).await;
    world.look().await;
    world.says("Following", "Revoked", &name(1)).await;
    world.release(2).await;
    world.may_boot(&[2]).await;
    let images = world.bench.objects::<ApprovedImage>().unwrap();
    images.delete(&name(2), &DeleteParams::default()).await.unwrap();
    for _ in 0..2 {
        world.look().await;
        world.says("Following", "Revoked", &name(2)).await;
    }
    assert_eq!(world.image(&name(2)).await, None);
    world.bench.stop().await.unwrap();
}

#[tokio::test]
async fn a_registry_that_does_not_answer_is_named_with_the_next_step_and_nothing_is_lost() {
    let mut world = World::new(json!({"keep": 0})).await;
    world.says("Following", "TagFollowed", &name(1)).await;
    for (kind, code, reason, part) in [
        (PortErrorKind::Unavailable, Code::RegistryUnreachable, "RegistryUnreachable", "again"),
        (PortErrorKind::Denied, Code::ImageDenied, "RegistryDenied", "spec.pullSecret"),
        (PortErrorKind::NotFound, Code::ImageAbsent, "TagMissing", "push the tag"),
        (PortErrorKind::Invalid, Code::ImageTag, "InvalidReference", "registry.example/os:44"),
        (PortErrorKind::Invalid, Code::RegistryAnswer, "TagUnreadable", "TEC-I502"),
    ] {
        world.bench.tags.fail(TAG, kind, code);
        world.look().await;
        let why = world.says("Following", reason, part).await;
        assert!(why.contains(code.as_str()), "{why}");
    }
    world.may_boot(&[1]).await;
    let status = world.status().await;
    assert_eq!(status.failed_looks, Some(5));
    assert_eq!(status.current, Some(reference(1)));
    world.release(2).await;
    world.may_boot(&[2]).await;
    assert_eq!(world.status().await.failed_looks, None);
    world.bench.stop().await.unwrap();
}

#[tokio::test]
async fn a_pull_secret_that_is_not_there_is_named() {
    let mut world = World::new(json!({"pullSecret": "login"})).await;
    world.says("Following", "RegistryDenied", "login").await;
    assert_eq!(world.bench.tags.looks(), 0, "without credentials, nobody is asked");
    world.change(&json!({"spec": {"pullSecret": null}})).await;
    world.says("Following", "TagFollowed", &name(1)).await;
    world.bench.stop().await.unwrap();
}

#[tokio::test]
async fn a_paused_tag_is_left_alone() {
    let mut world = World::new(json!({"keep": 0})).await;
    world.says("Following", "TagFollowed", &name(1)).await;
    world.change(&json!({"metadata": {"annotations": {PAUSED: "true"}}})).await;
    world.says("Paused", "PausedByAnnotation", "").await;
    let looks = world.bench.tags.looks();
    world.push(2);
    world.look().await;
    world.approve("zzz", 9).await;
    world.images_may_boot(&[name(1), "zzz".to_owned()]).await;
    assert_eq!(world.bench.tags.looks(), looks);
    world.change(&json!({"metadata": {"annotations": {PAUSED: null}}})).await;
    world.says("Following", "TagFollowed", &name(2)).await;
    world.bench.stop().await.unwrap();
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_by_the_api_server() {
    let mut world = World::new(json!({})).await;
    let tags = world.bench.objects::<FollowedImage>().unwrap();
    let mut bad: Vec<_> = [
        json!({"intervalSeconds": 59}),
        json!({"keep": -1}),
        json!({"keep": 21}),
        json!({"reference": ""}),
    ]
    .iter()
    .map(|spec| {
        let mut object = serde_json::to_value(followed(&json!({}))).unwrap();
        object["metadata"]["name"] = "bad".into();
        object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        object
    })
    .collect();
    let mut long = serde_json::to_value(followed(&json!({}))).unwrap();
    long["metadata"]["name"] = "x".repeat(51).into();
    bad.push(long);
    let resource = kube::api::ApiResource::erase::<FollowedImage>(&());
    let admin = world.bench.admin().unwrap();
    let any: kube::Api<kube::api::DynamicObject> =
        kube::Api::namespaced_with(admin, &world.bench.namespace, &resource);
    for object in bad {
        let object = serde_json::from_value(object).unwrap();
        let refused = any.create(&PostParams::default(), &object).await.unwrap_err();
        assert!(matches!(&refused, kube::Error::Api(status) if status.code == 422), "{refused:?}");
    }
    assert_eq!(tags.list(&ListParams::default()).await.unwrap().items.len(), 1);
    world.bench.stop().await.unwrap();
}
