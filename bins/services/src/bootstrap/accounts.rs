//! Accounts, pushed to a running NATS: locks users out immediately, and replaces the keys that sign.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use async_nats::{Auth, AuthError, Client, ConnectOptions};
use futures::StreamExt as _;
use nkeys::KeyPair;
use serde::Deserialize;
use tec_core::port::Clock;
use tec_core::secret::SecretBytes;
use tec_services::nats;
use tec_services::nats::{PublicKey, Revocations};
use tec_services::shell::{
    ACCOUNTS, ApiServer, Keys, Minter, OPERATOR, Replaceable, Standing, Vault,
};
use tec_services::vault::{
    NATS_ACCOUNTS, NATS_OPERATOR, Record, Request, Response, Signers, Stage, Stored, Verdict, Wish,
    overlap,
};
use tec_support::certificate::Certificate;
use tokio::sync::Mutex;

/// Subject on which a NATS server with a full resolver accepts account JWTs.
const UPDATE: &str = "$SYS.REQ.CLAIMS.UPDATE";
/// Subject on which every server reports its state, its operator included.
const SERVERS: &str = "$SYS.REQ.SERVER.PING.VARZ";
/// How long a server may take to answer it.
const ANSWER: Duration = Duration::from_secs(2);
/// Lifetime of a connection, which serves a single push.
const LIFE: Duration = Duration::from_mins(1);

/// Keeps the accounts of a NATS server up to date.
#[derive(Debug)]
pub struct Accounts {
    /// The vault whose keys sign.
    pub vault: Vault,
    /// Knows which users are locked out.
    pub cluster: Arc<ApiServer>,
    /// The controller's own token of the vault.
    pub standing: Arc<Standing>,
    /// What is known about the vault's keys.
    pub keys: Keys,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The client certificate, which the server requires.
    pub certificate: Arc<Certificate>,
    /// The server, if accounts are pushed.
    pub url: Option<String>,
    /// Replicas of the events that the servers store, if they store events.
    pub event_replicas: Option<u32>,
    /// Lifetime of a user's JWT.
    pub user_life: Duration,
    /// What the server knows.
    pub pushed: Mutex<Option<(Revocations, Signers)>>,
}

/// Keys that are replaced together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    /// The operator's, which signs accounts.
    Operator,
    /// Those of the accounts, which sign users.
    Accounts,
}

impl Level {
    const fn record(self) -> &'static str {
        match self {
            Self::Operator => NATS_OPERATOR,
            Self::Accounts => NATS_ACCOUNTS,
        }
    }

    const fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Operator => &[OPERATOR],
            Self::Accounts => &ACCOUNTS,
        }
    }

    const fn request(self) -> Replaceable {
        match self {
            Self::Operator => Replaceable::NatsOperatorKey,
            Self::Accounts => Replaceable::NatsAccountKeys,
        }
    }

    fn signers(self, record: Record, others: Signers) -> Signers {
        match self {
            Self::Operator => Signers { operator: record, ..others },
            Self::Accounts => Signers { accounts: record, ..others },
        }
    }
}

/// The server's reply; without an error, it accepted the JWT.
#[derive(Deserialize)]
struct Reply {
    error: Option<ReplyError>,
}

#[derive(Deserialize)]
struct ReplyError {
    #[serde(default)]
    description: String,
}

impl Accounts {
    /// Pushes the accounts if the server may not know who is locked out. Returns whether it did.
    /// Errors: the API server, the vault or NATS cannot be reached or refuses; the next call then pushes again.
    ///
    /// # Cancel safety
    /// Can be dropped at any await; the next call pushes again.
    pub async fn ensure(&self, authorities: &str) -> anyhow::Result<bool> {
        let Some(url) = &self.url else {
            return Ok(false);
        };
        let revocations = self.cluster.revocations().await?;
        let known = (revocations, self.standing.signers()?);
        let mut pushed = self.pushed.lock().await;
        if pushed.as_ref() == Some(&known) {
            return Ok(false);
        }
        let token = self.standing.token()?;
        let minter = self.minter(&token)?;
        let user = KeyPair::new_user();
        let jwt = minter.system(key_of(&user)?, LIFE).await?;
        let client = self.connect((user, jwt), url, authorities).await?;
        for (account, jwt) in minter.accounts(known.0.clone()).await? {
            push(&client, jwt)
                .await
                .with_context(|| format!("cannot push the account {account}"))?;
        }
        client.drain().await.context("cannot drain the connection to NATS")?;
        tracing::info!(revoked = known.0.len(), "accounts pushed to NATS");
        *pushed = Some(known);
        Ok(true)
    }

    /// Carries out the stages of replacements of signing keys that are due. A running server gets the keys of
    /// accounts with the accounts; the operator's only when it starts.
    /// Errors: the API server, the vault or NATS cannot be reached or refuses; the next call continues.
    ///
    /// # Cancel safety
    /// Can be dropped at any await; the next call continues.
    pub async fn succeed(&self, authorities: &str) -> anyhow::Result<()> {
        for level in [Level::Accounts, Level::Operator] {
            while self.succeed_once(level, authorities).await? {}
        }
        Ok(())
    }

