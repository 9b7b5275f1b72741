//! A restore into an empty vault of three pods: the first is restored, and the others join it.

use kube::api::PostParams;
use tec_e2e::kube::eventually;
use tec_e2e::services::bao::Seal;
use tec_e2e::services::platform::Platform;
use tokio::task::JoinSet;

use crate::backup::{back_up, facts, lose_objects, lose_volume, restore};
use crate::kills::guard;
use crate::raft::{health, three};
use crate::vault::{root_tokens, stored_key, voters};

#[tokio::test(flavor = "multi_thread")]
async fn three_empty_pods_are_open_after_a_restore_and_each_has_the_old_keys() {
    let (platform, mut pods, controllers) = three().await;
    let Platform { mut stage, .. } = platform;
    let directory = stage.path("snapshots");
    std::fs::create_dir(&directory).unwrap();
    let directory = directory.display().to_string();
    let flags = ["--peers", "127.0.0.1:1", "--snapshots", &directory];
    let first = stage.controller(&flags).await.unwrap();
    first.round().await.unwrap();
    let before = facts(&stage, &first).await;
    let backup = back_up(&stage, &first).await;
    drop((first, controllers));

    stage.bao.kill();
    lose_volume(&stage, JoinSet::new()).await;
    for pod in &mut pods {
        pod.lose_volume().unwrap();
    }
    lose_objects(&stage).await;
    let secrets = stage.secrets().unwrap();
    secrets.create(&PostParams::default(), &backup.secret).await.unwrap();
    // All pods start at the same time, and look for a leader while there is none.
    let [one, two] = &mut pods;
    stage.bao.join(&[&one.bao, &two.bao]);
    stage.bao.configure(&Seal::Shamir).unwrap();
    one.bao.start(&stage.logs).await.unwrap();
    two.bao.start(&stage.logs).await.unwrap();
    let _vault = guard(&stage).await;
    restore(&stage, &backup).await.unwrap();

    let platform = Platform::on(stage, &["--peers", "127.0.0.1:1"]).await.unwrap();
    let stage = &platform.stage;
    assert_eq!(facts(stage, &platform.controller).await, before);
    for pod in &pods {
        let controller = pod.controller(stage, &[platform.address]).await.unwrap();
        controller.round().await.unwrap();
        assert_eq!(health(&pod.vault()).await, 429, "{} does not stand by", pod.pod);
        assert_eq!(facts(stage, &controller).await, before, "through {}", pod.pod);
    }
    let key = stored_key(stage, &platform.controller).await;
    eventually("three votes", async || Ok(voters(stage, &key).await == 3)).await.unwrap();
    assert_eq!(root_tokens(stage, &key).await, 0);
}
