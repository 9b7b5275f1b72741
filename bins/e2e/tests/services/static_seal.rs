//! The static seal: the vault unseals itself, and its key can be replaced.

use std::path::PathBuf;

use tec_core::port::Entropy as _;
use tec_e2e::kube::eventually;
use tec_e2e::services::bao::Seal;
use tec_e2e::services::cluster::Cluster;
use tec_e2e::services::stage::Stage;
use tec_support::SystemEntropy;

use crate::vault::{assert_nowhere_in_plain, seal_status, stored_key};

fn key(stage: &Stage, name: &str) -> (String, PathBuf) {
    let path = stage.path(name);
    let mut key = [0; 32];
    SystemEntropy.fill(&mut key);
    std::fs::write(&path, key).unwrap();
    (name.to_owned(), path)
}

fn only(current: &(String, PathBuf)) -> Seal {
    Seal::Static { current: current.clone(), previous: None }
}

/// A power failure, and a start with this seal; it unseals without help.
async fn restart(stage: &mut Stage, seal: &Seal) {
    stage.bao.kill();
    stage.bao.configure(seal).unwrap();
    stage.bao.start(&stage.logs).await.unwrap();
    eventually("the vault opens by itself", async || {
        Ok(seal_status(stage).await["sealed"] == false)
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_static_seal_opens_by_itself_and_its_key_is_replaced() {
    let cluster = Cluster::shared().await.unwrap();
    let mut stage = Stage::prepare(cluster, &Seal::Shamir).unwrap();
    let (first, second) = (key(&stage, "seal-1"), key(&stage, "seal-2"));
    stage.bao.configure(&only(&first)).unwrap();
    stage.bao.start(&stage.logs).await.unwrap();
    let flags = ["--seal", "static"];
    let controller = stage.controller(&flags).await.unwrap();
    controller.round().await.unwrap();
    // The wrapped key on disk is the recovery key: without one, the seal could never be replaced.
    let recovery = stored_key(&stage, &controller).await;
    assert_nowhere_in_plain(&stage, &recovery);
    restart(&mut stage, &only(&first)).await;
    controller.round().await.unwrap();

    let both = Seal::Static { current: second.clone(), previous: Some(first) };
    restart(&mut stage, &both).await;
    controller.round().await.unwrap();
    restart(&mut stage, &only(&second)).await;
    stage.controller(&flags).await.unwrap().round().await.unwrap();
    assert_eq!(stored_key(&stage, &controller).await, recovery);
}
