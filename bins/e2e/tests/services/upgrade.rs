//! OpenBao of the previous minor version, replaced by the current one on the same storage: one pod, and three.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use tec_e2e::kube::eventually;
use tec_e2e::packages::tool;
use tec_e2e::services::bao::{Bao, Seal};
use tec_e2e::services::cluster::Cluster;
use tec_e2e::services::nats::Nats;
use tec_e2e::services::platform::Platform;
use tec_e2e::services::rotation;
use tec_e2e::services::rotation::Load;
use tec_e2e::services::stage::Stage;
use tec_services::vault::Request;
use tec_support::serve::Shutdown;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::backup::{back_up, facts, lose_volume, restore};
use crate::kills::guard;
use crate::raft::{health, three_on};
use crate::vault::{root_tokens, seal_status, voters};

/// How long components publish while the pods are upgraded.
const LASTS: Duration = Duration::from_secs(75);
/// How long a component asks before it gives up; its broker has five minutes.
const PATIENCE: Duration = Duration::from_mins(1);

/// The program of the previous minor version.
fn previous() -> PathBuf {
    let named = std::env::var_os("TEC_OLD_BAO").map(PathBuf::from);
    named.unwrap_or_else(|| tool("old-bao/bao").unwrap())
}

/// Major and minor version of the running vault.
async fn version(stage: &Stage) -> String {
    version_of(&seal_status(stage).await)
}

