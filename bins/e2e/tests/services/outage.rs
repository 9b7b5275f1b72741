//! NATS is away for a while, and comes back with its storage: components and their brokers continue without
//! help, and every event that was acknowledged arrives.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use clap::Parser as _;
use services::broker::{cli, run};
use tec_e2e::kube::{eventually, within};
use tec_e2e::services::nats::Nats;
use tec_e2e::services::platform::Platform;
use tec_services::shell::broker::broker_client::BrokerClient;
use tec_services::shell::broker::{PublishRequest, SubscribeRequest};
use tec_support::SystemClock;
use tec_support::serve::Shutdown;
use tec_support::testing::free_address;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tonic::Code;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

/// How long NATS is away, in seconds, unless `TEC_NATS_AWAY` says otherwise.
const AWAY: u64 = 10;
/// Wait between two events.
const EACH: Duration = Duration::from_millis(50);

fn away() -> Duration {
    let seconds = std::env::var_os("TEC_NATS_AWAY");
    let seconds = seconds.map(|seconds| seconds.to_string_lossy().parse().unwrap());
    Duration::from_secs(seconds.unwrap_or(AWAY))
}

/// A broker as in the pod of a component: its sidecar with the flags of a manifest.
struct Pod {
    address: SocketAddr,
    probes: SocketAddr,
    authorities: Certificate,
}

async fn pod(
    platform: &Platform,
    brokers: &mut JoinSet<anyhow::Result<()>>,
    name: &str,
    url: &str,
) -> Pod {
    let account = platform.stage.cluster.component(name).await.unwrap();
    let (address, probes) = (free_address().unwrap(), free_address().unwrap());
    let (listen, health) = (address.to_string(), probes.to_string());
    let more = ["--nats", url, "--listen", &listen, "--health-listen", &health, "--stored-events"];
    let mounted = platform.stage.mount(&account, &platform.address.to_string()).await.unwrap();
    let line = ["services-broker"].iter().chain(&more).map(|&flag| flag.to_owned());
    let args = cli::Args::try_parse_from(line.chain(mounted)).unwrap();
    let (shutdown, signals) = Shutdown::on_signals().unwrap();
    brokers.spawn(async move {
        let _signals = signals;
        run::run(&args, Arc::new(SystemClock), shutdown).await
    });
    let authorities = Certificate::from_pem(platform.stage.authorities().await.unwrap());
    Pod { address, probes, authorities }
}

impl Pod {
    fn broker(&self) -> BrokerClient<Channel> {
        let tls = ClientTlsConfig::new()
            .ca_certificate(self.authorities.clone())
            .domain_name("localhost");
        let endpoint = Endpoint::from_shared(format!("https://{}", self.address)).unwrap();
        BrokerClient::new(endpoint.tls_config(tls).unwrap().connect_lazy())
    }

    async fn is_ready(&self) -> bool {
        let url = format!("http://{}/readyz", self.probes);
        reqwest::get(url).await.is_ok_and(|reply| reply.status() == 200)
    }
}

/// Publishes numbers, each until it is acknowledged, as the protocol prescribes.
async fn speak(
    mut broker: BrokerClient<Channel>,
    subject: String,
    acknowledged: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
) {
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let event = PublishRequest {
            subject: subject.clone(),
            payload: u64::to_string(&number).into_bytes(),
            id: number.to_string(),
        };
        match broker.publish(event).await {
            Ok(_) => {
                number += 1;
                acknowledged.store(number, Ordering::Relaxed);
                sleep(EACH).await;
            }
            Err(status) => {
                assert_eq!(status.code(), Code::Unavailable, "{status:?}");
                println!("not acknowledged: {}", status.message());
            }
        }
    }
}

