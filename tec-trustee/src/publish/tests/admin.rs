//! The admin API: conformance, tokens, and every kind of answer.

use std::time::Instant;

use axum::Router;
use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;
use tec_core::port::{Entropy, KeyBroker, PolicySlot, PortErrorKind};
use tec_core::testing::key_broker;

use super::fake::{Fake, Fault};
use super::*;
use crate::kbs::{AdminAuth, Kbs, KbsConfig, MemoryBackend};
use crate::testing::{FakeVerifier, serve, serve_tls};
use crate::token::TokenSigner;

/// The embedded KBS on loopback, empty, open to the admin.
async fn embedded(clock: &Arc<ManualClock>) -> String {
    let signer = TokenSigner::random(&mut EntropyRng::new(&*entropy(2)));
    let config = KbsConfig::new(
        Arc::new(MemoryBackend::new()),
        Arc::new(FakeVerifier),
        signer,
        Arc::clone(clock) as _,
        entropy(3),
    );
    let auth = AdminAuth::from_pem(&admin_key(1).public_pem()).unwrap();
    serve(Kbs::new(config.with_admin(auth)).router()).await
}

#[tokio::test]
async fn the_admin_api_of_the_embedded_kbs_is_a_key_broker() {
    let clock = clock();
    key_broker(async || {
        let url = embedded(&clock).await;
        api(&url, admin_key(1), Arc::clone(&clock) as _)
    })
    .await;
}

#[tokio::test]
async fn a_trustee_is_a_key_broker() {
    let fake = Fake::new();
    key_broker(async || {
        fake.restore(super::fake::Store::default());
        api(&fake.serve().await, admin_key(1), fake.clock())
    })
    .await;
}

/// Publishes, withdraws, and starts again from the notes in the target.
async fn publishes_and_takes_back(broker: Arc<dyn KeyBroker>, entropy: Arc<dyn Entropy>) {
    let new = || BrokerPublisher::new(Arc::clone(&broker), Arc::clone(&entropy));
    let (wanted, publisher) = (desired([1, 2]), new());
    publisher.publish(&wanted).await.unwrap();
    revoke(&wanted, 1);
    let progress = publisher.publish(&wanted).await.unwrap();
    assert_eq!(progress, converged(2, &wanted));
    let progress = new().publish(&wanted).await.unwrap();
    assert_eq!(progress, converged(0, &wanted));

    let name = |number| crate::policy::ak_reference_name(&sample::public_key(number));
    let revoked = broker.reference_value(&name(1)).await.unwrap();
    assert!(revoked.is_none_or(|value| value.is_null()));
    assert!(broker.reference_value(&name(2)).await.unwrap().is_some());
    let emptied = broker.reference_value("tpm_pcr7").await.unwrap();
    assert_eq!(emptied, Some(json!([])));
}

#[tokio::test]
async fn publishing_to_the_embedded_kbs_converges_and_takes_back() {
    let clock = clock();
    let url = embedded(&clock).await;
    let api = api(&url, admin_key(1), clock);
    publishes_and_takes_back(Arc::new(api), entropy(4)).await;
}

/// Disk keys are sent only to servers that the pinned bundle vouches for.
#[tokio::test]
async fn the_admin_api_trusts_the_pinned_bundle_alone() {
    let fake = Fake::new();
    let (pem, url) = serve_tls("localhost", fake.router());
    let (other, _) = serve_tls("localhost", fake.router());
    for (bundle, is_right) in [(&pem, true), (&other, false)] {
        let endpoint = Endpoint::new(url.parse().unwrap(), bundle.clone());
        let (key, deadlines) = (admin_key(1), Deadlines::default());
        let api = AdminApi::new(&endpoint, key, fake.clock(), deadlines, &provider());
        let outcome = api.unwrap().put(&sample::secret_path(1), &sample::secret(1)).await;
        assert_eq!(outcome.is_ok(), is_right);
        assert_eq!(fake.taken().0.len(), usize::from(is_right));
    }
}

