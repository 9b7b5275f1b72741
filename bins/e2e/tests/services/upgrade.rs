//! OpenBao of the previous minor version, replaced by the current one on the same storage.

use std::io::Write as _;
use std::path::PathBuf;

use serde_json::Value;
use tec_e2e::packages::tool;
use tec_e2e::services::bao::Seal;
use tec_e2e::services::cluster::Cluster;
use tec_e2e::services::nats::Nats;
use tec_e2e::services::platform::Platform;
use tec_e2e::services::stage::Stage;

use crate::backup::{back_up, facts, lose_volume, restore};
use crate::kills::guard;
use crate::vault::{root_tokens, seal_status};

/// The program of the previous minor version, if there is one.
fn previous() -> Option<PathBuf> {
    let named = std::env::var_os("TEC_OLD_BAO").map(PathBuf::from);
    let program = named.or_else(|| tool("old-bao/bao").ok());
    if program.is_none() {
        let why = "NOT RUN: no older OpenBao; run `cargo xtask tools --old-bao` or set TEC_OLD_BAO";
        // The output of a test that passes is hidden if it is printed.
        let mut aloud = std::io::stderr();
        writeln!(aloud, "{why}").unwrap();
    }
    program
}

/// Major and minor version of the running vault.
async fn version(stage: &Stage) -> String {
    let status: Value = seal_status(stage).await;
    let version = status["version"].as_str().unwrap();
    let mut parts = version.split('.');
    let minor = [parts.next().unwrap(), parts.next().unwrap()].join(".");
    println!("OpenBao {version}");
    minor
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_minor_version_of_the_vault_continues_with_the_storage_of_the_previous_one() {
    let Some(program) = previous() else { return };
    let mut stage = Stage::prepare(Cluster::shared().await.unwrap(), &Seal::Shamir).unwrap();
    stage.bao.run_program(Some(program));
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
async fn a_snapshot_of_the_previous_minor_version_is_restored_into_the_current_one() {
    let Some(program) = previous() else { return };
    let mut stage = Stage::prepare(Cluster::shared().await.unwrap(), &Seal::Shamir).unwrap();
    let directory = stage.path("snapshots");
    std::fs::create_dir(&directory).unwrap();
    let directory = directory.display().to_string();
    stage.bao.run_program(Some(program));
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
