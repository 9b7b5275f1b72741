//! Accounts, pushed to a running NATS: locks users out immediately.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use async_nats::{Auth, AuthError, Client, ConnectOptions};
use nkeys::KeyPair;
use serde::Deserialize;
use tec_core::port::Clock;
use tec_core::service::nats;
use tec_core::service::nats::{PublicKey, Revocations};
use tec_k8s::service::{Cluster, Keys, Minter, Standing, Vault};
use tec_support::certificate::Certificate;
use tokio::sync::Mutex;

/// Subject on which a NATS server with a full resolver accepts account JWTs.
const UPDATE: &str = "$SYS.REQ.CLAIMS.UPDATE";
/// Lifetime of a connection, which serves a single push.
const LIFE: Duration = Duration::from_mins(1);

/// Keeps the accounts of a NATS server up to date.
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "composed by main and by tests")]
pub struct Accounts {
    /// The vault whose keys sign.
    pub vault: Vault,
    /// Knows which users are locked out.
    pub cluster: Arc<dyn Cluster>,
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
    /// What the server knows.
    pub pushed: Mutex<Option<Revocations>>,
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
    ///
    /// # Errors
    /// The API server, the vault or NATS cannot be reached or refuses; the next call then pushes again.
    ///
    /// # Cancel safety
    /// Can be dropped at any await; the next call pushes again.
    pub async fn ensure(&self, authorities: &str) -> anyhow::Result<bool> {
        let Some(url) = &self.url else {
            return Ok(false);
        };
        let revocations = self.cluster.revocations().await?;
        let mut pushed = self.pushed.lock().await;
        if pushed.as_ref() == Some(&revocations) {
            return Ok(false);
        }
        let token = self.standing.token()?;
        let minter = Minter::new(&self.vault, &token, &self.keys, self.clock.now());
        let user = KeyPair::new_user();
        let jwt = minter.system(key_of(&user)?, LIFE).await?;
        let client = self.connect((user, jwt), url, authorities).await?;
        for (account, jwt) in minter.accounts(revocations.clone()).await? {
            push(&client, jwt)
                .await
                .with_context(|| format!("cannot push the account {account}"))?;
        }
        client.drain().await.context("cannot drain the connection to NATS")?;
        tracing::info!(revoked = revocations.len(), "accounts pushed to NATS");
        *pushed = Some(revocations);
        Ok(true)
    }

    /// Makes the servers store events as configured; an existing stream is updated.
    ///
    /// # Errors
    /// The vault or NATS cannot be reached or refuses, for example while too few servers of a cluster are up.
    ///
    /// # Cancel safety
    /// Can be dropped at any await.
    pub async fn ensure_events(&self, authorities: &str) -> anyhow::Result<()> {
        let (Some(url), Some(replicas)) = (&self.url, self.event_replicas) else {
            return Ok(());
        };
        let token = self.standing.token()?;
        let minter = Minter::new(&self.vault, &token, &self.keys, self.clock.now());
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
