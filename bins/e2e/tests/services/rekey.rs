//! Another key that opens the vault, while the controller dies and the vault restarts.

use serde_json::{Value, json};
use services::bootstrap::controller::Controller;
use tec_core::plan;
use tec_core::port::EntropyRng;
use tec_core::secret::SecretArray;
use tec_e2e::services::platform::Platform;
use tec_e2e::services::stage::Stage;
use tec_services::shell::{BringUpShell, Note};
use tec_services::vault::{Event, Rekey, Request};

use crate::kills::Dying;
use crate::raft::three;
use crate::rotation::request;
use crate::vault::{assert_nowhere_in_plain, root_tokens, seal_status, stored_key};

/// Whether a request is still there.
async fn is_requested(stage: &Stage) -> bool {
    let secret = stage.secret("vault-aes").await.unwrap();
    let annotations = &secret["metadata"]["annotations"];
    !annotations["trusted-execution-clusters.io/rotate-vault-key"].is_null()
}

/// The vault starts again, and a new process opens it.
async fn reopen(stage: &mut Stage) -> Controller {
    stage.bao.kill();
    stage.bao.start(&stage.logs).await.unwrap();
    let controller = stage.controller(&[]).await.unwrap();
    controller.round().await.unwrap();
    assert_eq!(seal_status(stage).await["sealed"], false);
    controller
}

/// Whether a sealed vault accepts this key.
async fn opens(stage: &Stage, key: &str) -> bool {
    let request = Request::post("sys/unseal", &json!({"key": key}));
    stage.bao.vault().call(&request).await.unwrap().status == 200
}

#[tokio::test(flavor = "multi_thread")]
async fn another_key_opens_the_vault_when_a_person_asks_and_the_old_one_does_not() {
    let mut stage = Stage::new().await.unwrap();
    let controller = stage.controller(&[]).await.unwrap();
    controller.round().await.unwrap();
    let old = stored_key(&stage, &controller).await;
    controller.round().await.unwrap();
    assert_eq!(stored_key(&stage, &controller).await, old, "nobody asked");

    request(&stage, "rotate-vault-key").await;
    controller.round().await.unwrap();
    assert!(!is_requested(&stage).await);
    let new = stored_key(&stage, &controller).await;
    assert_ne!(new, old);
    assert_eq!(root_tokens(&stage, &new).await, 0);
    for key in [&old, &new] {
        assert_nowhere_in_plain(&stage, key);
    }
    stage.bao.kill();
    stage.bao.start(&stage.logs).await.unwrap();
    assert!(!opens(&stage, &old).await, "the old key still opens the vault");
    assert_eq!(seal_status(&stage).await["sealed"], true);
    let controller = reopen(&mut stage).await;
    assert_eq!(stored_key(&stage, &controller).await, new, "it was asked for once");

    // Another wrapping key wraps whatever is the vault's key.
    request(&stage, "rotate-wrapping-key").await;
    controller.round().await.unwrap();
    let controller = reopen(&mut stage).await;
    assert_eq!(stored_key(&stage, &controller).await, new);
}

/// One process, which dies after `steps`. Returns what it did, and whether it finished.
async fn rekey(controller: &Controller, steps: usize) -> (Vec<String>, bool) {
    let seed = SecretArray::random(&mut EntropyRng::new(&*controller.entropy));
    let token = controller.standing.token().unwrap().duplicate("test");
    let mut plan = Rekey::new(controller.platform.clone(), token, seed);
    let (cluster, disk) = (controller.cluster.clone(), controller.disk.clone());
    let shell =
        BringUpShell::new(controller.vault.clone(), cluster, disk, controller.peers.clone());
    let mut dying = Dying::new(shell, steps);
    plan::run(&mut plan, Event::Start, &mut dying).await;
    let ended = dying.shell.end().is_some();
    (dying.steps, ended)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_at_each_step_leaves_a_key_that_opens_the_vault() {
    let mut stage = Stage::new().await.unwrap();
    let mut controller = stage.controller(&[]).await.unwrap();
    controller.round().await.unwrap();
    let mut keys = vec![stored_key(&stage, &controller).await];
    for steps in 1.. {
        request(&stage, "rotate-vault-key").await;
        let (did, ended) = rekey(&controller, steps).await;
        println!("{steps:>2} {}", did.last().unwrap());
        if ended {
            assert!(steps > 10, "{did:?}");
            break;
        }
        // The vault restarts at that moment, or only the controller does.
        controller = if steps % 2 == 0 {
            reopen(&mut stage).await
        } else {
            let next = stage.controller(&[]).await.unwrap();
            next.round().await.unwrap();
            next
        };
        assert!(!is_requested(&stage).await, "the next process did not end it");
        keys.push(stored_key(&stage, &controller).await);
    }
    let controller = reopen(&mut stage).await;
    let last = stored_key(&stage, &controller).await;
    assert_eq!(root_tokens(&stage, &last).await, 0);
    assert!(!keys.contains(&last));
    let all = keys.len();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), all, "a request led to no other key");
}

/// The plain content of a pod's file is not needed: pods with the same keys have the same file.
fn file(controller: &Controller) -> Option<Vec<u8>> {
    controller.disk.read(Note::Key).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn with_several_pods_the_new_key_is_in_use_only_when_all_have_it() {
    let (platform, mut pods, controllers) = three().await;
    let mut peers = Vec::new();
    for controller in &controllers {
        peers.push(Platform::serve(controller).await.unwrap());
    }
    let stage = &platform.stage;
    let addresses: Vec<String> = peers.iter().map(|peer| peer.address.to_string()).collect();
    let first = stage.controller(&["--peers", &addresses.join(",")]).await.unwrap();
    let old = stored_key(stage, &first).await;

    request(stage, "rotate-vault-key").await;
    for _ in 0..2 {
        first.round().await.unwrap();
        assert!(is_requested(stage).await, "the others do not have it");
        assert_eq!(stored_key(stage, &first).await, old);
        assert_ne!(file(&first), file(&controllers[0]));
    }
    for controller in &controllers {
        controller.round().await.unwrap();
        assert_eq!(file(controller), file(&first));
    }
    first.round().await.unwrap();
    assert!(!is_requested(stage).await);
    let new = stored_key(stage, &first).await;
    assert_ne!(new, old);

    // A pod that restarts before it learns that the old key is gone, and one that learns it first.
    let [one, two] = &mut pods;
    let [by_one, by_two] = &controllers;
    by_two.round().await.unwrap();
    assert_eq!(file(by_two), file(&first));
    for (pod, controller) in [(one, by_one), (two, by_two)] {
        pod.bao.kill();
        pod.bao.start(&stage.logs).await.unwrap();
        controller.round().await.unwrap();
        let status = pod.vault().call(&Request::get("sys/seal-status")).await.unwrap();
        assert_eq!(status.json::<Value>().unwrap()["sealed"], false);
        controller.round().await.unwrap();
        assert_eq!(file(controller), file(&first));
    }
}
