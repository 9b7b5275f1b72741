//! A component that publishes on NATS through the broker in its pod, and prints what it reads from
//! NATS. It has no key and no password. `component.yaml` in the folder `component` runs it.

use std::io::Write as _;
use std::time::Duration;

use anyhow::Context as _;
use tec_services::shell::broker::broker_client::BrokerClient;
use tec_services::shell::broker::{PublishRequest, SubscribeRequest};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let subject = std::env::args().nth(1).context("usage: component SUBJECT")?;
    // The broker left it on the volume that both containers share.
    let authorities = Certificate::from_pem(std::fs::read("/shared/ca.crt")?);
    let tls = ClientTlsConfig::new().ca_certificate(authorities).domain_name("localhost");
    let broker = Endpoint::from_static("https://127.0.0.1:9443").tls_config(tls)?.connect().await?;
    let mut broker = BrokerClient::new(broker);
    let request = SubscribeRequest { subject: subject.clone() };
    let mut messages = broker.subscribe(request).await?.into_inner();
    let mut second = tokio::time::interval(Duration::from_secs(1));
    for number in 1_u64.. {
        second.tick().await;
        let payload = format!("hello {number}").into_bytes();
        let request = PublishRequest { subject: subject.clone(), payload, id: String::new() };
        broker.publish(request).await?;
        let message = messages.message().await?.context("the broker ended the subscription")?;
        let text = String::from_utf8_lossy(&message.payload);
        writeln!(std::io::stdout(), "{} {text}", message.subject)?;
    }
    Ok(())
}
