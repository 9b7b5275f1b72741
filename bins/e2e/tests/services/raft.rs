//! Three pods of one vault: the others join the first, unseal with a key fetched from it, and stay when it is
//! gone.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::Value;
use services::bootstrap::controller::Controller;
use tec_core::secret::SecretBytes;
use tec_e2e::kube::eventually;
use tec_e2e::services::follower::Follower;
use tec_e2e::services::platform::Platform;
use tec_e2e::services::stage::Stage;
use tec_services::caller::Role;
use tec_services::shell::{Note, Vault};
use tec_services::vault::{Request, call};

use crate::vault::{assert_nowhere_in_plain, stored_key, voters};

/// Status of the vault's health: 200 for the leader, 429 for the others, if they are open.
pub(crate) async fn health(vault: &Vault) -> u16 {
    let request = Request::get("sys/health");
    vault.call(&request).await.map_or(0, |answer| answer.status)
}

/// A component's login to this vault, as performed by its controller.
async fn logs_in(platform: &Platform, vault: &Vault) -> anyhow::Result<bool> {
    let account = platform.stage.cluster.component("comp-a").await?;
    let token = platform.stage.cluster.token(&account).await?;
    let request = call::log_in(Role::Component, &SecretBytes::new(token.into_bytes()));
    Ok(call::logged_in(&vault.call(&request).await?).is_some())
}

/// The first pod, and two that joined it, with their controllers.
pub(crate) async fn three() -> (Platform, [Follower; 2], [Controller; 2]) {
    three_on(Stage::new().await.unwrap(), &[]).await
}

