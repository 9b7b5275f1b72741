//! Other keys that sign for NATS: those of the accounts while messages flow, and that of the operator, for which
//! servers restart.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;
use tec_core::service::vault::Request;
use tec_e2e::kube::eventually;
use tec_e2e::services::nats::Nats;
use tec_e2e::services::platform::Platform;
use tec_e2e::services::rotation;
use tec_e2e::services::rotation::Load;
use tec_support::testing::free_address;

use crate::nats::by_hand;
use crate::rotation::request;

fn claims(jwt: &str) -> Value {
    let part = jwt.split('.').nth(1).unwrap();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
}

/// The key that signs a component's JWT now.
async fn user_signer(platform: &Platform) -> String {
    let answer = by_hand(platform, "comp-new").await.answer;
    claims(&answer.user_jwt)["iss"].as_str().unwrap().to_owned()
}

/// What the server keeps of its accounts.
fn accounts(platform: &Platform) -> Vec<Value> {
    let files = std::fs::read_dir(platform.stage.path("nats-accounts")).unwrap();
    let files = files.map(|file| file.unwrap().path());
    let jwts = files.filter(|file| file.extension().is_some_and(|kind| kind == "jwt"));
    jwts.map(|file| claims(&std::fs::read_to_string(file).unwrap())).collect()
}

fn url(listen: SocketAddr) -> String {
    format!("tls://localhost:{}", listen.port())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_message_is_lost_while_the_keys_that_sign_users_are_replaced() {
    let life = Duration::from_secs(12);
    // Twice the overlap, which is two lifetimes here, and the rounds in between.
    let load = Load { components: 4, each: Duration::from_millis(20), lasts: life * 8 };
    let (seconds, listen) = (life.as_secs().to_string(), free_address().unwrap());
    let url = url(listen);
    let flags = ["--user-seconds", &seconds, "--certificate-seconds", &seconds, "--nats-url", &url];
    let mut platform = Platform::new(&flags).await.unwrap();
    let nats = Nats::start_at(&platform, "nats-server", listen).await.unwrap();
    platform.keep().unwrap();
    let old = user_signer(&platform).await;
    request(&platform.stage, "rotate-nats-account-keys").await;
    let outcome = rotation::run(&platform, &nats, load).await.unwrap();
    println!("{outcome}");
    assert_eq!((outcome.lost, outcome.doubled, outcome.refused), (0, 0, 0));
    assert!(outcome.renewals >= 6 * 4, "{outcome}");

    let new = user_signer(&platform).await;
    assert_ne!(new, old);
    let kept = accounts(&platform);
    assert_eq!(kept.len(), 2, "{kept:?}");
    let known: Vec<String> =
        kept.iter().map(|one| one["nats"]["signing_keys"].to_string()).collect();
    assert!(known.iter().any(|keys| keys.contains(&new)), "{known:?}");
    assert!(!known.iter().any(|keys| keys.contains(&old)), "the old key can still sign");
}

/// The generation that signs, and the stage of its replacement.
async fn record(platform: &Platform) -> (u64, String) {
    let token = platform.controller.standing.token().unwrap();
    let request = Request::get("kubefox/kv-systems/data/nats-operator-keys").by(&token);
    let answer = platform.controller.vault.call(&request).await.unwrap();
    let Ok(answer) = answer.data::<Value>() else {
        return (1, "stable".to_owned());
    };
    let record = &answer["data"];
    (record["signs"].as_u64().unwrap(), record["stage"].as_str().unwrap().to_owned())
}

/// A round, and what follows it while the controller rests.
async fn turn(platform: &Platform) -> (u64, String) {
    let round = platform.controller.round().await.unwrap();
    platform.controller.accounts.succeed(&round.authorities).await.unwrap();
    record(platform).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operators_key_is_replaced_once_the_server_was_restarted() {
    let listen = free_address().unwrap();
    let platform =
        Platform::new(&["--user-seconds", "3", "--nats-url", &url(listen)]).await.unwrap();
    let nats = Nats::start_at(&platform, "nats-server", listen).await.unwrap();
    assert_eq!(turn(&platform).await, (1, "stable".to_owned()));
    let issuers = |accounts: Vec<Value>| -> BTreeSet<String> {
        accounts.iter().map(|one| one["iss"].to_string()).collect()
    };
    let old = issuers(accounts(&platform));

    request(&platform.stage, "rotate-nats-operator-key").await;
    assert_eq!(turn(&platform).await, (1, "published".to_owned()));
    let overlap = tokio::time::Instant::now() + Duration::from_secs(7);
    eventually("the overlap is over", async || Ok(tokio::time::Instant::now() > overlap))
        .await
        .unwrap();
    assert_eq!(turn(&platform).await, (1, "published".to_owned()), "the server does not trust it");

    // As the pod does: its init container runs again.
    drop(nats);
    let nats = Nats::start_at(&platform, "nats-server", listen).await.unwrap();
    assert_eq!(turn(&platform).await, (2, "switched".to_owned()));
    let new = issuers(accounts(&platform));
    assert!(new.len() == 1 && new.is_disjoint(&old), "{new:?}");
    eventually("the old key is gone", async || {
        Ok(turn(&platform).await == (2, "stable".to_owned()))
    })
    .await
    .unwrap();
    by_hand(&platform, "comp-a").await.connect(&nats, |nonce| nonce).await.unwrap();

    // The next start trusts the new key only.
    drop(nats);
    let nats = Nats::start_at(&platform, "nats-server", listen).await.unwrap();
    by_hand(&platform, "comp-b").await.connect(&nats, |nonce| nonce).await.unwrap();
    assert_eq!(issuers(accounts(&platform)), new);
}
