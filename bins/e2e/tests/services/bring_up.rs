//! A vault from nothing, on a Unix socket, with tokens of a real API server.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tec_e2e::services::stage::Stage;
use tec_services::Fatal;
use tec_services::shell::Note;

use crate::vault::{assert_nowhere_in_plain, fatal, root_tokens, seal_status, stored_key};

/// The authorities as seen by everyone.
async fn public_authorities(stage: &Stage) -> String {
    let admin = stage.cluster.plane.admin().unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(admin, &stage.cluster.platform);
    let map = maps.get("services-bootstrap-ca").await.unwrap();
    map.data.unwrap().remove("ca.crt").unwrap()
}

/// Overwrites the published authorities; the controller's next round restores them.
async fn spoil_public_authorities(stage: &Stage) {
    let admin = stage.cluster.plane.admin().unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(admin, &stage.cluster.platform);
    let spoilt = Patch::Merge(json!({"data": {"ca.crt": "spoilt"}}));
    let name = "services-bootstrap-ca";
    maps.patch(name, &PatchParams::default(), &spoilt).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vault_comes_up_from_nothing_and_again_after_a_power_cut() {
    let mut stage = Stage::new().await.unwrap();
    let controller = stage.controller(&[]).await.unwrap();
    assert!(controller.round().await.unwrap().next.as_secs() > 0);
    let published = stage.secret("services-bootstrap-tls").await.unwrap();
    let is_key_published = published["data"].get("tls.key").is_some();
    assert!(!is_key_published, "a key was published");
    assert_eq!(public_authorities(&stage).await, stage.authorities().await.unwrap());
    let key = stored_key(&stage, &controller).await;
    assert_nowhere_in_plain(&stage, &key);
    assert_eq!(root_tokens(&stage, &key).await, 0);

    // The second round finds everything in place, or restores it; after a power failure it unseals.
    spoil_public_authorities(&stage).await;
    controller.round().await.unwrap();
    assert_eq!(public_authorities(&stage).await, stage.authorities().await.unwrap());
    stage.bao.kill();
    stage.bao.start(&stage.logs).await.unwrap();
    assert_eq!(seal_status(&stage).await["sealed"], true);
    stage.controller(&[]).await.unwrap().round().await.unwrap();
    assert_eq!(seal_status(&stage).await["sealed"], false);
    assert_eq!(stored_key(&stage, &controller).await, key);
    assert_eq!(root_tokens(&stage, &key).await, 0);
    assert_nowhere_in_plain(&stage, &key);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_lost_is_named_and_never_made_anew() {
    let mut stage = Stage::new().await.unwrap();
    let controller = stage.controller(&[]).await.unwrap();
    controller.round().await.unwrap();
    let file = controller.disk.read(Note::Key).unwrap().unwrap();

    controller.disk.remove(Note::Key).unwrap();
    let error = controller.round().await.unwrap_err();
    assert_eq!(fatal(&error), Some(Fatal::KeyFileMissing));
    controller.disk.write(Note::Key, b"{}").unwrap();
    let error = controller.round().await.unwrap_err();
    assert_eq!(fatal(&error), Some(Fatal::DecryptFailed));
    controller.disk.write(Note::Key, &file).unwrap();
    controller.round().await.unwrap();

    let secrets = stage.secrets().unwrap();
    let mut secret = secrets.get("vault-aes").await.unwrap();
    secrets.delete("vault-aes", &DeleteParams::default()).await.unwrap();
    let error = controller.round().await.unwrap_err();
    assert_eq!(fatal(&error), Some(Fatal::AesSecretMissing));
    secret.metadata.resource_version = None;
    secrets.create(&PostParams::default(), &secret).await.unwrap();
    controller.round().await.unwrap();

    stage.bao.kill();
    stage.bao.wipe().unwrap();
    stage.bao.start(&stage.logs).await.unwrap();
    let error = controller.round().await.unwrap_err();
    assert_eq!(fatal(&error), Some(Fatal::StorageLost));
    let is_initialized = &seal_status(&stage).await["initialized"];
    assert_eq!(is_initialized, false, "a lost volume was initialized again");
}