    /// Carries out what the record says, and begins the next stage if it is due. Returns whether it did.
    async fn succeed_once(&self, level: Level, authorities: &str) -> anyhow::Result<bool> {
        let token = self.standing.token()?;
        let answer = self.call(Stored::read(level.record()), &token).await?;
        let stored = Stored::from_answer(&answer).context("the vault does not answer")??;
        let record = stored.record;
        let newest = record.trusted().into_iter().max().unwrap_or(record.signs);
        for key in level.keys() {
            self.minter(&token)?.ensure_version(key, newest).await?;
        }
        self.standing.sign_by(level.signers(record, self.standing.signers()?));
        self.ensure(authorities).await?;
        let is_asked = self.cluster.is_requested(level.request()).await?;
        let wish = if is_asked { Wish::Next } else { Wish::None };
        let Some(next) = record.next(wish, self.clock.now(), overlap(self.user_life)) else {
            return Ok(false);
        };
        match (level, record.stage) {
            // It asked for this one. A request that comes later asks for another one.
            (_, Stage::Made) => self.cluster.clear_request(level.request()).await?,
            (Level::Operator, Stage::Published)
                if !self.do_servers_trust(newest, authorities).await? =>
            {
                tracing::warn!(
                    "NATS servers must be restarted: they do not know the operator's new key"
                );
                return Ok(false);
            }
            _ => {}
        }
        let answer = self.call(stored.replace(level.record(), next), &token).await?;
        match answer.verdict() {
            // Now, or by another pod: it is carried out.
            Verdict::Good | Verdict::Exists => {
                tracing::info!(record = level.record(), stage = ?next.stage, "keys for NATS");
                Ok(true)
            }
            _ => anyhow::bail!("the vault answered with status {}", answer.status),
        }
    }

    /// Whether every server that runs trusts this version of the operator's key.
    async fn do_servers_trust(&self, version: u32, authorities: &str) -> anyhow::Result<bool> {
        let Some(url) = &self.url else {
            return Ok(false);
        };
        let token = self.standing.token()?;
        let minter = self.minter(&token)?;
        let key = minter.operator_key(version).await?.to_string();
        let user = KeyPair::new_user();
        let jwt = minter.system(key_of(&user)?, LIFE).await?;
        let client = self.connect((user, jwt), url, authorities).await?;
        let inbox = client.new_inbox();
        let mut answers = client.subscribe(inbox.clone()).await?;
        client.publish_with_reply(SERVERS, inbox, Vec::new().into()).await?;
        let mut trusting = None;
        // Each server answers for itself; how many there are, nobody knows.
        while let Ok(Some(answer)) = tokio::time::timeout(ANSWER, answers.next()).await {
            let text = String::from_utf8_lossy(&answer.payload);
            trusting = Some(trusting.unwrap_or(true) && text.contains(&key));
        }
        client.drain().await.context("cannot drain the connection to NATS")?;
        Ok(trusting.unwrap_or(false))
    }

    async fn call(&self, request: Request, token: &SecretBytes) -> anyhow::Result<Response> {
        Ok(self.vault.call(&request.by(token)).await?)
    }

    fn minter<'a>(&'a self, token: &'a SecretBytes) -> anyhow::Result<Minter<'a>> {
        let signers = self.standing.signers()?;
        Ok(Minter::new(&self.vault, token, &self.keys, signers, self.clock.now()))
    }

    /// Makes the servers store events as configured; an existing stream is updated.
    /// Errors: the vault or NATS cannot be reached or refuses, for example while too few servers of a cluster are up.
    ///
    /// # Cancel safety
    /// Can be dropped at any await.
    pub async fn ensure_events(&self, authorities: &str) -> anyhow::Result<()> {
        let (Some(url), Some(replicas)) = (&self.url, self.event_replicas) else {
            return Ok(());
        };
        let token = self.standing.token()?;
        let minter = self.minter(&token)?;
        let user = KeyPair::new_user();
        let jwt = minter.stream(key_of(&user)?, LIFE).await?;
        let client = self.connect((user, jwt), url, authorities).await?;
        let stream = nats::events_stream(replicas).to_string();
        // The same stream again is no error.
        if ask(&client, nats::stream_call("CREATE"), stream.clone()).await.is_err() {
            ask(&client, nats::stream_call("UPDATE"), stream)
                .await
                .context("cannot create the stream of events")?;
        }
        client.drain().await.context("cannot drain the connection to NATS")
    }

    async fn connect(
        &self,
        (user, jwt): (KeyPair, String),
        url: &str,
        authorities: &str,
    ) -> anyhow::Result<Client> {
        let user = Arc::new(user);
        let options = ConnectOptions::with_auth_callback(move |nonce| {
            let (jwt, user) = (jwt.clone(), Arc::clone(&user));
            async move {
                let mut auth = Auth::new();
                auth.jwt = Some(jwt);
                auth.signature = Some(user.sign(&nonce).map_err(AuthError::new)?);
                Ok(auth)
            }
        });
        options
            .tls_client_config(self.certificate.client_config(authorities.as_bytes())?)
            .require_tls(true)
            .connect(url)
            .await
            .with_context(|| format!("cannot connect to {url}"))
    }
}

fn key_of(user: &KeyPair) -> anyhow::Result<PublicKey> {
    user.public_key().parse().context("invalid key of the NATS user")
}

async fn push(client: &Client, jwt: String) -> anyhow::Result<()> {
    ask(client, UPDATE.to_owned(), jwt).await
}

async fn ask(client: &Client, subject: String, body: String) -> anyhow::Result<()> {
    let answer = client.request(subject, body.into()).await?;
    let reply: Reply = serde_json::from_slice(&answer.payload).context("cannot read the answer")?;
    match reply.error {
        None => Ok(()),
        Some(error) => anyhow::bail!("NATS refused the request: {}", error.description),
    }
}
