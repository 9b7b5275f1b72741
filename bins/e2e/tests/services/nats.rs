//! NATS with the files of its init container, and components that connect to it.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Auth, AuthError, Client, ConnectError, ConnectErrorKind, ConnectOptions};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;
use nkeys::KeyPair;
use services::broker::bus::Bus;
use services::broker::identity::Identity;
use tec_core::secret::SecretBytes;
use tec_e2e::kube::eventually;
use tec_e2e::services::later::Later;
use tec_e2e::services::nats::Nats;
use tec_e2e::services::platform::Platform;
use tec_services::shell::client::{
    ComponentBootstrapRequest, ComponentBootstrapResponse, SignNonceRequest,
};
use tec_support::SystemClock;
use tec_support::certificate::Certificate;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::Code;

const SOON: Duration = Duration::from_secs(20);

async fn speak_and_be_kept_apart(program: &str) {
    let platform = Platform::new(&[]).await.unwrap();
    let nats = Nats::start(&platform, program).await.unwrap();
    let listener = platform.broker("comp-b", &nats.url).await.unwrap();
    let apps = &platform.stage.cluster.apps;
    let mut events = listener.subscribe("evt.>").await.unwrap();

    let speaker = platform.broker("comp-a", &nats.url).await.unwrap();
    let own = format!("evt.{apps}.comp-a.x");
    speaker.publish(&own, b"hello".to_vec()).await.unwrap();
    let message = timeout(SOON, events.recv()).await.unwrap().unwrap();
    assert_eq!((message.subject.as_str(), &*message.payload), (own.as_str(), &b"hello"[..]));

    for (number, foreign) in
        [format!("evt.{apps}.comp-b.x"), "$SYS.REQ.CLAIMS.UPDATE".to_owned()].iter().enumerate()
    {
        speaker.publish(foreign, b"forged".to_vec()).await.unwrap();
        eventually("the server refuses it", async || {
            Ok(speaker.refused() == u64::try_from(number)? + 1)
        })
        .await
        .unwrap();
    }
    assert!(events.try_recv().is_err(), "a forged message came through");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_component_speaks_on_its_own_subjects_and_on_no_other() {
    speak_and_be_kept_apart("nats-server").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_on_the_older_server_of_debian() {
    speak_and_be_kept_apart("nats-server-debian").await;
}

/// A manually driven component, to do what a broker does not.
pub(crate) struct ByHand {
    user: KeyPair,
    pub(crate) answer: ComponentBootstrapResponse,
}

pub(crate) async fn by_hand(platform: &Platform, name: &str) -> ByHand {
    let user = KeyPair::new_user();
    let mut request = platform.request(name).await.unwrap();
    request.nats_user = user.public_key();
    let mut client = platform.client().await.unwrap();
    let answer = client.bootstrap_component(request).await.unwrap();
    let answer = answer.into_inner();
    ByHand { user, answer }
}

impl ByHand {
    /// Connects once, with a signature over what `choose` derives from the nonce.
    async fn connect(
        &self,
        nats: &Nats,
        choose: impl Fn(Vec<u8>) -> Vec<u8> + Send + Sync + 'static,
    ) -> Result<Client, ConnectError> {
        let tls = self.answer.tls.clone().unwrap();
        let certificate = Arc::new(Certificate::default());
        let key = SecretBytes::new(tls.private_key);
        certificate.replace(tls.certificate_chain.as_bytes(), &key).unwrap();
        let jwt = self.answer.user_jwt.clone();
        let user = KeyPair::from_seed(&self.user.seed().unwrap()).unwrap();
        let (user, choose) = (Arc::new(user), Arc::new(choose));
        ConnectOptions::with_auth_callback(move |nonce| {
            let (user, jwt, signed) = (Arc::clone(&user), jwt.clone(), choose(nonce));
            async move {
                let mut auth = Auth::new();
                auth.jwt = Some(jwt);
                auth.signature = Some(user.sign(&signed).map_err(AuthError::new)?);
                Ok(auth)
            }
        })
        .tls_client_config(certificate.client_config(tls.authorities.as_bytes()).unwrap())
        .require_tls(true)
        .connect(&nats.url)
        .await
    }
}

fn refusal(outcome: Result<Client, ConnectError>) -> ConnectErrorKind {
    outcome.map(|_| ()).unwrap_err().kind()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_nonce_another_key_and_an_expired_jwt_are_refused() {
    let platform = Platform::new(&["--user-seconds", "4"]).await.unwrap();
    let nats = Nats::start(&platform, "nats-server").await.unwrap();
    let mut component = by_hand(&platform, "comp-a").await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&seen);
    let good = component.connect(&nats, move |nonce| {
        kept.lock().unwrap().clone_from(&nonce);
        nonce
    });
    good.await.unwrap();

    let stale = seen.lock().unwrap().clone();
    let replayed = component.connect(&nats, move |_| stale.clone()).await;
    assert_eq!(refusal(replayed), ConnectErrorKind::AuthorizationViolation);

    let own = std::mem::replace(&mut component.user, KeyPair::new_user());
    let stolen = component.connect(&nats, |nonce| nonce).await;
    assert_eq!(refusal(stolen), ConnectErrorKind::AuthorizationViolation);
    component.user = own;

    let end = u64::try_from(component.answer.jwt_expires).unwrap();
    eventually("the JWT ends", async || Ok(std::time::UNIX_EPOCH.elapsed()?.as_secs() > end))
        .await
        .unwrap();
    let expired = component.connect(&nats, |nonce| nonce).await;
    assert_eq!(refusal(expired), ConnectErrorKind::AuthorizationViolation);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_revoked_is_cut_off_and_stays_out_and_others_stay_in() {
    let listen = tec_support::testing::free_address().unwrap();
    let url = format!("tls://localhost:{}", listen.port());
    let mut platform = Platform::new(&["--nats-url", &url]).await.unwrap();
    let nats = Nats::start_at(&platform, "nats-server", listen).await.unwrap();
    let revoked = by_hand(&platform, "comp-a").await;
    let other = by_hand(&platform, "comp-b").await;
    let cut = revoked.connect(&nats, |nonce| nonce).await.unwrap();
    let stays = other.connect(&nats, |nonce| nonce).await.unwrap();
    platform.keep().unwrap();

    let cluster = &platform.stage.cluster;
    let maps: Api<ConfigMap> = Api::namespaced(cluster.plane.admin().unwrap(), &cluster.platform);
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let line = serde_json::json!({
        "metadata": {"name": "nats-revocations"},
        "data": {revoked.user.public_key(): now.to_string()},
    });
    let line = serde_json::from_value(line).unwrap();
    maps.create(&PostParams::default(), &line).await.unwrap();
    eventually("the revoked user is cut off", async || {
        Ok(cut.connection_state() != State::Connected)
    })
    .await
    .unwrap();
    let again = revoked.connect(&nats, |nonce| nonce).await;
    assert_eq!(refusal(again), ConnectErrorKind::AuthorizationViolation);
    assert_eq!(stays.connection_state(), State::Connected);
    other.connect(&nats, |nonce| nonce).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_in_the_vault_signs_a_fresh_nonce_and_nothing_that_looks_like_a_jwt() {
    let platform = Platform::new(&[]).await.unwrap();
    let account = platform.stage.cluster.component("comp-a").await.unwrap();
    let token = platform.stage.cluster.token(&account).await.unwrap().into_bytes();
    let mut client = platform.client().await.unwrap();
    let request = ComponentBootstrapRequest {
        service_account_token: token.clone(),
        request_id: "test".to_owned(),
        nonce: "VkJmSAcW_DgK2-8".to_owned(),
        ..ComponentBootstrapRequest::default()
    };
    let answer = client.bootstrap_component(request).await.unwrap().into_inner();
    let user = KeyPair::from_public_key(&answer.user).unwrap();
    user.verify(b"VkJmSAcW_DgK2-8", &answer.signature).unwrap();
    let sign = |nonce: &str| SignNonceRequest {
        service_account_token: token.clone(),
        request_id: "test".to_owned(),
        nonce: nonce.to_owned(),
    };
    let signed = client.sign_nonce(sign("another_nonce-1")).await.unwrap();
    user.verify(b"another_nonce-1", &signed.into_inner().signature).unwrap();
    let refused = client.sign_nonce(sign("eyJ0eXAi.eyJqdGki")).await;
    assert_eq!(refused.map(|_| ()).unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_starts_again_has_another_key_and_its_server_takes_it() {
    let platform = Platform::new(&[]).await.unwrap();
    let nats = Nats::start(&platform, "nats-server").await.unwrap();
    let mut users = BTreeSet::new();
    for _ in 0..2 {
        let identity = platform.identity("comp-a").await.unwrap();
        users.insert(identity.user());
        Bus::connect(identity, nats.url.clone()).await.unwrap();
    }
    assert_eq!(users.len(), 2);
}

/// Forwards connections, except for the second one, which breaks immediately.
async fn second_breaks(to: SocketAddr) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut passed = JoinSet::new();
        for number in 0_u64.. {
            let (mut client, _) = listener.accept().await.unwrap();
            if number == 1 {
                continue;
            }
            let mut server = TcpStream::connect(to).await.unwrap();
            passed.spawn(async move { copy_bidirectional(&mut client, &mut server).await });
        }
    });
    (address, tasks)
}

/// Forwards connections; those that exist when it is asked stay open and pass nothing more.
async fn falls_silent(to: SocketAddr, silent: watch::Receiver<bool>) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut passed = JoinSet::new();
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut server = TcpStream::connect(to).await.unwrap();
            let mut silent = silent.clone();
            silent.mark_unchanged();
            passed.spawn(async move {
                let asked = async {
                    silent.changed().await.ok();
                };
                tokio::select! {
                    _ = copy_bidirectional(&mut client, &mut server) => {}
                    () = asked => {}
                }
                std::future::pending::<()>().await;
            });
        }
    });
    (address, tasks)
}