/// Like `three`, with the vault of this stage, and these flags of the first controller.
pub(crate) async fn three_on(
    stage: Stage,
    flags: &[&str],
) -> (Platform, [Follower; 2], [Controller; 2]) {
    // No peer is there yet, which does not make the first pod wait.
    let flags = [&["--peers", "127.0.0.1:1"], flags].concat();
    let platform = Platform::on(stage, &flags).await.unwrap();
    let stage = &platform.stage;
    let mut pods = Vec::new();
    for number in [1, 2] {
        let pod = Follower::start(stage, number, &[&stage.bao]).await.unwrap();
        let peers = [SocketAddr::from(([127, 0, 0, 1], 1)), platform.address];
        let controller = pod.controller(stage, &peers).await.unwrap();
        controller.round().await.unwrap();
        pods.push((pod, controller));
    }
    let key = stored_key(stage, &platform.controller).await;
    // A new member has a vote after being healthy for ten seconds (OpenBao's autopilot).
    eventually("three votes", async || Ok(voters(stage, &key).await == 3)).await.unwrap();
    let (pods, controllers): (Vec<_>, Vec<_>) = pods.into_iter().unzip();
    (platform, pods.try_into().unwrap(), controllers.try_into().ok().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_open_with_a_key_from_their_peer_and_stay_when_the_first_pod_dies() {
    let (mut platform, mut pods, controllers) = three().await;
    let key = stored_key(&platform.stage, &platform.controller).await;
    for (pod, controller) in pods.iter().zip(&controllers) {
        assert_eq!(health(&pod.vault()).await, 429, "{} does not stand by", pod.pod);
        let file = std::fs::read(pod.volume.join("unseal.v1.json")).unwrap();
        assert_eq!(Some(file), controller.disk.read(Note::Key).unwrap());
        assert_eq!(stored_key(&platform.stage, controller).await, key);
        // What only the leader can do is forwarded to it.
        assert!(logs_in(&platform, &pod.vault()).await.unwrap());
    }
    assert_nowhere_in_plain(&platform.stage, &key);

    platform.stage.bao.kill();
    let [one, two] = &pods;
    eventually("another leader", async || {
        Ok(health(&one.vault()).await == 200 || health(&two.vault()).await == 200)
    })
    .await
    .unwrap();
    for (pod, controller) in pods.iter().zip(&controllers) {
        controller.round().await.unwrap();
        assert!(logs_in(&platform, &pod.vault()).await.unwrap());
    }
    // Its key is on its own disk by now, so it need not ask.
    let logs = &platform.stage.logs;
    let [one, _] = &mut pods;
    one.bao.kill();
    one.bao.start(logs).await.unwrap();
    let nobody = [([127, 0, 0, 1], 1).into()];
    let alone = one.controller(&platform.stage, &nobody).await.unwrap();
    alone.round().await.unwrap();
    assert!([200, 429].contains(&health(&one.vault()).await));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_pod_that_lost_its_volume_joins_the_others_and_initializes_nothing() {
    let (mut platform, pods, controllers) = three().await;
    let [one, two] = &pods;
    let [controller, _] = controllers;
    let key = stored_key(&platform.stage, &platform.controller).await;
    let peer = Platform::serve(&controller).await.unwrap();

    let stage = &mut platform.stage;
    stage.bao.kill();
    stage.bao.wipe().unwrap();
    std::fs::remove_dir_all(stage.path("volume")).unwrap();
    std::fs::create_dir(stage.path("volume")).unwrap();
    eventually("another leader", async || {
        Ok(health(&one.vault()).await == 200 || health(&two.vault()).await == 200)
    })
    .await
    .unwrap();
    stage.bao.join(&[&one.bao, &two.bao]);
    stage.bao.configure(&tec_e2e::services::bao::Seal::Shamir).unwrap();
    stage.bao.start(&stage.logs).await.unwrap();
    let address = peer.address.to_string();
    let controller = stage.controller(&["--peers", &address]).await.unwrap();
    controller.round().await.unwrap();
    assert_eq!(stored_key(stage, &controller).await, key);
    assert!([200, 429].contains(&health(&stage.bao.vault()).await));
    // The same storage: it was not initialized a second time.
    let leader = async |vault: &Vault| {
        let answer = vault.call(&Request::get("sys/leader")).await.unwrap();
        answer.json::<Value>().unwrap()["leader_address"].clone()
    };
    assert_eq!(leader(&stage.bao.vault()).await, leader(&one.vault()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vault_that_restarts_alone_is_opened_by_the_controller_that_kept_running() {
    let mut platform = Platform::new(&[]).await.unwrap();
    platform.keep().unwrap();
    // Until its first round is over, which takes less than a second.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let stage = &mut platform.stage;
    stage.bao.kill();
    stage.bao.start(&stage.logs).await.unwrap();
    let vault = stage.bao.vault();
    // The next round is due in five minutes.
    eventually("it is open", async || Ok(health(&vault).await == 200)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn controllers_with_other_flags_work_side_by_side() {
    let (platform, [one, two], _) = three().await;
    let (stage, peers) = (&platform.stage, [platform.address]);
    let lasts = async |pod: &Follower, seconds: &str| {
        pod.controller_with(stage, &peers, &["--certificate-seconds", seconds]).await.unwrap()
    };
    let (hour, two_hours) = (lasts(&one, "3600").await, lasts(&two, "7200").await);
    // Each of them writes the same roles.
    let again = async |controller: &Controller| {
        for _ in 0..3 {
            controller.round().await.unwrap();
        }
    };
    tokio::join!(again(&platform.controller), again(&hour), again(&two_hours));

    // The last pod of a StatefulSet is updated first, and must be ready before the first one is.
    let viewers = format!("{}/grafana", stage.cluster.platform);
    let viewers = ["--viewers", &viewers];
    let updated = two.controller_with(stage, &peers, &viewers).await.unwrap();
    let begin = Instant::now();
    let round = updated.round().await.unwrap();
    assert_eq!(round.drift.as_deref(), Some("login role telemetry-viewer"));
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    let first = [["--peers", "127.0.0.1:1"], viewers];
    let first = stage.controller(first.as_flattened()).await.unwrap();
    assert_eq!(first.round().await.unwrap().drift, None);
    assert_eq!(updated.round().await.unwrap().drift, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wrapped_key_is_for_controllers_only() {
    let platform = Platform::new(&[]).await.unwrap();
    let stage = &platform.stage;
    for name in ["nats", "opensearch", "collector"] {
        let account = stage.cluster.account(name).unwrap();
        let token = stage.cluster.token(&account).await.unwrap();
        let request = tec_services::shell::client::WrappedKeyRequest {
            service_account_token: token.into_bytes(),
            request_id: "test".to_owned(),
        };
        let mut client = platform.client().await.unwrap();
        let refused = client.get_wrapped_key(request).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::PermissionDenied, "{name}");
    }
}