/// Any KBS that the environment names: TRUSTEE_URL, TRUSTEE_ADMIN_KEY (file), and if needed TRUSTEE_CA (file).
/// It should be a test instance: its policies are replaced by ones that deny everything.
#[tokio::test]
#[ignore = "needs trustee-url: set TRUSTEE_URL and TRUSTEE_ADMIN_KEY"]
async fn a_real_kbs_is_a_key_broker_and_can_be_published_to() {
    let variable = |name: &str| std::env::var_os(name).map(|text| text.into_string().unwrap());
    let (url, key) = (variable("TRUSTEE_URL").unwrap(), variable("TRUSTEE_ADMIN_KEY").unwrap());
    let ca = variable("TRUSTEE_CA").map(|file| std::fs::read_to_string(file).unwrap());
    let endpoint = Endpoint::new(url.parse().unwrap(), ca.unwrap_or_default());
    let pem = SecretBytes::new(std::fs::read(key).unwrap());
    let make = || {
        let key = AdminKey::from_pem(&pem).unwrap();
        let (clock, deadlines) = (Arc::new(SystemClock), Deadlines::default());
        AdminApi::dangerous_plain_http(&endpoint, key, clock, deadlines, &provider()).unwrap()
    };
    key_broker(async || make()).await;

    publishes_and_takes_back(Arc::new(make()), Arc::new(SystemEntropy)).await;
}

#[derive(Debug)]
struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> tec_core::time::Timestamp {
        let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
        tec_core::time::Timestamp::from_unix_seconds(now.try_into().unwrap())
    }
}

#[derive(Debug)]
struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        use std::io::Read as _;
        std::fs::File::open("/dev/urandom").unwrap().read_exact(bytes).unwrap();
    }
}

#[tokio::test]
async fn tokens_live_five_minutes_at_most_and_say_who_but_not_for_whom() {
    let seen = Arc::new(std::sync::Mutex::new(String::new()));
    let handler = {
        let seen = Arc::clone(&seen);
        async move |headers: axum::http::HeaderMap| {
            let header = headers.get("authorization").unwrap().to_str().unwrap();
            *seen.lock().unwrap() = header.to_owned();
            StatusCode::OK
        }
    };
    let url = serve(Router::new().fallback(handler)).await;
    let clock = clock();
    let now = clock.now().unix_seconds();
    let claims = async |key: AdminKey| -> Value {
        let api = api(&url, key, Arc::clone(&clock) as _);
        api.put(&sample::secret_path(1), &sample::secret(1)).await.unwrap();
        let header = seen.lock().unwrap().clone();
        let payload = header.strip_prefix("Bearer ").unwrap().split('.').nth(1).unwrap();
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).unwrap()).unwrap()
    };
    let plain = claims(admin_key(1)).await;
    assert_eq!(plain, json!({"role": "admin", "iat": now, "exp": now + 300}));
    let full = claims(admin_key(1).with_audience("kbs")).await;
    assert_eq!(full["aud"], json!("kbs"));
}

#[test]
fn an_admin_key_is_ed25519_and_does_not_show() {
    for text in ["", "garbage", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"] {
        assert!(AdminKey::from_pem(&SecretBytes::new(text.into())).is_err(), "{text}");
    }
    let again = AdminKey::from_pem(&admin_key(1).private_pem()).unwrap();
    assert_eq!(again.public_pem(), admin_key(1).public_pem());
    assert_eq!(format!("{:?}", admin_key(1)), "AdminKey { audience: None, .. }");
}

#[test]
fn disk_keys_do_not_travel_over_plain_http() {
    let endpoint = Endpoint::new("http://kbs-service:8080".parse().unwrap(), "");
    let deadlines = Deadlines::default();
    let refused = AdminApi::new(&endpoint, admin_key(1), clock(), deadlines, &provider());
    assert!(matches!(refused, Err(AdminSetupError::PlainHttp(_))));
    let clock = clock();
    let taken =
        AdminApi::dangerous_plain_http(&endpoint, admin_key(1), clock, deadlines, &provider());
    assert!(taken.is_ok());
}

#[tokio::test]
async fn a_token_of_another_key_or_time_is_denied_and_not_tried_again() {
    let fake = Fake::new();
    let url = fake.serve().await;
    let other = api(&url, admin_key(2), fake.clock());
    let late = Arc::new(ManualClock::new(sample::time(1000 - 600)));
    let late = api(&url, admin_key(1), late);
    for api in [other, late] {
        let publisher = BrokerPublisher::new(Arc::new(api), entropy(1));
        let error = publisher.publish(&desired([1])).await.unwrap_err();
        assert_eq!(error.kind(), PortErrorKind::Denied);
    }
    assert_eq!(fake.taken().0.len(), 2);
    assert_eq!(fake.store().resources.len(), 0);
}