/// Counts how often each number arrives, until the task is aborted.
async fn listen(
    mut broker: BrokerClient<Channel>,
    subject: String,
    heard: Arc<std::sync::Mutex<BTreeMap<u64, u64>>>,
) {
    let request = || SubscribeRequest { subject: subject.clone() };
    let mut events = loop {
        match broker.subscribe(request()).await {
            Ok(events) => break events.into_inner(),
            Err(status) => assert_eq!(status.code(), Code::Unavailable, "{status:?}"),
        }
    };
    heard.lock().unwrap().insert(u64::MAX, 1);
    // The stream survives the outage.
    while let Some(event) = events.message().await.unwrap() {
        let number = String::from_utf8(event.payload).unwrap().parse().unwrap();
        *heard.lock().unwrap().entry(number).or_default() += 1;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn components_survive_an_outage_of_nats_and_lose_nothing_that_was_acknowledged() {
    let (at, away) = (free_address().unwrap(), away());
    let url = format!("tls://localhost:{}", at.port());
    // Every JWT ends during the outage, so each reconnection needs a new one.
    let life = (away.as_secs() / 2).max(5).to_string();
    let flags = ["--nats-url", &url, "--event-replicas", "1", "--user-seconds", &life];
    let mut platform = Platform::new(&flags).await.unwrap();
    platform.keep().unwrap();
    let nats = Nats::start_storing(&platform, at).await.unwrap();
    let mut brokers = JoinSet::new();
    let speaker = pod(&platform, &mut brokers, "comp-a", &url).await;
    let reader = pod(&platform, &mut brokers, "comp-b", &url).await;
    eventually("two brokers", async || Ok(speaker.is_ready().await && reader.is_ready().await))
        .await
        .unwrap();

    let subject = format!("evt.{}.comp-a.x", platform.stage.cluster.apps);
    let heard = Arc::<std::sync::Mutex<BTreeMap<u64, u64>>>::default();
    let mut tasks = JoinSet::new();
    tasks.spawn(listen(reader.broker(), subject.clone(), Arc::clone(&heard)));
    let begins = || Ok(heard.lock().unwrap().remove(&u64::MAX).is_some());
    eventually("a reader", async || begins()).await.unwrap();
    let (acknowledged, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
    let counted = || acknowledged.load(Ordering::Relaxed);
    tasks.spawn(speak(speaker.broker(), subject, Arc::clone(&acknowledged), Arc::clone(&stop)));
    eventually("some events", async || Ok(counted() >= 20)).await.unwrap();

    drop(nats);
    let before = counted();
    eventually("brokers that know it", async || {
        Ok(!speaker.is_ready().await && !reader.is_ready().await)
    })
    .await
    .unwrap();
    sleep(away).await;
    assert!(counted() <= before + 1, "who acknowledged it?");
    let nats = Nats::start_storing(&platform, at).await.unwrap();
    let back = Instant::now();
    let soon = Duration::from_mins(1);
    within(soon, "events after the outage", async || Ok(counted() >= before + 20)).await.unwrap();
    let recovered = back.elapsed();
    within(soon, "brokers that are ready", async || {
        Ok(speaker.is_ready().await && reader.is_ready().await)
    })
    .await
    .unwrap();
    stop.store(true, Ordering::Relaxed);

    let all = counted();
    let arrived = || heard.lock().unwrap().keys().filter(|number| **number < all).count();
    let whole = usize::try_from(all).unwrap();
    let came = within(soon, "every event", async || Ok(arrived() == whole)).await;
    let missing: BTreeSet<u64> =
        (0..all).filter(|number| !heard.lock().unwrap().contains_key(number)).collect();
    assert!(came.is_ok(), "{came:?}: {missing:?} of {all} are missing; {}", nats.log().unwrap());
    let doubled = heard.lock().unwrap().values().filter(|times| **times > 1).count();
    println!(
        "NATS was away for {} s: {all} events acknowledged, {} of them after it, 0 lost, {doubled} \
         doubled; the first 20 within {:.1} s",
        away.as_secs(),
        all - before,
        recovered.as_secs_f32(),
    );
    // The one whose acknowledgment was cut off; the server knows its ID for two minutes.
    assert!(doubled <= 1, "{doubled}");
    assert!(brokers.try_join_next().is_none(), "a broker ended");
    tasks.abort_all();
}
