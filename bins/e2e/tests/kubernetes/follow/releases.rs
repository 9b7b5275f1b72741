//! A tag that moves from release to release.

use futures::StreamExt as _;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use tec_core::port::AuditAction;
use tec_core::testing::sample;
use tec_e2e::kube::{Bench, Link, Traffic, cluster, eventually};
use tec_k8s::api::{ApprovedImage, FOLLOWED_BY, FollowedImage, TrustedExecutionCluster};
use tec_k8s::signal::Event;

use super::world::{World, followed, name, reference};
use crate::events::reported;
use crate::standing::done;

/// Who writes nothing for this long has nothing left to do.
const QUIET: std::time::Duration = std::time::Duration::from_secs(2);

#[tokio::test]
async fn a_tag_that_moves_through_three_releases_approves_each_and_revokes_what_no_machine_needs() {
    let mut world = World::new(json!({"keep": 0})).await;
    world.says("Following", "TagFollowed", &name(1)).await;
    world.may_boot(&[1]).await;
    reported(&world.bench, Event::ImageFollowed).await;
    world.machine(1, Some(&name(1))).await;
    world.machine(2, Some(&name(1))).await;
    world.release(2).await;
    world.says("OldImagesRevoked", "MachinesNeedThem", &name(1)).await;
    world.may_boot(&[1, 2]).await;
    world.booted(1, &name(2)).await;
    world.booted(2, &format!("{}, {}", name(1), name(2))).await;
    world.release(3).await;
    let held = world.says("OldImagesRevoked", "MachinesNeedThem", &name(2)).await;
    assert!(held.contains(&name(1)) && held.contains(&sample::machine_id(2).to_string()), "{held}");
    world.may_boot(&[1, 2, 3]).await;

    world.booted(1, &name(3)).await;
    world.booted(2, &name(2)).await;
    world.look().await;
    world.may_boot(&[2, 3]).await;
    reported(&world.bench, Event::OldImageRevoked).await;
    world.booted(2, &name(3)).await;
    world.look().await;
    world.may_boot(&[3]).await;
    world.says("OldImagesRevoked", "AsDesired", "").await;
    let first = world.image(&name(1)).await.expect("a revoked approval leaves a trace");
    assert!(first.spec.revoked_at.is_some());
    let images: Vec<_> = world.status().await.images.into_iter().map(|image| image.name).collect();
    assert_eq!(images, [name(3), name(2), name(1)]);
    world.bench.stop().await.unwrap();
}

#[tokio::test]
async fn an_approval_names_its_tag_and_leaves_an_audit_line() {
    let mut world = World::new(json!({})).await;
    let mut image = None;
    eventually("the image is there", async || {
        image = world.image(&name(1)).await;
        Ok(image.is_some())
    })
    .await
    .unwrap();
    let image = image.unwrap();
    assert_eq!(image.spec.image, reference(1));
    assert_eq!(image.labels()[FOLLOWED_BY], "os");
    let line: Value =
        serde_json::from_str(&image.annotations()["trusted-execution-clusters.io/audit"]).unwrap();
    assert_eq!(line["action"], json!(AuditAction::ImageApproved));
    world.bench.stop().await.unwrap();
}

#[tokio::test]
async fn a_machine_of_which_no_boot_is_known_keeps_old_images_approved() {
    let mut world = World::new(json!({"keep": 0})).await;
    world.says("Following", "TagFollowed", &name(1)).await;
    world.machine(1, None).await;
    world.release(2).await;
    world.says("OldImagesRevoked", "MachinesNeedThem", &sample::machine_id(1).to_string()).await;
    world.may_boot(&[1, 2]).await;
    let id = sample::machine_id(1).to_string();
    done(&world.bench, &["machine", "retire", &id, "--yes"]).await;
    world.look().await;
    world.may_boot(&[2]).await;
    world.bench.stop().await.unwrap();
}

#[tokio::test]
async fn an_image_that_an_admin_approved_is_never_revoked() {
    let mut world = World::new(json!({"keep": 0})).await;
    world.says("Following", "TagFollowed", &name(1)).await;
    world.approve("aaa-mine", 1).await;
    world.approve("bbb-other", 9).await;
    world.release(2).await;
    let others = ["aaa-mine", "bbb-other"].map(str::to_owned);
    world.images_may_boot(&[&others[..], &[name(2)]].concat()).await;
    // Taking the label away makes an approval one of an admin.
    let images = world.bench.objects::<ApprovedImage>().unwrap();
    let patch = Patch::Merge(json!({"metadata": {"labels": {FOLLOWED_BY: null}}}));
    images.patch(&name(2), &PatchParams::default(), &patch).await.unwrap();
    world.release(3).await;
    world.release(4).await;
    world.images_may_boot(&[&others[..], &[name(2), name(4)]].concat()).await;
    world.bench.stop().await.unwrap();
}

