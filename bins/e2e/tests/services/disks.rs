//! Volumes that fill up: what was there stays, callers are told to come again, and everything continues once
//! there is space.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use services::bootstrap::snapshots::{SnapshotError, Step};
use services::broker::events::Events;
use services::init::heal::{Found, Store};
use tec_e2e::kube::eventually;
use tec_e2e::services::bao::Seal;
use tec_e2e::services::cluster::Cluster;
use tec_e2e::services::nats::Nats;
use tec_e2e::services::platform::Platform;
use tec_e2e::services::stage::Stage;
use tec_services::shell::Note;
use tec_support::testing::free_address;
use tokio::time::timeout;
use tonic::{Code, Status};

use crate::backup::{facts, taken};
use crate::kills::guard;
use crate::small_disk::SmallDisk;
use crate::vault::{seal_status, stored_key};

#[tokio::test(flavor = "multi_thread")]
async fn a_vault_is_not_initialized_while_its_key_could_not_be_stored() {
    let stage = Stage::prepare(Cluster::shared().await.unwrap(), &Seal::Shamir).unwrap();
    let volume = SmallDisk::mount(&stage.path("volume"), 1);
    volume.fill(0);
    let _vault = guard(&stage).await;
    let controller = stage.controller(&[]).await.unwrap();
    let waited = timeout(Duration::from_secs(5), controller.round()).await;
    assert!(waited.is_err(), "{waited:?}");
    assert_eq!(seal_status(&stage).await["initialized"], false);

    let round = tokio::join!(controller.round(), async { volume.empty() }).0;
    round.unwrap();
    stored_key(&stage, &controller).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_leaves_half_of_the_free_space_and_an_older_one_alone() {
    let stage = Stage::prepare(Cluster::shared().await.unwrap(), &Seal::Shamir).unwrap();
    let disk = SmallDisk::mount(&stage.path("snapshots"), 8);
    let _vault = guard(&stage).await;
    let directory = stage.path("snapshots").display().to_string();
    let mut controller = stage.controller(&["--snapshots", &directory]).await.unwrap();
    controller.round().await.unwrap();
    let snapshots = controller.snapshots.as_mut().unwrap();
    snapshots.schedule.every = Duration::ZERO;
    let step = snapshots.ensure().await.unwrap();
    let (name, bytes) = taken(&step).unwrap();
    let first = fs::read(stage.path("snapshots").join(&name)).unwrap();

    // It would fit, but would leave too little.
    for left in [0, bytes + 8192] {
        disk.fill(left);
        let error = snapshots.ensure().await.unwrap_err();
        assert!(matches!(error, SnapshotError::Vault(_)), "{error:?}");
        assert!(!stage.path("snapshots/snapshot.tmp").exists());
        assert_eq!(fs::read(stage.path("snapshots").join(&name)).unwrap(), first);
        disk.empty();
    }
    eventually("a later second", async || {
        let step = snapshots.ensure().await?;
        Ok(matches!(step, Step::Taken { name: later, .. } if later != name))
    })
    .await
    .unwrap();
}

/// A component's request for an identity.
async fn ask(platform: &Platform) -> Result<(), Status> {
    let request = platform.request("comp-a").await.unwrap();
    let mut client = platform.client().await.unwrap();
    client.bootstrap_component(request).await.map(drop)
}

/// Why the vault ended by itself, according to its log.
///
/// A write that does not fit into raft's log fails: the vault steps down, and tries to lead again. One that
/// still fits, such as the empty entry of a new leader, is committed; if `vault.db` then cannot take it, OpenBao
/// panics (`FSM.ApplyBatch`), because it must not go on without a committed entry. It applies the entry after
/// its next start. The audit log has no part in it: it does not go to a volume.
fn panics(stage: &Stage) -> BTreeSet<String> {
    let logs = fs::read_dir(stage.path("logs")).unwrap();
    let texts = logs.map(|log| fs::read_to_string(log.unwrap().path()).unwrap());
    let lines = texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
    lines.filter(|line| line.starts_with("panic: ")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vault_whose_disk_is_full_is_down_for_callers_and_continues_by_itself() {
    let stage = Stage::prepare(Cluster::shared().await.unwrap(), &Seal::Shamir).unwrap();
    let disk = SmallDisk::mount(&stage.bao.storage(), 24);
    let mut vault = guard(&stage).await;
    let platform = Platform::on(stage, &[]).await.unwrap();
    let before = facts(&platform.stage, &platform.controller).await;
    let file = platform.controller.disk.read(Note::Key).unwrap();
    ask(&platform).await.unwrap();

    disk.fill(0);
    // The controller's login is stored.
    let round = timeout(Duration::from_secs(5), platform.controller.round()).await;
    assert!(round.is_err(), "{round:?}");
    let refused = ask(&platform).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    assert_eq!(platform.controller.disk.read(Note::Key).unwrap(), file);

    // Neither is it helped by a restart, nor does it lose anything. It may have ended by itself.
    vault.shutdown().await;
    let _ = fs::remove_file(platform.stage.bao.socket());
    vault = guard(&platform.stage).await;
    let round = timeout(Duration::from_secs(5), platform.controller.round()).await;
    assert!(round.is_err(), "{round:?}");
    disk.empty();
    let known = BTreeSet::from(["panic: failed to store data".to_owned()]);
    assert!(panics(&platform.stage).is_subset(&known), "{:?}", panics(&platform.stage));
    if vault.try_join_next().is_some() {
        assert_eq!(panics(&platform.stage), known, "it ended for another reason");
        // As the kubelet does.
        let _ = fs::remove_file(platform.stage.bao.socket());
        vault = guard(&platform.stage).await;
    }
    platform.controller.round().await.unwrap();
    assert_eq!(facts(&platform.stage, &platform.controller).await, before);
    assert_eq!(platform.controller.disk.read(Note::Key).unwrap(), file);
    eventually("an answer", async || Ok(ask(&platform).await.is_ok())).await.unwrap();
    drop(vault);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_not_acknowledged_on_a_full_disk_and_are_stored_once_there_is_space() {
    const LARGE: usize = 256 * 1024;
    let (at, monitor) = (free_address().unwrap(), free_address().unwrap());
    let url = format!("tls://localhost:{}", at.port());
    let stage = Stage::prepare(Cluster::shared().await.unwrap(), &Seal::Shamir).unwrap();
    let storage = stage.path("nats-events");
    let disk = SmallDisk::mount(&storage, 64);
    let _vault = guard(&stage).await;
    let flags = ["--nats-url", &url, "--event-replicas", "1"];
    let mut platform = Platform::on(stage, &flags).await.unwrap();
    let nats = Nats::start_watched(&platform, at, monitor).await.unwrap();
    let bus = Arc::new(platform.broker("comp-a", &url).await.unwrap());
    let user = format!("{}.comp-a", platform.stage.cluster.apps);
    let subject = format!("evt.{user}.x");
    let events = Events::new(bus, user);
    platform.keep().unwrap();
    eventually("a stream", async || Ok(events.subscribe(&subject).await.is_ok())).await.unwrap();
    let mut reader = events.subscribe(&subject).await.unwrap();
    events.publish(&subject, b"before".to_vec(), "1").await.unwrap();
    let store = Store { monitor, storage, pid: nats.init.out.join("nats.pid") };
    assert_eq!(store.check().await.unwrap(), Found::Fine);

    disk.fill(0);
    let patience = Duration::from_secs(7);
    let large = async || timeout(patience, events.publish(&subject, vec![b'x'; LARGE], "2")).await;
    assert!(large().await.is_err(), "who stored it?");
    assert_eq!(store.check().await.unwrap(), Found::Full);
    disk.empty();
    // The server itself would refuse events forever.
    assert!(large().await.is_err(), "then nobody need end it");
    assert_eq!(store.check().await.unwrap(), Found::Ended);
    eventually("the server ends", async || Ok(!nats.is_running())).await.unwrap();

    // As a kubelet does.
    let _nats = Nats::start_watched(&platform, at, monitor).await.unwrap();
    events.publish(&subject, vec![b'x'; LARGE], "2").await.unwrap();
    events.publish(&subject, b"after".to_vec(), "3").await.unwrap();
    for length in [6, LARGE, 5] {
        let event = timeout(Duration::from_secs(20), reader.recv()).await.unwrap().unwrap();
        assert_eq!(event.payload.len(), length);
    }
    eventually("a healthy server", async || Ok(store.check().await? == Found::Fine)).await.unwrap();
}
