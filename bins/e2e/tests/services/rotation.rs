//! Rotation of what no caller holds: the key that wraps the vault's key, and the authorities.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use services::bootstrap::controller::Controller;
use tec_e2e::kube::eventually;
use tec_e2e::services::later::Later;
use tec_e2e::services::nats::Nats;
use tec_e2e::services::platform::Platform;
use tec_e2e::services::rotation;
use tec_e2e::services::rotation::Load;
use tec_e2e::services::stage::Stage;
use tec_services::shell::Note;
use tec_services::vault::{Request, Stage as Replaced};

use crate::kills::set_up;
use crate::vault::{assert_nowhere_in_plain, seal_status, stored_key};

/// Requests a replacement, like an admin.
pub(crate) async fn request(stage: &Stage, what: &str) {
    let name = format!("trusted-execution-clusters.io/{what}");
    let annotations = json!({"metadata": {"annotations": {name: "now"}}});
    let secrets = stage.secrets().unwrap();
    let patch = Patch::Merge(annotations);
    secrets.patch("vault-aes", &PatchParams::default(), &patch).await.unwrap();
}

async fn wrapping_key(stage: &Stage) -> Value {
    stage.secret("vault-aes").await.unwrap()["data"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wrapping_key_is_replaced_when_a_person_asks_and_opens_the_vault() {
    let mut stage = Stage::new().await.unwrap();
    let controller = stage.controller(&[]).await.unwrap();
    controller.round().await.unwrap();
    let (key, old) = (stored_key(&stage, &controller).await, wrapping_key(&stage).await);
    let file = controller.disk.read(Note::Key).unwrap().unwrap();
    controller.round().await.unwrap();
    assert_eq!(wrapping_key(&stage).await, old, "nobody asked");

    request(&stage, "rotate-wrapping-key").await;
    controller.round().await.unwrap();
    let new = wrapping_key(&stage).await;
    assert!(new["key"] != old["key"] && new["key-id"] != old["key-id"]);
    assert_eq!(new.as_object().unwrap().len(), 2, "the old key is still there");
    assert_ne!(controller.disk.read(Note::Key).unwrap().unwrap(), file);

    // The vault's own key is unchanged, and a new process unseals the vault with it.
    assert_eq!(stored_key(&stage, &controller).await, key);
    assert_nowhere_in_plain(&stage, &key);
    stage.bao.kill();
    stage.bao.start(&stage.logs).await.unwrap();
    stage.controller(&[]).await.unwrap().round().await.unwrap();
    assert_eq!(seal_status(&stage).await["sealed"], false);
    assert_eq!(wrapping_key(&stage).await, new, "it was asked for once");
}

/// The certificates in a PEM text, in any order.
fn certificates(pem: &str) -> Vec<String> {
    let end = "-----END CERTIFICATE-----";
    let all = pem.split(end).map(str::trim).filter(|one| !one.is_empty());
    let mut all: Vec<String> = all.map(str::to_owned).collect();
    all.sort();
    all
}

/// Mounts of the pods follow what is published, as with a kubelet.
async fn kubelet(stage: &Stage) {
    loop {
        stage.sync_mounts().await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_message_is_lost_while_root_and_intermediate_authority_are_replaced() {
    let life = Duration::from_secs(12);
    // Twice the overlap, which is two lifetimes here, and the rounds in between.
    let load = Load { components: 4, each: Duration::from_millis(20), lasts: life * 8 };
    let seconds = life.as_secs().to_string();
    let flags = ["--user-seconds", &seconds, "--certificate-seconds", &seconds];
    let mut platform = Platform::new(&flags).await.unwrap();
    platform.keep().unwrap();
    let nats = Nats::start(&platform, "nats-server").await.unwrap();
    let stage = &platform.stage;
    let old = certificates(&stage.authorities().await.unwrap());
    request(stage, "rotate-authorities").await;
    let outcome = tokio::select! {
        outcome = rotation::run(&platform, &nats, load) => outcome.unwrap(),
        () = kubelet(stage) => unreachable!("a kubelet runs forever"),
    };
    println!("{outcome}");
    assert_eq!((outcome.lost, outcome.doubled, outcome.refused), (0, 0, 0));
    assert!(outcome.renewals >= 6 * 4 && outcome.certificates >= 6, "{outcome}");

    let new = certificates(&stage.authorities().await.unwrap());
    assert!(new.len() == 2 && new.iter().all(|one| !old.contains(one)), "{new:?}");
    // The server has a certificate of the new authority, and trusts no other one.
    let read = |name: &str| std::fs::read_to_string(nats.init.out.join(name)).unwrap();
    assert_eq!(certificates(&read("ca.crt")), new);
    let chain = certificates(&read("tls.crt"));
    assert!(new.iter().all(|one| chain.contains(one)), "{chain:?}");
}

/// Whether the vault has a root authority with this name.
async fn has_root(controller: &Controller, name: &str) -> bool {
    let path = format!("kubefox/pki-root/issuer/{name}");
    let token = controller.standing.token().unwrap();
    let answer = controller.vault.call(&Request::get(path).by(&token)).await.unwrap();
    answer.status == 200
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_dies_again_and_again_replaces_the_authorities_once() {
    let stage = Stage::new().await.unwrap();
    let controller = stage.controller(&["--certificate-seconds", "2"]).await.unwrap();
    controller.round().await.unwrap();
    let old = certificates(&stage.authorities().await.unwrap());
    request(&stage, "rotate-authorities").await;
    let mut steps = 1;
    // A pass that also begins a stage is longer than one that finds everything in place.
    while steps < 200 {
        set_up(&controller, steps).await;
        let now = certificates(&stage.authorities().await.unwrap());
        assert!(now.len() == 2 || old.iter().all(|one| now.contains(one)), "{now:?}");
        steps += 3;
    }
    eventually("the authorities are replaced", async || {
        Ok(controller.round().await?.stage == Replaced::Stable)
    })
    .await
    .unwrap();
    let new = certificates(&stage.authorities().await.unwrap());
    assert!(new.len() == 2 && new.iter().all(|one| !old.contains(one)), "{new:?}");
    assert!(has_root(&controller, "tec-root-2").await);
    assert!(!has_root(&controller, "tec-root-3").await, "it was asked for once");
}

#[tokio::test(flavor = "multi_thread")]
async fn authorities_are_replaced_a_year_before_the_first_of_them_expires() {
    const DAY: i64 = 24 * 60 * 60;
    let stage = Stage::new().await.unwrap();
    let clock = Arc::new(Later::default());
    let mut controller = stage.controller(&[]).await.unwrap();
    controller.clock = Arc::<Later>::clone(&clock);
    controller.round().await.unwrap();
    let old = certificates(&stage.authorities().await.unwrap());
    let mut platform = Platform::of(stage, controller).await.unwrap();
    platform.keep().unwrap();
    let stage = &platform.stage;
    let published = async || anyhow::Ok(certificates(&stage.authorities().await?));

    // The intermediate authority is valid for five years.
    clock.set(4 * 365 * DAY - DAY);
    platform.controller.round().await.unwrap();
    assert_eq!(published().await.unwrap(), old);
    clock.set(4 * 365 * DAY + DAY);
    eventually("others are published", async || Ok(published().await?.len() == 4)).await.unwrap();
    eventually("the old ones are gone", async || {
        clock.add(DAY);
        let now = published().await?;
        Ok(old.iter().all(|one| !now.contains(one)))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_for_components_follows_and_that_of_another_platform_does_not() {
    let stage = Stage::new().await.unwrap();
    let controller = stage.controller(&[]).await.unwrap();
    controller.round().await.unwrap();
    let admin = stage.cluster.plane.admin().unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(admin, &stage.cluster.apps);
    let name = "services-bootstrap-ca";
    let copy = |pem: &str| -> ConfigMap {
        let map = json!({"metadata": {"name": name}, "data": {"ca.crt": pem}});
        serde_json::from_value(map).unwrap()
    };
    let copied = async || maps.get(name).await.unwrap().data.unwrap().remove("ca.crt").unwrap();
    let old = stage.authorities().await.unwrap();
    // A shell removes the last line break.
    maps.create(&PostParams::default(), &copy(old.trim_end())).await.unwrap();

    request(&stage, "rotate-authorities").await;
    assert_eq!(controller.round().await.unwrap().stage, Replaced::Published);
    let both = stage.authorities().await.unwrap();
    assert_eq!(certificates(&both).len(), 4);
    assert_eq!(copied().await, both);

    let foreign = copy("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let patch = Patch::Merge(&foreign);
    maps.patch(name, &PatchParams::default(), &patch).await.unwrap();
    controller.round().await.unwrap();
    assert_eq!(Some(copied().await), foreign.data.unwrap().remove("ca.crt"));
}