fn version_of(status: &Value) -> String {
    let version = status["version"].as_str().unwrap();
    let mut parts = version.split('.');
    let minor = [parts.next().unwrap(), parts.next().unwrap()].join(".");
    println!("OpenBao {version}");
    minor
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs old-bao: run cargo xtask tools --old-bao"]
async fn the_next_minor_version_of_the_vault_continues_with_the_storage_of_the_previous_one() {
    let mut stage = Stage::prepare(Cluster::shared().await.unwrap(), &Seal::Shamir).unwrap();
    stage.bao.run_program(Some(previous()));
    stage.bao.start(&stage.logs).await.unwrap();
    let old = version(&stage).await;
    let platform = Platform::on(stage, &[]).await.unwrap();
    let nats = Nats::start(&platform, "nats-server").await.unwrap();
    let before = facts(&platform.stage, &platform.controller).await;
    let Platform { mut stage, .. } = platform;

    stage.bao.kill();
    stage.bao.run_program(None);
    stage.bao.start(&stage.logs).await.unwrap();
    assert_ne!(version(&stage).await, old);
    let platform = Platform::on(stage, &[]).await.unwrap();
    assert_eq!(facts(&platform.stage, &platform.controller).await, before);
    assert_eq!(root_tokens(&platform.stage, &before.key).await, 0);
    platform.broker("comp-a", &nats.url).await.unwrap();
    Nats::start(&platform, "nats-server").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs old-bao: run cargo xtask tools --old-bao"]
async fn a_snapshot_of_the_previous_minor_version_is_restored_into_the_current_one() {
    let mut stage = Stage::prepare(Cluster::shared().await.unwrap(), &Seal::Shamir).unwrap();
    let directory = stage.path("snapshots");
    std::fs::create_dir(&directory).unwrap();
    let directory = directory.display().to_string();
    stage.bao.run_program(Some(previous()));
    let vault = guard(&stage).await;
    let controller = stage.controller(&["--snapshots", &directory]).await.unwrap();
    controller.round().await.unwrap();
    let (old, before) = (version(&stage).await, facts(&stage, &controller).await);
    let backup = back_up(&stage, &controller).await;

    lose_volume(&stage, vault).await;
    stage.bao.run_program(None);
    let _vault = guard(&stage).await;
    restore(&stage, &backup).await.unwrap();
    let controller = stage.controller(&[]).await.unwrap();
    controller.round().await.unwrap();
    assert_ne!(version(&stage).await, old);
    assert_eq!(facts(&stage, &controller).await, before);
}

/// How components fared that asked the controllers in turn.
#[derive(Debug, Default)]
struct Asked {
    granted: u64,
    /// Tries that another one followed.
    refused: u64,
    given_up: u64,
}

/// Asks for an identity again and again, as brokers do through a Service: a controller that does not grant it is
/// followed by the next one.
async fn ask(platform: &Platform, at: &[SocketAddr], is_over: &AtomicBool) -> Asked {
    let mut clients = Vec::new();
    for &address in at {
        clients.push(platform.client_at(address).await.unwrap());
    }
    let request = platform.request("comp-asks").await.unwrap();
    let mut asked = Asked::default();
    let mut turns = (0..clients.len()).cycle();
    while !is_over.load(Ordering::Relaxed) {
        let end = Instant::now() + PATIENCE;
        loop {
            let client = &mut clients[turns.next().unwrap()];
            if client.bootstrap_component(request.clone()).await.is_ok() {
                asked.granted += 1;
                break;
            }
            if Instant::now() > end {
                asked.given_up += 1;
                break;
            }
            asked.refused += 1;
            sleep(Duration::from_millis(100)).await;
        }
        // Below the limit of calls per minute of each controller.
        sleep(Duration::from_millis(200)).await;
    }
    asked
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs old-bao: run cargo xtask tools --old-bao"]
async fn three_pods_are_upgraded_one_after_the_other_while_components_publish_and_start() {
    let mut stage = Stage::prepare(Cluster::shared().await.unwrap(), &Seal::Shamir).unwrap();
    stage.bao.run_program(Some(previous()));
    stage.bao.start(&stage.logs).await.unwrap();
    let old = version(&stage).await;
    let (mut platform, mut pods, controllers) = three_on(stage, &["--user-seconds", "30"]).await;
    let nats = Nats::start(&platform, "nats-server").await.unwrap();
    let before = facts(&platform.stage, &platform.controller).await;
    platform.keep().unwrap();
    let controllers = controllers.map(Arc::new);
    let (mut served, mut kept) = (Vec::new(), JoinSet::new());
    for controller in &controllers {
        served.push(Platform::serve(controller).await.unwrap());
        let (controller, (shutdown, signals)) =
            (Arc::clone(controller), Shutdown::on_signals().unwrap());
        kept.spawn(async move {
            let _signals = signals;
            controller.keep(shutdown).await
        });
    }
    let at: Vec<_> =
        [platform.address].into_iter().chain(served.iter().map(|one| one.address)).collect();

    // The load borrows the platform while its vault is replaced.
    let spare = Bao::prepare(&platform.stage.path("spare"), &Seal::Shamir).unwrap();
    let mut first = std::mem::replace(&mut platform.stage.bao, spare);
    let is_over = AtomicBool::new(false);
    let upgrade = async {
        let begin = Instant::now();
        let [one, two] = &mut pods;
        // The highest number first, as a StatefulSet does.
        for bao in [&mut two.bao, &mut one.bao, &mut first] {
            bao.kill();
            bao.run_program(None);
            bao.start(&platform.stage.logs).await.unwrap();
            let vault = bao.vault();
            let is_open = async || Ok([200, 429].contains(&health(&vault).await));
            eventually("its controller opens it", is_open).await.unwrap();
            let status = vault.call(&Request::get("sys/seal-status")).await.unwrap();
            assert_ne!(version_of(&status.json().unwrap()), old);
        }
        let took = begin.elapsed();
        // Every connection is renewed once more.
        sleep(LASTS.saturating_sub(took)).await;
        is_over.store(true, Ordering::Relaxed);
        took
    };
    let load = Load { components: 4, each: Duration::from_millis(20), lasts: LASTS };
    let load = rotation::run(&platform, &nats, load);
    let (took, asked, outcome) = tokio::join!(upgrade, ask(&platform, &at, &is_over), load);
    let outcome = outcome.unwrap();
    println!("three pods in {took:?}; {outcome}; {asked:?}");
    assert!(took < LASTS, "{took:?}");
    assert_eq!((outcome.lost, outcome.doubled, outcome.refused), (0, 0, 0));
    assert!(asked.granted > 100 && asked.given_up == 0, "{asked:?}");

    platform.stage.bao = first;
    let stage = &platform.stage;
    assert_eq!(voters(stage, &before.key).await, 3);
    assert_eq!(facts(stage, &platform.controller).await, before);
    for controller in &controllers {
        assert_eq!(facts(stage, controller).await, before);
    }
    assert_eq!(root_tokens(stage, &before.key).await, 0);
}
