//! A single lasting connection to NATS, built from many that end.
//!
//! A server closes a connection as soon as its JWT expires, and whatever was in transit is lost. So a new
//! connection is opened before that:
//!
//! ```text
//!   old ──── publish ─────────────┬─ unsubscribe, settle ─┐ closed
//!   new       connect, subscribe ─┴─ publish ────────────────────────
//! ```
//! Both connections put each subscription into a queue group of its own, so a message that arrives while both
//! exist is delivered by only one of them. The old one is closed when the server has answered everything sent
//! on it: the client's own drain closes after the next bytes of the server, which need not be the last.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use async_nats::connection::State;
use async_nats::{AuthError, Client, ConnectOptions, Event, Message, Subscriber};
use futures::StreamExt as _;
use tec_services::pace;
use tec_support::SystemEntropy;
use tokio::sync::{Mutex, RwLock, mpsc, watch};
use tokio::task::JoinSet;

use crate::broker::identity::Identity;

/// Maximum number of messages of a subscription that wait for their reader.
const WAITING: usize = 1024;
/// Shortest interval between renewals.
const SHORTEST: Duration = Duration::from_secs(1);
/// Deadline by which a server must have processed a subscription.
const HEARD: Duration = Duration::from_secs(10);
/// Ends a subscription at the server but not at the client, which keeps delivering what is in transit until it
/// has counted as many messages. Servers limit this count to nine digits, and end a subscription with a longer
/// one at once; one that accepted it would go on as if it had not been asked.
const AT_ONCE: u64 = u64::MAX;

/// The connection.
#[derive(Debug)]
pub struct Bus {
    identity: Arc<Identity>,
    servers: String,
    client: RwLock<Arc<Client>>,
    standing: Mutex<Standing>,
    refused: Arc<AtomicU64>,
    renewals: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Standing {
    next: u64,
    subscriptions: BTreeMap<u64, Subscription>,
    /// The tasks that carry messages from a connection to the readers; each ends with its connection.
    carriers: JoinSet<()>,
    /// Tells the carriers of the current connection that another one takes over.
    leave: watch::Sender<bool>,
    /// The tasks that close earlier connections, so that one without an answer delays no renewal.
    closing: JoinSet<()>,
}

#[derive(Clone, Debug)]
struct Subscription {
    subject: String,
    group: String,
    to: mpsc::Sender<Message>,
}

impl Bus {
    /// Connects.
    /// Errors: the controller issues no identity, or NATS does not accept it.
    pub async fn connect(identity: Arc<Identity>, servers: String) -> anyhow::Result<Self> {
        let refused = Arc::default();
        let client = open(&identity, &servers, &refused).await?;
        Ok(Self {
            identity,
            servers,
            client: RwLock::new(Arc::new(client)),
            standing: Mutex::default(),
            refused,
            renewals: watch::Sender::new(0),
        })
    }

    /// Hands over a message. Messages of one caller keep their order, except across a switch to a new
    /// connection.
    /// Errors: the subject is invalid, or the message is too large. If the component may not publish to a subject,
    /// the server refuses later; see [`refused`](Self::refused).
    pub async fn publish(&self, subject: &str, payload: Vec<u8>) -> anyhow::Result<()> {
        // Held until the message is handed over, so that none follows the drain.
        let client = self.client.read().await;
        let published = client.publish(subject.to_owned(), payload.into()).await;
        published.with_context(|| format!("cannot publish to {subject:?}"))
    }

    /// Messages of a subject, until the receiver is dropped. A slow reader holds up no one else: the server
    /// reports a slow consumer, and messages are lost.
    pub async fn subscribe(&self, subject: &str) -> anyhow::Result<mpsc::Receiver<Message>> {
        let (to, from) = mpsc::channel(WAITING);
        let mut standing = self.standing.lock().await;
        let number = standing.next;
        let subscription = Subscription {
            subject: subject.to_owned(),
            group: format!("{}.{number}", self.identity.user()),
            to,
        };
        let client = Arc::clone(&*self.client.read().await);
        let carrier = subscription.carrier(&client, standing.leave.subscribe()).await?;
        standing.carriers.spawn(carrier);
        settle(&self.identity, &client).await?;
        standing.next += 1;
        standing.subscriptions.insert(number, subscription);
        Ok(from)
    }

    /// Switches to a new connection with a new JWT.
    /// Errors: there is no new identity, or no new connection; the old connection stays.
    ///
    /// # Cancel safety
    /// When dropped, the old connection stays; its readers may receive from both until the next renewal.
    pub async fn renew(&self) -> anyhow::Result<()> {
        let new = Arc::new(open(&self.identity, &self.servers, &self.refused).await?);
        let leave = watch::Sender::new(false);
        let mut standing = self.standing.lock().await;
        standing.forget_closed();
        let subscribed = match standing.subscribe_again(&new, &leave).await {
            Ok(()) => settle(&self.identity, &new).await,
            Err(error) => Err(error),
        };
        if let Err(error) = subscribed {
            // It may have received messages already.
            standing.closing.spawn(close(Arc::clone(&self.identity), new, leave));
            return Err(error);
        }
        let old = std::mem::replace(&mut *self.client.write().await, new);
        let carriers = std::mem::replace(&mut standing.leave, leave);
        standing.closing.spawn(close(Arc::clone(&self.identity), old, carriers));
        self.renewals.send_modify(|count| *count += 1);
        Ok(())
    }

