//! Other keys that sign for NATS: those of the accounts while messages flow, and that of the operator, for which
//! servers restart.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;
use tec_e2e::kube::eventually;
use tec_e2e::services::nats::{Member, Nats};
use tec_e2e::services::platform::Platform;
use tec_e2e::services::rotation::Load;
use tec_e2e::services::{rotation, stored};
use tec_services::vault::Request;
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
    accounts_of(platform, "nats-accounts")
}

fn accounts_of(platform: &Platform, directory: &str) -> Vec<Value> {
    let files = std::fs::read_dir(platform.stage.path(directory)).unwrap();
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

/// Who signed these accounts.
fn issuers(accounts: &[Value]) -> BTreeSet<String> {
    accounts.iter().map(|one| one["iss"].to_string()).collect()
}

/// A round, and what follows it while the controller rests.
async fn turn(platform: &Platform) -> (u64, String) {
    let round = platform.controller.round().await.unwrap();
    platform.controller.accounts.succeed(&round.authorities).await.unwrap();
    record(platform).await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_event_is_lost_while_three_servers_restart_for_the_operators_key() {
    let members = [(); 3].map(|()| Member::new().unwrap());
    let url = members[0].url();
    let flags = ["--user-seconds", "10", "--nats-url", &url, "--event-replicas", "3"];
    let platform = Platform::new(&flags).await.unwrap();
    let start = async |number: usize| {
        let nats = Nats::start_member(&platform, &members, number).await.unwrap();
        // The next one restarts when this one has all events, like a pod that is not ready before.
        eventually("a healthy server", async || Ok(members[number].is_healthy().await))
            .await
            .unwrap();
        nats
    };
    let mut servers = Vec::new();
    for number in 0..3 {
        servers.push(Nats::start_member(&platform, &members, number).await.unwrap());
    }
    assert_eq!(turn(&platform).await, (1, "stable".to_owned()));
    let accounts = &platform.controller.accounts;
    let authorities = platform.stage.authorities().await.unwrap();
    eventually("a stream", async || Ok(accounts.ensure_events(&authorities).await.is_ok()))
        .await
        .unwrap();
    let old = issuers(&accounts_of(&platform, "nats-2/accounts"));
    let script = async {
        request(&platform.stage, "rotate-nats-operator-key").await;
        assert_eq!(turn(&platform).await, (1, "published".to_owned()));
        let overlap = tokio::time::Instant::now() + Duration::from_secs(21);
        tokio::time::sleep_until(overlap).await;
        // The highest number first, as a StatefulSet does.
        for number in [2, 1, 0] {
            assert_eq!(turn(&platform).await, (1, "published".to_owned()), "before {number}");
            drop(servers.remove(number));
            servers.insert(number, start(number).await);
        }
        assert_eq!(turn(&platform).await, (2, "switched".to_owned()));
        tokio::time::sleep(Duration::from_secs(21)).await;
        eventually("the old key is gone", async || {
            Ok(turn(&platform).await == (2, "stable".to_owned()))
        })
        .await
        .unwrap();
    };
    let outcome = Box::pin(stored::run(&platform, &members, script)).await.unwrap();
    println!("{outcome}");
    assert_eq!((outcome.lost, outcome.doubled), (0, 0));
    assert!(outcome.sent > 1000, "{outcome}");
    eventually("every server has the accounts that the new key signed", async || {
        let new: Vec<_> = (0..3)
            .map(|number| issuers(&accounts_of(&platform, &format!("nats-{number}/accounts"))))
            .collect();
        Ok(new.iter().all(|one| one.len() == 1 && one.is_disjoint(&old) && *one == new[0]))
    })
    .await
    .unwrap();
}
