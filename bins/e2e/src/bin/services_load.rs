//! `services-load`: runs in pods beside a broker, for tables of kills. `speak` publishes numbered events,
//! each after the previous one is stored; `listen` counts those that arrive. Both leave their counts on a
//! volume that outlives their pods, and log every refusal.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use tec_e2e::services::tally;
use tec_e2e::services::tally::{Heard, Note};
use tec_services::shell::broker::broker_client::BrokerClient;
use tec_services::shell::broker::{PublishRequest, SubscribeRequest};
use tokio::task::JoinSet;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Status};

/// Concurrent speakers in one pod.
const SPEAKERS: u32 = 4;
const AGAIN: Duration = Duration::from_millis(200);
/// A new random UUID at each read (random(4)).
const UUID: &str = "/proc/sys/kernel/random/uuid";

#[derive(Debug, Parser)]
struct Args {
    /// Volume of the counts
    #[arg(long, global = true, default_value = "/load")]
    volume: PathBuf,
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
    let Args { volume, verb } = Args::parse();
    let authorities = Certificate::from_pem(std::fs::read("/shared/ca.crt")?);
    let tls = ClientTlsConfig::new().ca_certificate(authorities).domain_name("localhost");
    let broker = Endpoint::from_static("https://127.0.0.1:9443").tls_config(tls)?;
    let broker = BrokerClient::new(broker.connect_lazy());
    match verb {
        Verb::Speak { subject, each } => {
            let mut speakers = JoinSet::new();
            for number in 0..SPEAKERS {
                // Each start speaks under a new name.
                let name = format!("{subject}.{}-{number}", uuid()?);
                let note = Note::create(&volume, &name)?;
                speakers.spawn(speak(broker.clone(), name, note, Duration::from_millis(each)));
            }
            speakers.join_next().await.context("nobody speaks")??
        }
        Verb::Listen { subject } => listen(broker, subject, &volume).await,
    }
}

fn uuid() -> anyhow::Result<String> {
    Ok(std::fs::read_to_string(UUID)?.trim().to_owned())
}

/// Writes to the container's log, which the table shows when it fails.
fn tell(what: &str, refused: &Status) {
    // If even this fails, there is no other way to report it.
    let _ = writeln!(std::io::stderr(), "{what}: {refused}");
}

async fn speak(
    mut broker: BrokerClient<Channel>,
    subject: String,
    note: Note,
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
            tell(&request.id, &refused);
            let refused_for_good = matches!(refused.code(), Code::PermissionDenied);
            anyhow::ensure!(!refused_for_good, "{refused}");
            tokio::time::sleep(AGAIN).await;
        }
        note.acknowledge(number)?;
        tokio::time::sleep(each).await;
    }
    Ok(())
}

async fn listen(
    mut broker: BrokerClient<Channel>,
    subject: String,
    volume: &Path,
) -> anyhow::Result<()> {
    let mut messages = loop {
        match broker.subscribe(SubscribeRequest { subject: subject.clone() }).await {
            Ok(messages) => break messages.into_inner(),
            Err(refused) => tell(&subject, &refused),
        }
        tokio::time::sleep(AGAIN).await;
    };
    let start = uuid()?;
    let mut heard = BTreeMap::<String, Heard>::new();
    let mut second = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            message = messages.message() => {
                let message = message?.context("the broker ended the subscription")?;
                let number: u64 = String::from_utf8(message.payload)?.parse()?;
                heard.entry(message.subject).or_default().hear(number);
            }
            _ = second.tick() => tally::write_heard(volume, &start, &heard)?,
        }
    }
}
