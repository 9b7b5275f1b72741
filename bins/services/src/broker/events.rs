//! Events that NATS stores: an acknowledged event survives the end of a server, and readers miss nothing.
//!
//! ```text
//!   publish ── id, message ──► stream EVENTS ── answer: stored          again under the same id: stored once
//!   subscribe ── "from number n on" ──► a consumer ── n, n+1, …         after a gap or silence: another one
//! ```
//! *What it is not*: a work queue. Each subscription reads every event from the moment it started.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use async_nats::{Client, HeaderMap, Message, Subscriber};
use futures::StreamExt as _;
use nkeys::KeyPair;
use serde::Deserialize;
use serde_json::json;
use tec_services::nats::{EVENTS, READ_EVENTS};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::broker::bus::Bus;

/// Prefix of the subjects that events are published to.
const SUBJECTS: &str = "evt.";
/// Header with a message's ID (JetStream, "Message Deduplication").
const ID: &str = "Nats-Msg-Id";
/// Time in which a reachable server has stored a message.
const STORED: Duration = Duration::from_secs(5);
/// Longest time a caller waits for servers that are unreachable.
const DEADLINE: Duration = Duration::from_mins(1);
/// Time until a stream is available, once its servers are.
const FIRST: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(100);
/// Maximum number of events of a subscription that wait for their reader.
const WAITING: usize = 1024;
/// Heartbeat interval of a consumer, in nanoseconds, and the longest silence tolerated.
const HEARTBEAT: (u64, Duration) = (2_000_000_000, Duration::from_secs(5));

/// Publishes and reads stored events.
#[derive(Clone, Debug)]
pub struct Events {
    bus: Arc<Bus>,
    name: String,
    /// The tasks of subscriptions; each ends with its receiver, or with the bus.
    readers: Arc<Mutex<JoinSet<()>>>,
}

/// Why an event was not stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// The subject is not one of the component's own.
    #[error("{0:?} is not a subject of this component's events")]
    Foreign(String),
    /// As far as is known, no server stored it in time.
    #[error("no NATS server confirmed in time that {0:?} is stored: {1}")]
    NotStored(String, String),
}

/// JetStream's reply; without an error, the request succeeded.
#[derive(Debug, Deserialize)]
struct Answer {
    error: Option<Refused>,
    delivered: Option<Delivered>,
}

#[derive(Debug, Deserialize)]
struct Refused {
    #[serde(default)]
    description: String,
}

#[derive(Debug, Deserialize)]
struct Delivered {
    stream_seq: u64,
}

/// Sequence numbers of a message: in the stream, and in its consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Numbers {
    stream: u64,
    consumer: u64,
}

impl Numbers {
    /// `$JS.ACK.<stream>.<consumer>.<delivered>.<stream number>.<consumer number>.<time>.<pending>`
    /// (JetStream API, "Acknowledgement").
    fn of(message: &Message) -> Option<Self> {
        let reply = message.reply.as_ref()?.as_str();
        let mut parts = reply.strip_prefix("$JS.ACK.")?.split('.').skip(3);
        let stream = parts.next()?.parse().ok()?;
        Some(Self { stream, consumer: parts.next()?.parse().ok()? })
    }
}

impl Events {
    /// Uses the bus of this component.
    pub fn new(bus: Arc<Bus>, name: String) -> Self {
        Self { bus, name, readers: Arc::default() }
    }

    /// Whether this subject is for events.
    pub fn are_at(subject: &str) -> bool {
        subject.starts_with(SUBJECTS)
    }

    /// Publishes until the event is stored, under a single ID.
    ///
    /// # Cancel safety
    /// When dropped, it is unknown whether the event was stored: publish it again under the same ID.
    pub async fn publish(
        &self,
        subject: &str,
        payload: Vec<u8>,
        id: &str,
    ) -> Result<(), EventError> {
        let own = format!("{SUBJECTS}{}.", self.name);
        if !subject.starts_with(&own) {
            return Err(EventError::Foreign(subject.to_owned()));
        }
        // An ID of the component's own, which no other component can use.
        let unique = KeyPair::new_user().public_key();
        let id = format!("{}.{}", self.name, if id.is_empty() { &unique } else { id });
        let end = Instant::now() + DEADLINE;
        loop {
            let Err(error) = self.store(subject, &payload, &id).await else {
                return Ok(());
            };
            if Instant::now() > end {
                return Err(EventError::NotStored(subject.to_owned(), format!("{error:#}")));
            }
            sleep(AGAIN).await;
        }
    }

    async fn store(&self, subject: &str, payload: &[u8], id: &str) -> anyhow::Result<()> {
        let mut headers = HeaderMap::new();
        headers.insert(ID, id);
        let request = async_nats::Request::new()
            .headers(headers)
            .payload(payload.to_vec().into())
            .timeout(Some(STORED));
        let client = self.bus.client().await;
        answered(&client.send_request(subject.to_owned(), request).await?).map(drop)
    }