#[tokio::test]
async fn a_refused_admin_is_denied_wherever_it_writes() {
    let fake = Fake::new();
    let api = api(&fake.serve().await, admin_key(9), fake.clock());
    let policy = api.set_policy(PolicySlot::Resource, &rego(1)).await.unwrap_err();
    let secret = api.put(&sample::secret_path(1), &sample::secret(1)).await.unwrap_err();
    for error in [policy, secret] {
        assert_eq!(error.kind(), PortErrorKind::Denied);
    }
}

#[tokio::test]
async fn answers_are_told_apart_by_their_type_and_not_by_their_status() {
    let fake = Fake::new();
    let api = api(&fake.serve().await, admin_key(1), fake.clock());
    for (fault, kind) in [
        (Fault::Refused("AdminAuthAccess"), PortErrorKind::Denied),
        (Fault::Refused("AdminAuth"), PortErrorKind::Denied),
        (Fault::Refused("AdminAuthInitialization"), PortErrorKind::Denied),
        (Fault::Refused("ParsePolicyError"), PortErrorKind::Invalid),
        (Fault::Refused("PluginNotFound"), PortErrorKind::Invalid),
        (Fault::Refused("PluginInternalError"), PortErrorKind::Unavailable),
        (Fault::Refused("Unheard"), PortErrorKind::Unavailable),
        (Fault::Page(200), PortErrorKind::Unavailable),
        (Fault::Page(302), PortErrorKind::Unavailable),
        (Fault::Page(401), PortErrorKind::Unavailable),
        (Fault::Page(404), PortErrorKind::Unavailable),
        (Fault::Page(413), PortErrorKind::Invalid),
        (Fault::Page(500), PortErrorKind::Unavailable),
        (Fault::NothingDone, PortErrorKind::Unavailable),
    ] {
        fake.plan([fault]);
        let error = api.set_policy(PolicySlot::Resource, &rego(1)).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{fault:?}");
    }
}

#[tokio::test]
async fn a_server_that_says_nothing_is_given_up() {
    let handler = async || std::future::pending::<StatusCode>().await;
    let url = serve(Router::new().fallback(handler)).await;
    let endpoint = Endpoint::new(url.parse().unwrap(), "");
    let deadlines = Deadlines::new(Duration::from_millis(200), Duration::from_millis(200));
    let api = AdminApi::new(&endpoint, admin_key(1), clock(), deadlines, &provider());
    let publisher = BrokerPublisher::new(Arc::new(api.unwrap()), entropy(1));
    let begin = Instant::now();
    let error = publisher.publish(&desired([1])).await.unwrap_err();
    assert_eq!(error.kind(), PortErrorKind::Unavailable);
    assert!(begin.elapsed() < Duration::from_secs(20));
}

#[tokio::test]
async fn a_secret_is_gone_even_where_nothing_can_be_deleted() {
    let fake = Fake::new();
    let api = api(&fake.serve().await, admin_key(1), fake.clock());
    let path = sample::secret_path(1);
    let refused = Fault::Refused("PluginInternalError");
    // The first DELETE is refused as if the storage had failed, or every one is.
    for faults in [&[refused][..], &[refused, Fault::None, refused]] {
        api.put(&path, &sample::secret(1)).await.unwrap();
        fake.plan(faults.iter().copied());
        api.remove(&path).await.unwrap();
        let left = fake.store().resources.get(path.as_str()).cloned();
        assert_eq!(left, (faults.len() > 1).then(|| b"{}".to_vec()));
    }
}

/// A server whose storage loses all but one of several concurrent writes.
#[tokio::test]
async fn writes_into_one_namespace_follow_one_another() {
    let busy = Arc::new(std::sync::Mutex::new((0, 0)));
    let handler = {
        let busy = Arc::clone(&busy);
        async move || {
            {
                let mut busy = busy.lock().unwrap();
                busy.0 += 1;
                busy.1 = busy.1.max(busy.0);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
            busy.lock().unwrap().0 -= 1;
            StatusCode::OK
        }
    };
    let url = serve(Router::new().fallback(handler)).await;
    let api = api(&url, admin_key(1), clock());
    let secret = sample::secret(1);
    let paths: Vec<_> = (1..=8).map(sample::secret_path).collect();
    let puts = paths.iter().map(|path| api.put(path, &secret));
    for put in futures::future::join_all(puts).await {
        put.unwrap();
    }
    assert_eq!(busy.lock().unwrap().1, 1);
}
