//! The component's identity: its own key, and what the controller issues for its token.

use std::sync::Arc;
use std::time::Duration;

use crate::init::cli::Way;
use crate::init::connect;
use crate::init::own_key::OwnKey;
use anyhow::Context as _;
use async_nats::{Auth, AuthError};
use nkeys::KeyPair;
use tec_core::port::Clock;
use tec_core::time::Timestamp;
use tec_services::shell::client::ComponentBootstrapRequest;
use tec_services::tls::renew_after;
use tec_support::certificate::Certificate;
use tokio::sync::{Mutex, watch};

/// Deadline of the answer; NATS servers and clients wait five seconds.
const ANSWER: Duration = Duration::from_secs(3);

/// A grant: what the controller issued.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Grant {
    /// The user's name, the prefix of its subjects and its inbox.
    pub name: String,
    /// The broker's chain, in PEM.
    pub chain: String,
    /// The authorities, in PEM.
    pub authorities: String,
    /// When the JWT or the certificate expires, whichever is first.
    pub ends: Timestamp,
    /// When it was issued.
    pub given: Timestamp,
    jwt: String,
}

impl Grant {
    /// How long until a new one is due: two thirds of its life.
    pub fn renew_after(&self, now: Timestamp) -> Duration {
        let life = renew_after(self.ends, self.given);
        let due = self.given.plus_seconds(i64::try_from(life.as_secs()).unwrap_or(i64::MAX));
        let left = due.unix_seconds().saturating_sub(now.unix_seconds());
        Duration::from_secs(u64::try_from(left).unwrap_or(0))
    }
}

#[cfg(test)]
impl Grant {
    /// A grant that tests recognize by its certificate and its authorities.
    pub(crate) fn sample(pem: &str) -> Self {
        Self {
            name: "apps.comp-a".to_owned(),
            chain: pem.to_owned(),
            authorities: pem.to_owned(),
            ends: Timestamp::from_unix_seconds(100),
            given: Timestamp::from_unix_seconds(10),
            jwt: String::new(),
        }
    }
}

/// The component's identity. Its NATS key is created with it, its TLS key with each grant; neither ever
/// leaves it.
#[derive(derive_more::Debug)]
#[debug("Identity {{ user: {:?}, .. }}", user.public_key())]
pub struct Identity {
    user: KeyPair,
    way: Way,
    clock: Arc<dyn Clock>,
    certificate: Arc<Certificate>,
    held: watch::Sender<Option<Grant>>,
    /// Held while asking the controller; callers that only need the current grant do not wait for it.
    asking: Mutex<()>,
}

impl Identity {
    /// A new identity; the mounted authorities are read each time it asks the controller.
    pub fn new(way: Way, clock: Arc<dyn Clock>) -> Self {
        Self {
            user: KeyPair::new_user(),
            way,
            clock,
            certificate: Arc::default(),
            held: watch::Sender::default(),
            asking: Mutex::default(),
        }
    }

    /// The certificate presented to both the runtime and NATS; follows every renewal.
    pub fn certificate(&self) -> &Arc<Certificate> {
        &self.certificate
    }

    /// Public half of the NATS key.
    pub fn user(&self) -> String {
        self.user.public_key()
    }

    /// The current grant while it is valid, otherwise a new one.
    /// Errors: there is no valid grant, and the controller refused permanently or was not reached in time.
    pub async fn grant(&self) -> anyhow::Result<Grant> {
        match self.living() {
            Some(grant) => Ok(grant),
            None => self.renewed().await,
        }
    }

    /// A grant that is not due for renewal: the current one, or a new one.
    /// Errors: A renewal is due, and the controller refused permanently or was not reached in time. The current grant
    /// stays valid until it expires: see [`grant`](Self::grant).
    ///
    /// # Cancel safety
    /// When dropped, the current grant stays.
    pub async fn renewed(&self) -> anyhow::Result<Grant> {
        let _turn = self.asking.lock().await;
        // An earlier holder of the lock may have renewed it.
        if let Some(grant) = self.young() {
            return Ok(grant);
        }
        let grant = self.ask().await?;
        self.held.send_replace(Some(grant.clone()));
        Ok(grant)
    }

    /// Every new grant.
    pub fn grants(&self) -> watch::Receiver<Option<Grant>> {
        self.held.subscribe()
    }

    fn living(&self) -> Option<Grant> {
        let held = self.held.borrow().clone();
        held.filter(|grant| grant.ends > self.clock.now())
    }

    fn young(&self) -> Option<Grant> {
        let held = self.held.borrow().clone();
        held.filter(|grant| !grant.renew_after(self.clock.now()).is_zero())
    }

    async fn ask(&self) -> anyhow::Result<Grant> {
        let given = self.clock.now();
        let own = OwnKey::generate()?;
        let answer = connect::persist(&self.way, |mut client, token| {
            let request = ComponentBootstrapRequest {
                service_account_token: token,
                request_id: format!("broker-{}", std::process::id()),
                nats_user: self.user.public_key(),
                nonce: String::new(),
                certificate_request: own.request(),
            };
            async move { client.bootstrap_component(request).await }
        });
        let answer = answer.await?.into_inner();
        let tls = answer.tls.context("the controller sent no certificate")?;
        self.certificate.replace(tls.certificate_chain.as_bytes(), &own.into_key())?;
        let ends = answer.jwt_expires.min(tls.not_after);
        tracing::info!(name = %answer.name, serial = %tls.serial, ends, "the controller gave a new identity");
        Ok(Grant {
            name: answer.name,
            chain: tls.certificate_chain,
            authorities: tls.authorities,
            ends: Timestamp::from_unix_seconds(ends),
            given,
            jwt: answer.user_jwt,
        })
    }

    /// The answer to a NATS server, needed at each connection and reconnection. Any valid grant will do if
    /// the controller issues no new one in time.
    /// Errors: no grant is valid, and the controller issued none in time.
    pub async fn answer(&self, nonce: &[u8]) -> Result<Auth, AuthError> {
        let renewed = tokio::time::timeout(ANSWER, self.renewed()).await;
        let grant = match (renewed, self.living()) {
            (Ok(Ok(grant)), _) | (_, Some(grant)) => grant,
            (Ok(Err(error)), None) => return Err(AuthError::new(error)),
            (Err(_), None) => {
                return Err(AuthError::new("the controller gave no identity in time"));
            }
        };
        let mut auth = Auth::new();
        auth.jwt = Some(grant.jwt);
        auth.signature = Some(self.user.sign(nonce).map_err(AuthError::new)?);
        Ok(auth)
    }
}
