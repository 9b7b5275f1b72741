//! Components that publish stored events, each through its own server of several, and one that reads them all.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use services::broker::events::Events;
use tec_support::SystemClock;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::kube::eventually;
use crate::services::nats::Member;
use crate::services::platform::Platform;

/// Interval between two events of a component.
const EACH: Duration = Duration::from_millis(20);
/// Time in which the reader has received what was stored.
const LAST: Duration = Duration::from_secs(30);

/// The outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// Events that are known to be stored.
    pub sent: u64,
    /// Of these, how many never arrived.
    pub lost: u64,
    /// How many arrived more than once.
    pub doubled: u64,
    /// The longest time until an event was stored.
    pub longest: Duration,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, lost, doubled, longest } = self;
        write!(f, "{sent} events stored, {lost} lost, {doubled} doubled; longest wait {longest:?}")
    }
}

/// Publishes and reads until `script` ends.
///
/// # Errors
/// A component cannot be connected, or an event cannot be stored within the broker's deadline.
pub async fn run(
    platform: &Platform,
    members: &[Member],
    script: impl Future<Output = ()>,
) -> anyhow::Result<Outcome> {
    let mut keepers = JoinSet::new();
    let mut connect = async |name: &str, member: &Member| {
        let bus = Arc::new(platform.broker(name, &member.url()).await?);
        let kept = Arc::clone(&bus);
        keepers.spawn(async move { kept.keep(&SystemClock).await });
        let user = format!("{}.{name}", platform.stage.cluster.apps);
        anyhow::Ok((Events::new(bus, user.clone()), user))
    };
    let first = members.first().context("there is no server")?;
    let (reader, _) = connect("reader", first).await?;
    let mut events = None;
    eventually("a stream", async || {
        events = reader.subscribe("evt.>").await.ok();
        Ok(events.is_some())
    })
    .await?;
    let mut events = events.context("there is no subscription")?;
    let is_over = Arc::new(AtomicBool::new(false));
    let mut speakers = JoinSet::new();
    for (number, member) in members.iter().enumerate() {
        let (events, user) = connect(&format!("comp-{number}"), member).await?;
        let (subject, is_over) = (format!("evt.{user}.n"), Arc::clone(&is_over));
        speakers.spawn(speak(events, subject, is_over));
    }
    let mut heard = BTreeMap::<(String, String), u64>::new();
    let mut hear = |message: async_nats::Message| {
        let text = String::from_utf8_lossy(&message.payload).into_owned();
        *heard.entry((message.subject.to_string(), text)).or_default() += 1;
    };
    let mut script = Box::pin(script);
    let mut outcome = Outcome::default();
    let mut is_done = false;
    while !is_done || !speakers.is_empty() {
        tokio::select! {
            () = &mut script, if !is_done => {
                is_done = true;
                is_over.store(true, Ordering::Relaxed);
            }
            ended = speakers.join_next(), if !speakers.is_empty() => {
                let (sent, longest) = ended.context("a speaker")???;
                outcome.sent += sent;
                outcome.longest = outcome.longest.max(longest);
            }
            event = events.recv() => hear(event.context("the reader ended")?),
        }
    }
    // Silence: what is still missing does not come.
    let end = Instant::now() + LAST;
    while Instant::now() < end {
        match timeout(Duration::from_secs(3), events.recv()).await {
            Ok(event) => hear(event.context("the reader ended")?),
            Err(_) => break,
        }
    }
    outcome.lost = outcome.sent.saturating_sub(u64::try_from(heard.len())?);
    outcome.doubled = heard.values().map(|times| times - 1).sum();
    Ok(outcome)
}

/// Publishes numbers; returns how many are stored, and the longest wait.
async fn speak(
    events: Events,
    subject: String,
    is_over: Arc<AtomicBool>,
) -> anyhow::Result<(u64, Duration)> {
    let (mut number, mut longest) = (0_u64, Duration::ZERO);
    while !is_over.load(Ordering::Relaxed) {
        let (begin, text) = (Instant::now(), number.to_string());
        events.publish(&subject, text.clone().into_bytes(), &text).await?;
        longest = longest.max(begin.elapsed());
        number += 1;
        tokio::time::sleep(EACH).await;
    }
    Ok((number, longest))
}
