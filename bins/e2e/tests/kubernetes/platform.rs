//! Platform baselines on a cluster: recorded by the key broker, approved by an admin, removed with the machine.

use std::sync::Arc;

use kube::ResourceExt as _;
use kube::api::ListParams;
use serde_json::{Value, json};
use tec_core::code::Code;
use tec_core::pcr::PcrIndex;
use tec_core::testing::sample;
use tec_e2e::kube::{Bench, eventually};
use tec_k8s::api::{PlatformApproval, PlatformBaseline};
use tec_k8s::client::KubeRegistry;
use tec_support::SystemClock;
use tec_tpm::event_log::EventKind;
use tec_tpm::testing::SoftTpm;

use crate::builtin::{KERNEL, World, boot_after, builtin};
use crate::damage::remove_definition;
use crate::guard::bind;
use crate::standing::{done, plugin};

/// Boots the approved kernel on this version of the firmware.
fn boot(tpm: &SoftTpm, firmware: &str, policy: &str) {
    let (code, version) = (PcrIndex::new(0).unwrap(), EventKind::S_CRTM_VERSION);
    let (secure, variable) = (PcrIndex::SECURE_BOOT, EventKind::EFI_VARIABLE_DRIVER_CONFIG);
    boot_after(tpm, &[(code, version, firmware), (secure, variable, policy)], KERNEL);
}

/// The key is released; the operator may still be creating it.
async fn unlocks(world: &World, number: u64, tpm: &SoftTpm) {
    let released = async || match world.fetch_key_of(number, tpm).await {
        Err(Code::KeyMissing) => Ok(false),
        answer => Ok(answer.map(|_| true).unwrap()),
    };
    eventually("the key is released", released).await.unwrap();
}

async fn listed(world: &World) -> Vec<(Value, Value)> {
    let list = done(&world.bench, &["platform", "list"]).await;
    let one = |entry: &Value| (entry["machine"].clone(), entry["state"].clone());
    list.as_array().unwrap().iter().map(one).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_firmware_is_refused_until_an_admin_approves_it_once_for_all_machines() {
    let (one, two) = (SoftTpm::rsa(1), SoftTpm::rsa(2));
    for tpm in [&one, &two] {
        boot(tpm, "1.0", "on");
    }
    let world = World::new(&one, 1).await;
    let clock = Arc::new(SystemClock);
    let registry = KubeRegistry::new(world.bench.admin().unwrap(), &world.bench.namespace, clock);
    bind(&registry, sample::machine_id(2), two.public_key()).await;
    world.disk_key().await;
    unlocks(&world, 1, &one).await;
    unlocks(&world, 2, &two).await;
    let ids = [1, 2].map(|number| sample::machine_id(number).to_string());
    let is = |number: usize, state: &str| (json!(ids[number]), json!(state));
    assert_eq!(listed(&world).await, [is(0, "accepted"), is(1, "accepted")]);

    // A boot that matches writes nothing.
    let platforms = world.bench.objects::<PlatformBaseline>().unwrap();
    let name = PlatformBaseline::name_of(&one.public_key().fingerprint());
    let version = async || platforms.get(&name).await.unwrap().resource_version();
    let first = version().await;
    boot(&one, "1.0", "on");
    unlocks(&world, 1, &one).await;
    assert_eq!(version().await, first);

    boot(&one, "2.0", "on");
    assert_eq!(world.fetch(&one).await.unwrap_err(), Code::PlatformChanged);
    let refused = version().await;
    assert_eq!(world.fetch(&one).await.unwrap_err(), Code::PlatformChanged);
    assert_eq!(version().await, refused, "a node that asks again is not written again");
    assert_eq!(listed(&world).await, [is(0, "waits for approval"), is(1, "accepted")]);
    let diff = done(&world.bench, &["platform", "diff", &ids[0]]).await;
    assert_eq!(diff["changes"].as_array().unwrap().len(), 1, "{diff}");
    assert_eq!((&diff["changes"][0]["pcr"], &diff["refused"]), (&json!(0), &json!(true)));

    let approve = ["platform", "approve", &ids[0]];
    done(&world.bench, &[&approve[..], &["--dry-run"]].concat()).await;
    assert_eq!(world.fetch(&one).await.unwrap_err(), Code::PlatformChanged);
    let approved = done(&world.bench, &[&approve[..], &["--yes"]].concat()).await;
    assert_eq!(approved["machines"], json!(ids));
    let again = plugin(&world.bench, &[&approve[..], &["--yes"]].concat()).await;
    let told = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(told.contains("nothing waits for approval"), "{told}");
    let lines = done(&world.bench, &["audit", "list", "--machine", &ids[0]]).await;
    assert_eq!(lines[0]["event"]["action"], "platform-approved", "{lines}");

    // The other machine of the model has not been updated yet.
    unlocks(&world, 2, &two).await;
    for (number, tpm) in [(1, &one), (2, &two)] {
        boot(tpm, "2.0", "on");
        unlocks(&world, number, tpm).await;
        for (firmware, policy) in [("1.0", "on"), ("2.0", "off")] {
            boot(tpm, firmware, policy);
            let refused = world.fetch_key_of(number, tpm).await.unwrap_err();
            assert_eq!(refused, Code::PlatformChanged, "{firmware} {policy}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_machine_leaves_no_platform() {
    let tpm = SoftTpm::rsa(1);
    boot(&tpm, "1.0", "on");
    let world = World::new(&tpm, 1).await;
    world.disk_key().await;
    unlocks(&world, 1, &tpm).await;
    let platforms = world.bench.objects::<PlatformBaseline>().unwrap();
    let all = platforms.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].owner_references()[0].kind, "Machine");
    let id = sample::machine_id(1).to_string();
    done(&world.bench, &["machine", "remove", &id, "--yes"]).await;
    eventually("its platform is removed", async || {
        let left = platforms.list(&ListParams::default()).await?;
        Ok(left.items.is_empty())
    })
    .await
    .unwrap();
    assert_eq!(listed(&world).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_without_the_definition_releases_no_key_and_says_what_is_missing() {
    let tpm = SoftTpm::rsa(1);
    boot(&tpm, "1.0", "on");
    let world = World::on(Bench::alone().await.unwrap(), &builtin(), &tpm, 1).await;
    world.disk_key().await;
    for kind in ["platformbaselines", "platformapprovals"] {
        let name = format!("{kind}.trusted-execution-clusters.io");
        remove_definition(&world.bench, &name).await;
    }
    assert_eq!(world.fetch(&tpm).await.unwrap_err(), Code::StoreUnavailable);
    let log = world.log();
    assert!(
        log.contains("has no kind PlatformBaseline (apply the definitions of this release)"),
        "{log}"
    );
    let told = plugin(&world.bench, &["platform", "list"]).await;
    let told = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(told.contains("TEC-C404") && told.contains("platformbaselines"), "{told}");

    // It is the first boot of a machine that exists: its baseline.
    world.bench.plane.install_resources().await.unwrap();
    let released = async || Ok(world.fetch(&tpm).await.is_ok());
    eventually("the key is released", released).await.unwrap();
    boot(&tpm, "2.0", "on");
    assert_eq!(world.fetch(&tpm).await.unwrap_err(), Code::PlatformChanged);
    let approvals = world.bench.objects::<PlatformApproval>().unwrap();
    assert_eq!(approvals.list(&ListParams::default()).await.unwrap().items.len(), 0);
}