    /// Events of a subject from now on, until the receiver is dropped. Slow readers are waited for.
    pub async fn subscribe(&self, subject: &str) -> anyhow::Result<mpsc::Receiver<Message>> {
        let (to, from) = mpsc::channel(WAITING);
        let reader = Reader { bus: Arc::clone(&self.bus), subject: subject.to_owned(), to };
        let (end, mut last) = (Instant::now() + FIRST, None);
        let first = loop {
            match reader.ask(&*self.bus.client().await, &mut last).await {
                Ok(first) => break first,
                Err(error) if Instant::now() > end => return Err(error),
                Err(_) => sleep(AGAIN).await,
            }
        };
        let mut readers = self.readers.lock().await;
        while readers.try_join_next().is_some() {}
        readers.spawn(reader.run(first, last));
        Ok(from)
    }
}

fn answered(message: &Message) -> anyhow::Result<Answer> {
    let answer: Answer =
        serde_json::from_slice(&message.payload).context("cannot read the answer")?;
    match answer.error {
        Some(error) => anyhow::bail!("NATS refused the request: {}", error.description),
        None => Ok(answer),
    }
}

/// A subscription.
struct Reader {
    bus: Arc<Bus>,
    subject: String,
    to: mpsc::Sender<Message>,
}

impl Reader {
    /// A consumer that starts after event `last`, or now if there is no event yet.
    async fn ask(&self, client: &Client, last: &mut Option<u64>) -> anyhow::Result<Subscriber> {
        let inbox = client.new_inbox();
        let from = client.subscribe(inbox.clone()).await?;
        let mut config = json!({
            "deliver_subject": inbox, "filter_subject": self.subject, "ack_policy": "none",
            "replay_policy": "instant", "idle_heartbeat": HEARTBEAT.0, "num_replicas": 1,
            "mem_storage": true, "deliver_policy": "new",
        });
        if let (Some(last), Some(config)) = (&last, config.as_object_mut()) {
            config.insert("deliver_policy".to_owned(), json!("by_start_sequence"));
            config.insert("opt_start_seq".to_owned(), json!(last + 1));
        }
        let request = json!({"stream_name": EVENTS, "config": config}).to_string();
        let answer = client.request(READ_EVENTS, request.into()).await?;
        let answer =
            answered(&answer).with_context(|| format!("cannot read {:?}", self.subject))?;
        if last.is_none() {
            *last = answer.delivered.map(|delivered| delivered.stream_seq);
        }
        Ok(from)
    }

    /// Runs until no one reads any more.
    async fn run(self, first: Subscriber, mut last: Option<u64>) {
        let mut changes = self.bus.changes();
        let mut next = Some(first);
        while !self.to.is_closed() {
            let from = match next.take() {
                Some(from) => Ok(from),
                None => self.ask(&*self.bus.client().await, &mut last).await,
            };
            match from {
                Ok(from) => {
                    tokio::select! {
                        () = self.carry(from, &mut last) => {}
                        // The old connection is about to be closed.
                        _ = changes.changed() => {}
                    }
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::warn!(error, subject = self.subject, "cannot read events");
                    sleep(AGAIN * 10).await;
                }
            }
        }
    }

    /// Hands events over until the consumer is silent or skips one.
    async fn carry(&self, mut from: Subscriber, last: &mut Option<u64>) {
        let mut expected = 1;
        while let Ok(Some(message)) = timeout(HEARTBEAT.1, from.next()).await {
            // Anything that is not an event shows that the consumer is alive.
            let Some(numbers) = Numbers::of(&message) else {
                continue;
            };
            if numbers.consumer != expected {
                return;
            }
            expected += 1;
            if last.is_some_and(|last| numbers.stream <= last) {
                continue;
            }
            // A slow reader may take its time: this wait does not count as the consumer's silence.
            let Ok(place) = self.to.reserve().await else {
                return;
            };
            *last = Some(numbers.stream);
            place.send(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(reply: Option<&str>) -> Message {
        Message {
            subject: "evt.apps.comp-a.x".into(),
            reply: reply.map(Into::into),
            payload: Vec::new().into(),
            headers: None,
            status: None,
            description: None,
            length: 0,
        }
    }

    #[test]
    fn numbers_of_an_event_are_read_and_of_anything_else_are_not() {
        let numbers = |reply| Numbers::of(&message(reply));
        let event = "$JS.ACK.EVENTS.abc.1.42.7.1700000000000000000.0";
        assert_eq!(numbers(Some(event)), Some(Numbers { stream: 42, consumer: 7 }));
        for other in
            [None, Some("_INBOX.a"), Some("$JS.ACK.EVENTS.abc.1"), Some("$JS.ACK.E.c.1.x.1")]
        {
            assert_eq!(numbers(other), None, "{other:?}");
        }
    }
}