/// Forwards connections, and what clients send only after a while: servers learn late that one leaves.
async fn slow_to_servers(to: SocketAddr) -> (SocketAddr, JoinSet<()>) {
    const WHILE: Duration = Duration::from_millis(100);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut passed = JoinSet::new();
        loop {
            let (client, _) = listener.accept().await.unwrap();
            let (mut from_client, mut to_client) = client.into_split();
            let server = TcpStream::connect(to).await.unwrap();
            let (mut from_server, mut to_server) = server.into_split();
            passed.spawn(async move {
                tokio::io::copy(&mut from_server, &mut to_client).await.ok();
            });
            passed.spawn(async move {
                let mut bytes = [0; 4096];
                while let Ok(1..) = from_client.peek(&mut bytes).await {
                    tokio::time::sleep(WHILE).await;
                    let length = from_client.read(&mut bytes).await.unwrap_or_default();
                    if to_server.write_all(&bytes[..length]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, tasks)
}

/// Publishes numbers while a listener renews its connection, and returns how many there were and which arrived.
async fn sent_and_heard(program: &str) -> (u64, Vec<u64>) {
    let platform = Platform::new(&[]).await.unwrap();
    let listen = tec_support::testing::free_address().unwrap();
    let nats = Nats::start_at(&platform, program, listen).await.unwrap();
    let (address, _tasks) = slow_to_servers(listen).await;
    let url = format!("tls://localhost:{}", address.port());
    let listener = platform.broker("listener", &url).await.unwrap();
    let speaker = platform.broker("comp-a", &nats.url).await.unwrap();
    let subject = format!("evt.{}.comp-a.x", platform.stage.cluster.apps);
    let mut events = listener.subscribe("evt.>").await.unwrap();
    let mut hear = JoinSet::new();
    hear.spawn(async move {
        let mut heard = Vec::new();
        while let Ok(Some(message)) = timeout(Duration::from_secs(3), events.recv()).await {
            heard.push(std::str::from_utf8(&message.payload).unwrap().parse().unwrap());
        }
        heard
    });
    let mut sent = 0_u64;
    let speak = async {
        loop {
            speaker.publish(&subject, sent.to_string().into_bytes()).await.unwrap();
            sent += 1;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let renew = async {
        for _ in 0..5 {
            listener.renew().await.unwrap();
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    tokio::select! {
        () = speak => {}
        () = renew => {}
    }
    (sent, hear.join_next().await.unwrap().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_transit_arrives_when_a_listener_renews_its_connection() {
    for program in ["nats-server", "nats-server-debian"] {
        let (sent, mut heard) = sent_and_heard(program).await;
        heard.sort_unstable();
        let lost = sent - u64::try_from(heard.len()).unwrap();
        assert!(heard.iter().copied().eq(0..sent), "{program}: {lost} of {sent} lost");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_breaks_is_tried_again_before_the_old_jwt_ends() {
    let platform = Platform::new(&["--user-seconds", "9"]).await.unwrap();
    let listen = tec_support::testing::free_address().unwrap();
    let nats = Nats::start_at(&platform, "nats-server", listen);
    let _nats = nats.await.unwrap();
    let (address, _tasks) = second_breaks(listen).await;
    let url = format!("tls://localhost:{}", address.port());
    let broker = platform.broker("comp-a", &url).await.unwrap();
    let renewed_twice = eventually("two renewals", async || Ok(broker.renewals() == 2));
    tokio::select! {
        () = broker.keep(&SystemClock) => {}
        renewed = renewed_twice => renewed.unwrap(),
    }
    assert_eq!(broker.refused(), 0, "the old connection was there until its end");
}

#[tokio::test(flavor = "multi_thread")]
async fn in_an_outage_what_a_broker_holds_is_good_until_its_end() {
    let mut platform = Platform::new(&["--user-seconds", "600"]).await.unwrap();
    let nats = Nats::start(&platform, "nats-server").await.unwrap();
    let account = platform.stage.cluster.component("comp-a").await.unwrap();
    let args = platform.init(&account, &["nats"]).await.unwrap();
    let clock = Arc::new(Later::default());
    let identity = Identity::new(args.way, Arc::<Later>::clone(&clock));
    let identity = Arc::new(identity);
    let bus = Bus::connect(Arc::clone(&identity), nats.url.clone());
    let bus = bus.await.unwrap();
    let held = identity.grant().await.unwrap();

    platform.stage.bao.kill();
    // Due for renewal, but valid.
    clock.set(500);
    let asking = Arc::clone(&identity);
    let mut asks = JoinSet::new();
    asks.spawn(async move { asking.renewed().await.map(|_| ()) });
    let at_once = timeout(Duration::from_secs(1), identity.grant());
    let grant = at_once.await.expect("it waits for nobody").unwrap();
    assert_eq!(grant.ends, held.ends);
    // A broken connection is restored with it, even while the controller is being asked all the time.
    let callback = timeout(Duration::from_secs(5), identity.answer(b"nonce"));
    assert!(callback.await.expect("in time for NATS").is_ok());
    assert!(bus.is_connected().await);

    clock.set(700);
    let callback = timeout(Duration::from_secs(5), identity.answer(b"nonce"));
    assert!(callback.await.expect("in time for NATS").is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_without_an_answer_delays_no_renewal() {
    let platform = Platform::new(&[]).await.unwrap();
    let listen = tec_support::testing::free_address().unwrap();
    let _nats = Nats::start_at(&platform, "nats-server", listen).await.unwrap();
    let (silence, silent) = watch::channel(false);
    let (address, _tasks) = falls_silent(listen, silent).await;
    let url = format!("tls://localhost:{}", address.port());
    let broker = platform.broker("comp-a", &url).await.unwrap();
    let _events = broker.subscribe("evt.>").await.unwrap();
    silence.send_replace(true);
    // An old connection gets this long to answer; a renewal does not wait for it.
    timeout(Duration::from_secs(10), broker.renew()).await.unwrap().unwrap();
    assert!(broker.is_connected().await, "over the new connection");
}