    /// Renews in time, for as long as it is polled. Failures are retried: there is time until the old JWT
    /// expires, and after that the client reconnects by itself.
    pub async fn keep(&self, clock: &dyn tec_core::port::Clock) {
        let mut renewed = anyhow::Ok(());
        loop {
            let wait = match (&renewed, self.identity.grant().await) {
                (Ok(()), Ok(grant)) => {
                    pace::renewal(grant.renew_after(clock.now()), &SystemEntropy).max(SHORTEST)
                }
                // A new grant may exist already, but the connection still uses the old one.
                _ => SHORTEST,
            };
            tokio::time::sleep(wait).await;
            renewed = self.renew().await;
            if let Err(error) = &renewed {
                let error = format!("{error:#}");
                tracing::warn!(error, "the connection to NATS is not renewed");
            }
        }
    }

    /// The current connection.
    pub(super) async fn client(&self) -> Arc<Client> {
        Arc::clone(&*self.client.read().await)
    }

    /// Is notified of each new connection.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.renewals.subscribe()
    }

    /// Whether NATS is connected now.
    pub async fn is_connected(&self) -> bool {
        self.client.read().await.connection_state() == State::Connected
    }

    /// How many times a new connection has replaced an old one.
    pub fn renewals(&self) -> u64 {
        *self.renewals.borrow()
    }

    /// Number of errors that the server has reported so far, such as refused messages.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

impl Standing {
    /// Subscribes over a new connection, too, until `leave` says otherwise.
    async fn subscribe_again(
        &mut self,
        new: &Client,
        leave: &watch::Sender<bool>,
    ) -> anyhow::Result<()> {
        for subscription in self.subscriptions.values() {
            let carrier = subscription.carrier(new, leave.subscribe()).await?;
            self.carriers.spawn(carrier);
        }
        Ok(())
    }

    /// Drops subscriptions without a reader, and carriers of closed connections.
    fn forget_closed(&mut self) {
        self.subscriptions.retain(|_, one| !one.to.is_closed());
        while self.carriers.try_join_next().is_some() {}
        while self.closing.try_join_next().is_some() {}
    }
}

impl Subscription {
    /// Subscribes over this connection; the future delivers its messages until it is closed.
    async fn carrier(
        &self,
        client: &Client,
        leave: watch::Receiver<bool>,
    ) -> anyhow::Result<impl Future<Output = ()> + use<>> {
        let Self { subject, group, to } = self.clone();
        let from = client
            .queue_subscribe(subject.clone(), group)
            .await
            .with_context(|| format!("cannot subscribe to {subject:?}"))?;
        Ok(carry(from, to, leave))
    }
}

async fn carry(mut from: Subscriber, to: mpsc::Sender<Message>, leave: watch::Receiver<bool>) {
    let mut leave = Some(leave);
    loop {
        let message = tokio::select! {
            message = from.next() => message,
            () = asked(&mut leave) => {
                // An error means that the connection is closed: the next message is the end.
                from.unsubscribe_after(AT_ONCE).await.ok();
                leave = None;
                continue;
            }
            // No one reads any more; the server learns of it when the subscriber is dropped.
            () = to.closed() => return,
        };
        let Some(message) = message else { return };
        if to.send(message).await.is_err() {
            return;
        }
    }
}

/// Closes a connection that another one has replaced: what was sent is processed, and what the server sent is
/// delivered.
async fn close(identity: Arc<Identity>, old: Arc<Client>, carriers: watch::Sender<bool>) {
    // Each carrier answers by dropping its receiver, once it has unsubscribed. One with a slow reader may not
    // get there in time.
    carriers.send_replace(true);
    tokio::time::timeout(HEARD, carriers.closed()).await.ok();
    // Without an answer, the connection is gone, and so is the rest.
    if let Err(error) = settle(&identity, &old).await {
        let error = format!("{error:#}");
        tracing::debug!(error, "the old connection ended before it was closed");
    }
    old.drain().await.ok();
}

/// Waits until the server has processed everything sent so far: it answers in order.
async fn settle(identity: &Identity, client: &Client) -> anyhow::Result<()> {
    let name = identity.grant().await?.name;
    let inbox = format!("_INBOX.{name}.settle.{}", identity.user());
    let mut echo = client.subscribe(inbox.clone()).await?;
    client.publish(inbox, Vec::new().into()).await?;
    tokio::time::timeout(HEARD, echo.next())
        .await
        .context("NATS does not answer")?
        .context("the connection to NATS was lost")?;
    Ok(())
}

/// Waits until the connection is to be left; never returns when it is left already.
async fn asked(leave: &mut Option<watch::Receiver<bool>>) {
    if let Some(receiver) = leave
        && receiver.wait_for(|leave| *leave).await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

/// A connection with the current identity.
async fn open(
    identity: &Arc<Identity>,
    servers: &str,
    refused: &Arc<AtomicU64>,
) -> anyhow::Result<Client> {
    let grant = identity.renewed().await?;
    let tls = identity.certificate().client_config(grant.authorities.as_bytes())?;
    let asked = Arc::clone(identity);
    let refused = Arc::clone(refused);
    let options = ConnectOptions::with_auth_callback(move |nonce| {
        let identity = Arc::clone(&asked);
        async move {
            // A separate task, since the client requires a future that is `Sync`.
            let mut asked = JoinSet::new();
            asked.spawn(async move { identity.answer(&nonce).await });
            match asked.join_next().await {
                Some(Ok(answer)) => answer,
                _ => Err(AuthError::new("the answer was not worked out")),
            }
        }
    });
    options
        .event_callback(move |event| {
            if let Event::ServerError(error) = &event {
                refused.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%error, "NATS refused");
            }
            async {}
        })
        .custom_inbox_prefix(format!("_INBOX.{}", grant.name))
        .name(grant.name)
        .tls_client_config(tls)
        .require_tls(true)
        .connect(servers)
        .await
        .with_context(|| format!("cannot connect to {servers}"))
}