#[tokio::test]
async fn a_dry_run_says_what_it_would_do_and_changes_nothing() {
    let mut world = World::new(json!({"keep": 0, "dryRun": true})).await;
    world.says("Following", "DryRun", &format!("would approve {}", reference(1))).await;
    reported(&world.bench, Event::FollowDryRun).await;
    assert_eq!(world.images().await, [""; 0]);
    world.change(&json!({"spec": {"dryRun": false}})).await;
    world.says("Following", "TagFollowed", &name(1)).await;
    world.release(2).await;
    world.may_boot(&[2]).await;
    world.change(&json!({"spec": {"keep": 1}})).await;
    world.release(3).await;
    world.may_boot(&[2, 3]).await;
    world.change(&json!({"spec": {"dryRun": true, "keep": 0}})).await;
    world.says("Following", "DryRun", &format!("would revoke {}", name(2))).await;
    world.push(4);
    world.look().await;
    world.says("Following", "DryRun", &format!("would approve {}", reference(4))).await;
    world.may_boot(&[2, 3]).await;
    assert_eq!(world.images().await, [name(1), name(2), name(3)]);
    world.bench.stop().await.unwrap();
}

#[tokio::test]
async fn approvals_stay_when_a_tag_is_no_longer_followed_and_go_with_the_cluster_object() {
    let mut world = World::new(json!({"keep": 0})).await;
    world.may_boot(&[1]).await;
    let tags = world.bench.objects::<FollowedImage>().unwrap();
    tags.delete("os", &DeleteParams::default()).await.unwrap();
    world.push(2);
    world.bench.create(&followed(&json!({"dangerouslyUnsigned": true}))).await.unwrap();
    world.may_boot(&[1, 2]).await;
    // It is followed from where it was.
    let numbers = async || world.status().await.images.iter().map(|i| i.number).collect::<Vec<_>>();
    eventually("both are listed", async || Ok(numbers().await == [2, 1])).await.unwrap();
    let clusters = world.bench.objects::<TrustedExecutionCluster>().unwrap();
    clusters.delete("cluster", &DeleteParams::default()).await.unwrap();
    eventually("all go with it", async || {
        Ok(world.images().await.is_empty() && tags.get_opt("os").await?.is_none())
    })
    .await
    .unwrap();
    world.bench.stop().await.unwrap();
}

#[tokio::test]
async fn a_restart_repeats_no_look_and_forgets_nothing() {
    let mut world = World::new(json!({"keep": 0})).await;
    world.says("Following", "TagFollowed", &name(1)).await;
    world.release(2).await;
    world.may_boot(&[2]).await;
    let looks = world.bench.tags.looks();
    let before = world.status().await;
    world.bench.stop().await.unwrap();
    world.push(1);
    world.bench.trust.restart_operator();
    let rounds = world.bench.trust.rounds();
    world.bench.start("two").unwrap();
    eventually("it publishes", async || Ok(world.bench.trust.rounds() > rounds)).await.unwrap();
    world.may_boot(&[2]).await;
    assert_eq!(world.bench.tags.looks(), looks, "it is not due");
    assert_eq!(world.status().await, before);
    world.look().await;
    world.says("Following", "RolledBack", &name(1)).await;
    world.bench.stop().await.unwrap();
}

/// Requests of a look that finds nothing new, and of one with a new image.
async fn costs(world: &World, link: &Link, release: u64) -> [Traffic; 2] {
    world.look().await;
    eventually("a look is done", async || {
        let status = world.status().await;
        let at: Option<tec_core::time::Timestamp> = status.last_look.and_then(|at| at.parse().ok());
        let now = tec_core::port::Clock::now(&world.bench.clock);
        Ok(at.is_some_and(|at| now.unix_seconds() - at.unix_seconds() < 60))
    })
    .await
    .unwrap();
    let idle = link.take_traffic();
    world.release(release).await;
    world.may_boot(&[release - 1, release]).await;
    [idle, link.take_traffic()]
}

fn of_machines(traffic: &Traffic) -> u64 {
    traffic.writes("machines") + traffic.writes("machines/status")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_costs_as_much_with_many_machines_as_with_few() {
    let mut bench = Bench::alone().await.unwrap();
    bench.create(&cluster("cluster")).await.unwrap();
    let link = Link::new(bench.client().unwrap()).await.unwrap();
    bench.start_over("one", link.client().unwrap()).unwrap();
    let mut world = World { bench };
    world.push(1);
    let spec = json!({"keep": 1, "dangerouslyUnsigned": true});
    world.bench.create(&followed(&spec)).await.unwrap();
    world.release(2).await;
    let mut all = Vec::new();
    for (machines, release) in [(1..4, 3), (4..40, 4)] {
        let all_of_them = 1..machines.end;
        let made = futures::stream::iter(machines).map(async |number| {
            world.machine(number, None).await;
        });
        made.buffer_unordered(8).collect::<Vec<_>>().await;
        for number in all_of_them {
            world.booted(number, &name(release - 1)).await;
        }
        eventually("the machines settle", async || {
            link.take_traffic();
            tokio::time::sleep(QUIET).await;
            Ok(of_machines(&link.take_traffic()) == 0)
        })
        .await
        .unwrap();
        all.push(costs(&world, &link, release).await);
    }
    for [idle, new] in &all {
        assert_eq!(idle.requests.get("LIST machines"), None, "{idle:?}");
        assert_eq!(new.requests.get("LIST machines"), None, "{new:?}");
        assert_eq!(of_machines(new), 0, "{new:?}");
        assert!(idle.writes("followedimages/status") <= 2, "{idle:?}");
        // One is created, and an older one revoked.
        assert_eq!(new.requests.get("POST approvedimages"), Some(&1), "{new:?}");
        assert!(new.requests.get("PATCH approvedimages").is_none_or(|all| *all <= 1), "{new:?}");
    }
    world.bench.stop().await.unwrap();
}
