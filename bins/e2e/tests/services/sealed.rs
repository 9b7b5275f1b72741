//! The controller's behavior beyond setting up a vault: it leaves a vault sealed that an admin sealed, and
//! reports where admins look that it needs an admin.

use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::ListParams;
use services::bootstrap::controller::RoundError;
use tec_e2e::services::stage::Stage;
use tec_services::Fatal;
use tec_services::shell::Note;
use tec_support::serve::Shutdown;

use crate::vault::{fatal, seal, seal_status, stored_key};

async fn is_sealed(stage: &Stage) -> bool {
    seal_status(stage).await["sealed"] == true
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_person_sealed_stays_sealed_until_a_restart() {
    let mut stage = Stage::new().await.unwrap();
    let controller = stage.controller(&[]).await.unwrap();
    controller.round().await.unwrap();
    let key = stored_key(&stage, &controller).await;
    seal(&stage, &key).await;
    for _ in 0..2 {
        let left = controller.round().await.unwrap_err();
        assert!(matches!(left, RoundError::Sealed), "{left:?}");
        assert!(is_sealed(&stage).await, "it fought the person");
    }

    // Either the vault or this program restarts.
    stage.bao.kill();
    stage.bao.start(&stage.logs).await.unwrap();
    controller.round().await.unwrap();
    assert!(!is_sealed(&stage).await);
    seal(&stage, &key).await;
    stage.controller(&[]).await.unwrap().round().await.unwrap();
    assert!(!is_sealed(&stage).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn by_a_flag_the_vault_is_opened_whenever_it_is_sealed() {
    let stage = Stage::new().await.unwrap();
    let controller = stage.controller(&["--unseal", "always"]).await.unwrap();
    controller.round().await.unwrap();
    let key = stored_key(&stage, &controller).await;
    seal(&stage, &key).await;
    controller.round().await.unwrap();
    assert!(!is_sealed(&stage).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_that_needs_a_person_is_an_event_of_the_pod() {
    let stage = Stage::new().await.unwrap();
    let flags = ["--pod-uid", "11111111-2222-3333-4444-555555555555"];
    let controller = stage.controller(&flags).await.unwrap();
    controller.round().await.unwrap();
    controller.disk.remove(Note::Key).unwrap();
    let (shutdown, _signals) = Shutdown::on_signals().unwrap();
    let error = controller.keep(shutdown).await.unwrap_err();
    assert_eq!(fatal(&error), Some(Fatal::KeyFileMissing));

    let admin = stage.cluster.plane.admin().unwrap();
    let events: Api<Event> = Api::namespaced(admin, &stage.cluster.platform);
    // The lookup of `kubectl describe pod`.
    let of_pod = format!("involvedObject.name=vault-0,involvedObject.uid={}", flags[1]);
    let found = events.list(&ListParams::default().fields(&of_pod)).await;
    let found = found.unwrap().items;
    let [event] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    assert_eq!(event.reason.as_deref(), Some("TEC-V511"));
    let message = event.message.as_deref().unwrap();
    assert!(message.contains("not on disk"), "{message}");
}
