//! `services-load`: runs in pods next to a broker, for tables of kills. `speak` publishes numbered events,
//! each after the previous one is stored; `listen` counts received, missing and duplicate events.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use tec_k8s::service::broker::broker_client::BrokerClient;
use tec_k8s::service::broker::{PublishRequest, SubscribeRequest};
use tokio::task::JoinSet;
use tonic::Code;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

/// Concurrent speakers in one pod.
const SPEAKERS: u32 = 4;
const AGAIN: Duration = Duration::from_millis(200);

#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Publish to subjects with this prefix
    Speak {
        subject: String,
        /// Milliseconds between two events of a speaker
        #[arg(long, default_value_t = 50)]
        each: u64,
    },
    /// Count events
    Listen { subject: String },
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let authorities = Certificate::from_pem(std::fs::read("/shared/ca.crt")?);
    let tls = ClientTlsConfig::new().ca_certificate(authorities).domain_name("localhost");
    let broker = Endpoint::from_static("https://127.0.0.1:9443").tls_config(tls)?;
    let broker = BrokerClient::new(broker.connect_lazy());
    match Args::parse().verb {
        Verb::Speak { subject, each } => {
            let mut speakers = JoinSet::new();
            for number in 0..SPEAKERS {
                // Each start uses a new name.
                let name = format!("{subject}.{}-{number}", std::fs::read_to_string(UUID)?.trim());
                speakers.spawn(speak(broker.clone(), name, Duration::from_millis(each)));
            }
            speakers.join_next().await.context("nobody speaks")??
        }
        Verb::Listen { subject } => listen(broker, subject).await,
    }
}

/// Random each time it is read (random(4)).
const UUID: &str = "/proc/sys/kernel/random/uuid";

async fn speak(
    mut broker: BrokerClient<Channel>,
    subject: String,
    each: Duration,
) -> anyhow::Result<()> {
    for number in 1_u64.. {
        let request = PublishRequest {
            subject: subject.clone(),
            payload: number.to_string().into_bytes(),
            id: format!("{subject}.{number}"),
        };
        // Repeats under the same name until it is stored.
        while let Err(refused) = broker.publish(request.clone()).await {
            let refused_for_good = matches!(refused.code(), Code::PermissionDenied);
            anyhow::ensure!(!refused_for_good, "{refused}");
            tokio::time::sleep(AGAIN).await;
        }
        tokio::time::sleep(each).await;
    }
    Ok(())
}

/// Events received from one speaker.
#[derive(Default)]
struct Heard {
    highest: u64,
    count: u64,
    doubled: u64,
}

async fn listen(mut broker: BrokerClient<Channel>, subject: String) -> anyhow::Result<()> {
    let mut messages = loop {
        match broker.subscribe(SubscribeRequest { subject: subject.clone() }).await {
            Ok(messages) => break messages.into_inner(),
            Err(_) => tokio::time::sleep(AGAIN).await,
        }
    };
    let mut heard = BTreeMap::<String, Heard>::new();
    let mut second = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            message = messages.message() => {
                let message = message?.context("the broker ended the subscription")?;
                let number: u64 = String::from_utf8(message.payload)?.parse()?;
                let from = heard.entry(message.subject).or_default();
                // A speaker waits for each event, so they arrive in order.
                if number > from.highest {
                    from.highest = number;
                    from.count += 1;
                } else {
                    from.doubled += 1;
                }
            }
            _ = second.tick() => {
                let sum = |of: fn(&Heard) -> u64| heard.values().map(of).sum::<u64>();
                let (sent, doubled) = (sum(|from| from.highest), sum(|from| from.doubled));
                let lost = sent - sum(|from| from.count);
                writeln!(std::io::stdout(), "{sent} {lost} {doubled}")?;
            }
        }
    }
}
