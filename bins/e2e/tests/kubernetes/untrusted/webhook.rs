//! What a receiver of messages sees.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use k8s_openapi::api::core::v1::Secret;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::ServerConfig;
use serde_json::{Value, json};
use sha2::Sha256;
use tec_e2e::kube::eventually;
use tec_support::serve;
use tec_support::serve::{Shutdown, Transport};
use tokio::task::JoinSet;

use super::{World, id};

const KEY: [u8; 32] = [7; 32];

/// The ID and the body of each message, and how many are still refused.
#[derive(Debug, Default)]
struct Seen {
    refuse: usize,
    refused: Vec<String>,
    taken: Vec<(String, Value)>,
}

struct Receiver {
    url: String,
    ca: String,
    seen: Arc<Mutex<Seen>>,
    _server: JoinSet<anyhow::Result<()>>,
}

impl Receiver {
    fn start(refuse: usize) -> Self {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        let key = signing_key.serialize_der().try_into().unwrap();
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .unwrap();
        let seen = Arc::new(Mutex::new(Seen { refuse, ..Seen::default() }));
        let router = Router::new().route("/hooks/tec", post(take)).with_state(Arc::clone(&seen));
        let listener = serve::bind(([127, 0, 0, 1], 0).into()).unwrap();
        let url = format!("https://{}/hooks/tec?from=test", listener.local_addr().unwrap());
        let (shutdown, signals) = Shutdown::on_signals().unwrap();
        let mut server = JoinSet::new();
        server.spawn(async move {
            let _signals = signals;
            serve::serve(listener, Transport::Tls(Arc::new(config)), router, shutdown).await
        });
        Self { url, ca: cert.pem(), seen, _server: server }
    }

    async fn took(&self, count: usize) -> Vec<(String, Value)> {
        let came = eventually(&format!("{count} messages"), async || {
            Ok(self.seen.lock().unwrap().taken.len() >= count)
        })
        .await;
        let seen = self.seen.lock().unwrap();
        assert!(came.is_ok(), "{seen:?}");
        seen.taken.clone()
    }
}

async fn take(State(seen): State<Arc<Mutex<Seen>>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let header = |name: &str| headers[name].to_str().unwrap().to_owned();
    let (id, at) = (header("webhook-id"), header("webhook-timestamp"));
    let mut mac = Hmac::<Sha256>::new_from_slice(&KEY).unwrap();
    mac.update(format!("{id}.{at}.").as_bytes());
    mac.update(&body);
    let signature = header("webhook-signature");
    let signature = STANDARD.decode(signature.strip_prefix("v1,").unwrap()).unwrap();
    mac.verify_slice(&signature).unwrap();
    let mut seen = seen.lock().unwrap();
    if seen.refuse > 0 {
        seen.refuse -= 1;
        seen.refused.push(id);
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    seen.taken.push((id, serde_json::from_slice(&body).unwrap()));
    StatusCode::NO_CONTENT
}

/// A policy with this receiver, and the Secret for it.
async fn world(receiver: &Receiver) -> World {
    let webhook = json!({"url": receiver.url, "secretName": "webhook"});
    let world = World::new(json!({"actions": ["Taint"], "webhook": webhook})).await;
    let key = format!("whsec_{}", STANDARD.encode(KEY));
    let secret = json!({
        "metadata": {"name": "webhook"},
        "stringData": {"key": key, "ca.crt": receiver.ca},
    });
    let secret: Secret = serde_json::from_value(secret).unwrap();
    world.bench.create(&secret).await.unwrap();
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_was_away_is_told_once_of_each_change() {
    let receiver = Receiver::start(1);
    let mut world = world(&receiver).await;
    world.pair(1).await;
    world.pair(2).await;
    world.attempt(1, 1, true).await;
    world.attempt(2, 2, false).await;
    world.has_marks(2, &["NoSchedule"]).await;
    let taken = receiver.took(1).await;
    let (first, message) = &taken[0];
    assert_eq!(message["type"], "machine.untrusted");
    let data = &message["data"];
    assert_eq!(data["machine"], id(2).to_string());
    assert_eq!((&data["node"], &data["actions"]), (&json!(world.name(2)), &json!(["Taint"])));
    assert!(data["reason"].as_str().unwrap().starts_with("TEC-A412"), "{data}");
    assert_eq!(receiver.seen.lock().unwrap().refused, [first.as_str()]);

    // Another replica, which finds nothing left to tell, and another refusal, which is no change.
    world.bench.kill().await;
    world.bench.start("two").unwrap();
    world.attempt(2, 3, false).await;
    world.attempt(2, 4, true).await;
    world.says(2, "Restored").await;
    let taken = receiver.took(2).await;
    let kinds: Vec<_> = taken.iter().map(|(_, message)| message["type"].clone()).collect();
    assert_eq!(kinds, ["machine.untrusted", "machine.trusted"]);
    assert_eq!(taken[1].1["data"]["reason"], Value::Null);
    world.bench.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_secret_the_actions_are_taken_and_the_message_waits() {
    let receiver = Receiver::start(0);
    let mut world = World::new(json!({
        "actions": ["Taint"],
        "webhook": {"url": receiver.url, "secretName": "missing"},
    }))
    .await;
    world.pair(1).await;
    world.attempt(1, 1, false).await;
    world.has_marks(1, &["NoSchedule"]).await;
    eventually("the metric says that a message waits", async || {
        Ok(world.bench.metrics().contains("{outcome=\"not_reported\"} 1\n"))
    })
    .await
    .unwrap();
    world.bench.stop().await.unwrap();
}
