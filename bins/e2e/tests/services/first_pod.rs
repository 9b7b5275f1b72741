//! Only the first pod initializes, and only if that was never done.

use std::time::Duration;

use tec_e2e::services::stage::Stage;
use tec_services::Fatal;
use tec_services::shell::Note;
use tec_services::vault::Ordinal;

use crate::vault::{fatal, seal_status};

#[tokio::test(flavor = "multi_thread")]
async fn a_second_pod_with_empty_storage_initializes_nothing() {
    let stage = Stage::new().await.unwrap();
    let controller = stage.controller(&["--pod", "vault-1"]).await.unwrap();
    assert_eq!(controller.ordinal, Ordinal::Follower);
    // It waits for the first pod, for minutes.
    let waited = tokio::time::timeout(Duration::from_secs(3), controller.round()).await;
    assert!(waited.is_err(), "it did not wait: {waited:?}");
    assert_eq!(seal_status(&stage).await["initialized"], false);
    let secret = stage.secrets().unwrap().get_opt("vault-aes").await.unwrap();
    assert!(secret.is_none(), "it made a wrapping key");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_pod_with_a_new_volume_initializes_nothing() {
    let mut stage = Stage::new().await.unwrap();
    stage.controller(&[]).await.unwrap().round().await.unwrap();
    stage.bao.kill();
    stage.bao.wipe().unwrap();
    std::fs::remove_dir_all(stage.path("volume")).unwrap();
    std::fs::create_dir(stage.path("volume")).unwrap();
    stage.bao.start(&stage.logs).await.unwrap();
    let controller = stage.controller(&[]).await.unwrap();
    let error = controller.round().await.unwrap_err();
    assert_eq!(fatal(&error), Some(Fatal::StorageLost));
    assert_eq!(seal_status(&stage).await["initialized"], false);
    assert_eq!(controller.disk.read(Note::Key).unwrap(), None);
}
