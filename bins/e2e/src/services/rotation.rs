//! Components that publish while their JWTs and certificates are renewed again and again.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use services::broker::bus::Bus;
use tec_support::SystemClock;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::services::nats::Nats;
use crate::services::platform::Platform;

/// Time after which messages in transit when the last one was sent have arrived.
const LAST: Duration = Duration::from_secs(10);

/// How much is published.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// How many components publish.
    pub components: usize,
    /// How long each waits between two messages.
    pub each: Duration,
    /// How long it lasts.
    pub lasts: Duration,
}

/// The outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// Messages that were handed over.
    pub sent: u64,
    /// Of these, how many never arrived.
    pub lost: u64,
    /// How many arrived more than once.
    pub doubled: u64,
    /// How many messages a server refused.
    pub refused: u64,
    /// How many new connections replaced old ones.
    pub renewals: u64,
    /// How many new certificates the server loaded while it ran.
    pub certificates: u64,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} messages sent, {} lost, {} doubled, {} refused; {} connections renewed, and the \
             server's certificate {} times",
            self.sent, self.lost, self.doubled, self.refused, self.renewals, self.certificates
        )
    }
}

/// Makes components publish, and another one listen; the server's certificate is renewed, too.
///
/// # Errors
/// A component cannot be connected, a message cannot be handed over, or a certificate cannot be renewed.
pub async fn run(platform: &Platform, nats: &Nats, load: Load) -> anyhow::Result<Outcome> {
    let mut keepers: JoinSet<anyhow::Result<()>> = JoinSet::new();
    let init = nats.init.clone();
    keepers.spawn(async move {
        let reload = init.out.join("nats.pid");
        services::init::run::keep(&init, Some(&reload), &SystemClock).await
    });
    let mut keep = |bus: &Arc<Bus>| {
        let bus = Arc::clone(bus);
        keepers.spawn(async move {
            bus.keep(&SystemClock).await;
            Ok(())
        });
    };
    let listener = Arc::new(platform.broker("listener", &nats.url).await?);
    keep(&listener);
    let mut messages = listener.subscribe("evt.>").await?;
    let end = Instant::now() + load.lasts;
    let mut speakers = JoinSet::new();
    let mut buses = vec![listener];
    for number in 0..load.components {
        let name = format!("comp-{number}");
        let bus = Arc::new(platform.broker(&name, &nats.url).await?);
        keep(&bus);
        buses.push(Arc::clone(&bus));
        let subject = format!("evt.{}.{name}.n", platform.stage.cluster.apps);
        speakers.spawn(speak(bus, subject, load.each, end));
    }
    let mut heard = BTreeMap::<(String, String), u64>::new();
    let mut sent = 0;
    let mut last = end + LAST;
    loop {
        tokio::select! {
            ended = speakers.join_next(), if !speakers.is_empty() => {
                sent += ended.context("a speaker")???;
                last = Instant::now() + LAST;
            }
            message = messages.recv() => {
                let message = message.context("the listener ended")?;
                let text = String::from_utf8_lossy(&message.payload).into_owned();
                *heard.entry((message.subject.to_string(), text)).or_default() += 1;
            }
            ended = keepers.join_next() => {
                ended.context("nobody renews")???;
                anyhow::bail!("a renewal stopped");
            }
            () = tokio::time::sleep_until(last), if speakers.is_empty() => break,
        }
        if speakers.is_empty() && u64::try_from(heard.len())? == sent {
            break;
        }
    }
    Ok(Outcome {
        sent,
        lost: sent - u64::try_from(heard.len())?,
        doubled: heard.values().map(|times| times - 1).sum(),
        refused: buses.iter().map(|bus| bus.refused()).sum(),
        renewals: buses.iter().map(|bus| bus.renewals()).sum(),
        certificates: u64::try_from(nats.log()?.matches("Reloaded: tls").count())?,
    })
}

/// Publishes numbers; returns how many.
async fn speak(
    bus: Arc<Bus>,
    subject: String,
    each: Duration,
    end: Instant,
) -> anyhow::Result<u64> {
    let mut number = 0_u64;
    while Instant::now() < end {
        bus.publish(&subject, number.to_string().into_bytes()).await?;
        number += 1;
        tokio::time::sleep(each).await;
    }
    Ok(number)
}
