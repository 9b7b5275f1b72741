//! Rotation of a key that no caller holds: the key that wraps the vault's key.

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tec_e2e::services::stage::Stage;

use crate::vault::{assert_nowhere_in_plain, seal_status, stored_key};

async fn wrapping_key(stage: &Stage) -> Value {
    stage.secret("vault-aes").await.unwrap()["data"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wrapping_key_is_replaced_when_a_person_asks_and_opens_the_vault() {
    let mut stage = Stage::new().await.unwrap();
    let controller = stage.controller(&[]).await.unwrap();
    controller.round().await.unwrap();
    let (key, old) = (stored_key(&stage, &controller).await, wrapping_key(&stage).await);
    let file = controller.disk.read().unwrap().unwrap();
    controller.round().await.unwrap();
    assert_eq!(wrapping_key(&stage).await, old, "nobody asked");

    let asked = json!({"metadata": {"annotations": {
        "trusted-execution-clusters.io/rotate-wrapping-key": "now",
    }}});
    let secrets = stage.secrets().unwrap();
    let asked = Patch::Merge(asked);
    secrets.patch("vault-aes", &PatchParams::default(), &asked).await.unwrap();
    controller.round().await.unwrap();
    let new = wrapping_key(&stage).await;
    assert!(new["key"] != old["key"] && new["key-id"] != old["key-id"]);
    assert_eq!(new.as_object().unwrap().len(), 2, "the old key is still there");
    assert_ne!(controller.disk.read().unwrap().unwrap(), file);

    // The vault's own key is unchanged, and a new process unseals the vault with it.
    assert_eq!(stored_key(&stage, &controller).await, key);
    assert_nowhere_in_plain(&stage, &key);
    stage.bao.kill();
    stage.bao.start(&stage.logs).await.unwrap();
    stage.controller(&[]).await.unwrap().round().await.unwrap();
    assert_eq!(seal_status(&stage).await["sealed"], false);
    assert_eq!(wrapping_key(&stage).await, new, "it was asked for once");
}
