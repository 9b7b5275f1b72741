//! Who the component is: a key of its own, and what the controller gives for its token.

use std::fmt;
use std::sync::Arc;

use anyhow::Context as _;
use async_nats::Auth;
use async_nats::AuthError;
use nkeys::KeyPair;
use services_init::cli::Way;
use services_init::connect;
use services_init::own_key::OwnKey;
use tec_core::port::Clock;
use tec_core::service::tls::renew_after;
use tec_core::time::Timestamp;
use tec_k8s::service::client::ComponentBootstrapRequest;
use tec_k8s::service::client::bootstrap_client::BootstrapClient;
use tec_support::certificate::Certificate;
use tokio::sync::Mutex;
use tonic::transport::Channel;

/// What the controller gave.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Grant {
    /// The user's name, which its subjects and its inbox begin with.
    pub name: String,
    /// The broker's chain, in PEM.
    pub chain: String,
    /// The authorities, in PEM.
    pub authorities: String,
    /// When JWT or certificate ends, whichever is first.
    pub ends: Timestamp,
    /// When it was given.
    pub given: Timestamp,
    jwt: String,
}

impl Grant {
    /// After how long a new one is due: two thirds of its life.
    pub fn renew_after(&self, now: Timestamp) -> std::time::Duration {
        let life = renew_after(self.ends, self.given);
        let due = self
            .given
            .plus_seconds(i64::try_from(life.as_secs()).unwrap_or(i64::MAX));
        let left = due.unix_seconds().saturating_sub(now.unix_seconds());
        std::time::Duration::from_secs(u64::try_from(left).unwrap_or(0))
    }
}

/// The component's identity. Its NATS key is made with it, its key of TLS with each grant; neither ever
/// leaves it.
pub struct Identity {
    user: KeyPair,
    way: Way,
    client: BootstrapClient<Channel>,
    clock: Arc<dyn Clock>,
    certificate: Arc<Certificate>,
    grant: Mutex<Option<Grant>>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("user", &self.user.public_key())
            .finish_non_exhaustive()
    }
}

impl Identity {
    /// A new one, with the authorities that are mounted.
    ///
    /// # Errors
    /// The controller's address cannot be used.
    pub fn new(way: Way, authorities: &str, clock: Arc<dyn Clock>) -> anyhow::Result<Self> {
        Ok(Self {
            user: KeyPair::new_user(),
            client: connect::client(&way, authorities)?,
            way,
            clock,
            certificate: Arc::default(),
            grant: Mutex::default(),
        })
    }

    /// What both the runtime and NATS are shown; follows every renewal.
    pub fn certificate(&self) -> &Arc<Certificate> {
        &self.certificate
    }

    /// Public half of the key.
    pub fn user(&self) -> String {
        self.user.public_key()
    }

    /// The grant of the moment; a new one if two thirds of its life are over.
    ///
    /// # Errors
    /// The controller refused for good, or was not reached in time.
    pub async fn grant(&self) -> anyhow::Result<Grant> {
        let mut held = self.grant.lock().await;
        if let Some(grant) = &*held
            && !grant.renew_after(self.clock.now()).is_zero()
        {
            return Ok(grant.clone());
        }
        let grant = self.ask().await?;
        *held = Some(grant.clone());
        Ok(grant)
    }

    async fn ask(&self) -> anyhow::Result<Grant> {
        let given = self.clock.now();
        let own = OwnKey::generate()?;
        let answer = connect::persist(&self.way, |token| {
            let request = ComponentBootstrapRequest {
                service_account_token: token,
                request_id: format!("broker-{}", std::process::id()),
                nats_user: self.user.public_key(),
                nonce: String::new(),
                certificate_request: own.request(),
            };
            let mut client = self.client.clone();
            async move { client.bootstrap_component(request).await }
        });
        let answer = answer.await?.into_inner();
        let tls = answer.tls.context("the controller sent no certificate")?;
        self.certificate
            .replace(tls.certificate_chain.as_bytes(), &own.into_key())?;
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

    /// What a NATS server wants: asked at each connection, also at those that are made again.
    pub(crate) async fn answer(&self, nonce: &[u8]) -> Result<Auth, AuthError> {
        let grant = self.grant().await.map_err(AuthError::new)?;
        let mut auth = Auth::new();
        auth.jwt = Some(grant.jwt);
        auth.signature = Some(self.user.sign(nonce).map_err(AuthError::new)?);
        Ok(auth)
    }
}
