//! Events that NATS stores, from the stream that the controller makes to a component that reads.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use services::broker::bus::Bus;
use services::broker::events::{EventError, Events};
use services::broker::face;
use tec_e2e::kube::eventually;
use tec_e2e::services::nats::Nats;
use tec_e2e::services::platform::Platform;
use tec_services::shell::broker::SubscribeRequest;
use tec_services::shell::broker::broker_client::BrokerClient;
use tec_support::serve;
use tec_support::serve::{Shutdown, Transport};
use tokio::time::timeout;
use tonic::Code;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

const SOON: Duration = Duration::from_secs(20);

/// A platform whose controller keeps a stream with one copy at this address.
async fn platform(listen: SocketAddr) -> (Platform, String) {
    let url = format!("tls://localhost:{}", listen.port());
    let flags = ["--nats-url", &url, "--event-replicas", "1"];
    (Platform::new(&flags).await.unwrap(), url)
}

async fn component(platform: &Platform, name: &str, url: &str) -> (Arc<Bus>, Events) {
    let bus = Arc::new(platform.broker(name, url).await.unwrap());
    let user = format!("{}.{name}", platform.stage.cluster.apps);
    (Arc::clone(&bus), Events::new(bus, user))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_controller_makes_the_stream_and_an_event_is_stored_once_under_its_id() {
    let listen = tec_support::testing::free_address().unwrap();
    let (mut platform, url) = platform(listen).await;
    let _nats = Nats::start_storing(&platform, listen).await.unwrap();
    let (_bus, speaker) = component(&platform, "comp-a", &url).await;
    let (_bus, reader) = component(&platform, "comp-b", &url).await;
    platform.keep().unwrap();
    let subject = format!("evt.{}.comp-a.x", platform.stage.cluster.apps);
    eventually("a stream", async || Ok(reader.subscribe(&subject).await.is_ok())).await.unwrap();
    let mut events = reader.subscribe(&subject).await.unwrap();
    for (payload, id) in [("first", "1"), ("first again", "1"), ("second", "2")] {
        speaker.publish(&subject, payload.into(), id).await.unwrap();
    }
    for expected in ["first", "second"] {
        let event = timeout(SOON, events.recv()).await.unwrap().unwrap();
        assert_eq!(event.payload, expected.as_bytes());
    }
    let foreign = reader.publish(&subject, b"forged".to_vec(), "").await;
    assert!(matches!(foreign, Err(EventError::Foreign(_))), "{foreign:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_component_that_comes_before_the_stream_is_told_to_come_again() {
    let listen = tec_support::testing::free_address().unwrap();
    let platform = Platform::new(&[]).await.unwrap();
    let nats = Nats::start_at(&platform, "nats-server", listen).await.unwrap();
    let identity = platform.identity("comp-a").await.unwrap();
    let bus = Bus::connect(Arc::clone(&identity), nats.url.clone()).await.unwrap();
    let (bus, grant) = (Arc::new(bus), identity.grant().await.unwrap());
    let events = Events::new(Arc::clone(&bus), grant.name.clone());
    let (_health, router) = face::router(bus, Some(events));
    let listener = serve::bind(([127, 0, 0, 1], 0).into()).unwrap();
    let address = format!("https://{}", listener.local_addr().unwrap());
    let transport = Transport::Tls(identity.certificate().server_config());
    let (shutdown, _signals) = Shutdown::on_signals().unwrap();
    let authorities = Certificate::from_pem(grant.authorities);
    let tls = ClientTlsConfig::new().ca_certificate(authorities).domain_name("localhost");
    let broker = Endpoint::from_shared(address).unwrap().tls_config(tls).unwrap();
    let subscribed = async {
        let mut broker = BrokerClient::new(broker.connect().await.unwrap());
        broker.subscribe(SubscribeRequest { subject: "evt.>".to_owned() }).await.map(drop)
    };
    tokio::select! {
        served = serve::serve(listener, transport, router, shutdown) => {
            panic!("{served:?}")
        }
        subscribed = subscribed => assert_eq!(subscribed.unwrap_err().code(), Code::Unavailable),
    }
}
