//! Answers to bootstrap requests: login in the caller's name first, everything else after it.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::RwLock;
use std::time::Duration;
use std::time::Instant;

use tec_core::port::Clock;
use tec_core::port::Entropy;
use tec_core::port::EntropyRng;
use tec_core::secret::SecretArray;
use tec_core::secret::SecretBytes;
use tec_core::service::Rates;
use tec_core::service::caller;
use tec_core::service::caller::Claims;
use tec_core::service::caller::REVIEW_TIMEOUT;
use tec_core::service::caller::Refusal;
use tec_core::service::caller::Reviewer;
use tec_core::service::caller::Role;
use tec_core::service::nats;
use tec_core::service::nats::KeyKind;
use tec_core::service::nats::Nonce;
use tec_core::service::nats::PublicKey;
use tec_core::service::opensearch;
use tec_core::service::tls::Material;
use tec_core::service::vault::OPENSEARCH_USERS;
use tec_core::service::vault::Request;
use tec_core::service::vault::call;
use tec_core::service::vault::call::Login;
use tec_core::service::vault::password;
use tec_core::service::vault::password::Stored;
use tec_core::time::Timestamp;
use tokio::sync::Semaphore;

use super::Cluster;
use super::Disk;
use super::Minter;
use super::Vault;

/// An API server that is up answers by then; callers wait meanwhile.
const PROBE: Duration = Duration::from_secs(2);

/// What can be set.
#[derive(Clone, Debug)]
#[expect(
    clippy::exhaustive_structs,
    reason = "every part is the caller's decision"
)]
pub struct Settings {
    /// Audience that a caller's token must name.
    pub audience: String,
    /// Life of a user's JWT.
    pub user_life: Duration,
    /// Calls at the same time; each costs the API server a review.
    pub concurrency: usize,
    /// Calls of an account in a minute, also all at once.
    pub calls_per_minute: NonZeroU32,
}

/// The controller's own token of the vault, replaced as it is renewed.
#[derive(Debug, Default)]
pub struct Standing(RwLock<Option<Arc<SecretBytes>>>);

impl Standing {
    /// From now on this token.
    pub fn replace(&self, token: SecretBytes) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(token));
    }

    /// The token of the moment.
    ///
    /// # Errors
    /// [`Refusal::NotBootstrapped`] until there is one.
    pub fn token(&self) -> Result<Arc<SecretBytes>, Refusal> {
        let token = self.0.read().unwrap_or_else(PoisonError::into_inner);
        token.clone().ok_or(Refusal::NotBootstrapped)
    }
}

/// What a NATS server gets.
#[derive(Debug)]
#[non_exhaustive]
pub struct NatsServer {
    /// JWT of the operator.
    pub operator: String,
    /// Key of the system account.
    pub system_account: PublicKey,
    /// JWTs of accounts, by their key.
    pub accounts: BTreeMap<PublicKey, String>,
    /// The server's certificate.
    pub tls: Material,
}

/// What an OpenSearch node gets.
#[derive(Debug)]
#[non_exhaustive]
pub struct OpenSearchNode {
    /// The node's certificate.
    pub node: Material,
    /// The certificate that may do everything.
    pub admin: Material,
    /// bcrypt hashes, by the name of the user.
    pub hashes: BTreeMap<String, String>,
}

/// What the broker of a component gets.
#[derive(Debug)]
#[non_exhaustive]
pub struct Component {
    /// JWT of the user.
    pub user_jwt: String,
    /// Whose JWT it is.
    pub user: PublicKey,
    /// Over the nonce, if there was one.
    pub signature: Option<[u8; 64]>,
    /// When the JWT ends.
    pub expires: Timestamp,
    /// Name of the user.
    pub name: String,
    /// The broker's certificate.
    pub tls: Material,
}

/// Which side of telemetry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are these three")]
pub enum TelemetryKind {
    /// Receives.
    Collector,
    /// Sends.
    Sender,
    /// Reads.
    Viewer,
}

/// What a collector, sender or viewer gets.
#[derive(Debug)]
#[non_exhaustive]
pub struct Telemetry {
    /// Its certificate; none for a viewer.
    pub tls: Option<Material>,
    /// Password of the user `telemetry` for collectors, of the user `viewer` for viewers.
    pub password: Option<SecretBytes>,
}

/// Answers bootstrap requests.
#[derive(Debug)]
pub struct Bootstrap {
    vault: Vault,
    cluster: Arc<dyn Cluster>,
    disk: Arc<dyn Disk>,
    standing: Arc<Standing>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    rates: Mutex<Rates>,
    settings: Settings,
    slots: Semaphore,
}

impl Bootstrap {
    /// Over these.
    pub fn new(
        vault: Vault,
        cluster: Arc<dyn Cluster>,
        disk: Arc<dyn Disk>,
        standing: Arc<Standing>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        settings: Settings,
    ) -> Self {
        Self {
            vault,
            cluster,
            disk,
            standing,
            clock,
            entropy,
            rates: Mutex::new(Rates::new(settings.calls_per_minute)),
            slots: Semaphore::new(settings.concurrency),
            settings,
        }
    }

    /// For a NATS server.
    ///
    /// # Errors
    /// [`Refusal`], as for every call here.
    pub async fn nats(&self, token: &SecretBytes) -> Result<NatsServer, Refusal> {
        let _slot = self.slots.try_acquire().map_err(|_| Refusal::Rate)?;
        let login = self.log_in(Role::Nats, token).await?;
        let own = self.standing.token()?;
        let minter = Minter::new(&self.vault, &own, self.clock.now());
        let (operator, system_account) = minter.operator().await?;
        let revocations = self.cluster.revocations().await;
        let revocations = revocations.map_err(|_| Refusal::ReviewDown)?;
        Ok(NatsServer {
            operator,
            system_account,
            accounts: minter.accounts(revocations).await?,
            tls: self.issue(&login, "nats").await?,
        })
    }

    /// For an OpenSearch node.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn opensearch(&self, token: &SecretBytes) -> Result<OpenSearchNode, Refusal> {
        let _slot = self.slots.try_acquire().map_err(|_| Refusal::Rate)?;
        let login = self.log_in(Role::OpenSearch, token).await?;
        let mut hashes = BTreeMap::new();
        for user in OPENSEARCH_USERS {
            let password = self.password(&login, user).await?;
            hashes.insert(user.to_owned(), self.hash(password).await?);
        }
        let admin = call::issue("opensearch-admin", "opensearch-admin", &[]);
        Ok(OpenSearchNode {
            node: self.issue(&login, "opensearch").await?,
            admin: self.certificate(&login, admin).await?,
            hashes,
        })
    }

    /// For the broker of a component: with a key of its own, or with one that the vault keeps.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn component(
        &self,
        token: &SecretBytes,
        user: Option<PublicKey>,
        nonce: Option<&Nonce>,
    ) -> Result<Component, Refusal> {
        let _slot = self.slots.try_acquire().map_err(|_| Refusal::Rate)?;
        let login = self.log_in(Role::Component, token).await?;
        let own = self.standing.token()?;
        let minter = Minter::new(&self.vault, &own, self.clock.now());
        let (user, signature) = match (user, nonce) {
            (Some(user), None) if user.kind() == KeyKind::User => (user, None),
            // No user's key, or a nonce that its own key has to sign.
            (Some(_), _) => return Err(Refusal::BadRequest),
            (None, nonce) => {
                let user = minter.kept_user(&login.account_uid).await?;
                let signature = match nonce {
                    Some(nonce) => Some(minter.sign_nonce(&login.account_uid, nonce).await?),
                    None => None,
                };
                (user, signature)
            }
        };
        let life = self.settings.user_life;
        let (user_jwt, expires) = minter.component(&login.account, user, life).await?;
        Ok(Component {
            user_jwt,
            user,
            signature,
            expires,
            name: nats::user_name(&login.account),
            tls: self.issue(&login, "component").await?,
        })
    }

    /// Signs a nonce with the key that the vault keeps for the caller, and mints a fresh JWT.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn sign_nonce(
        &self,
        token: &SecretBytes,
        nonce: &Nonce,
    ) -> Result<([u8; 64], String), Refusal> {
        let _slot = self.slots.try_acquire().map_err(|_| Refusal::Rate)?;
        let login = self.log_in(Role::Component, token).await?;
        let own = self.standing.token()?;
        let minter = Minter::new(&self.vault, &own, self.clock.now());
        let user = minter.kept_user(&login.account_uid).await?;
        let signature = minter.sign_nonce(&login.account_uid, nonce).await?;
        let life = self.settings.user_life;
        let (jwt, _) = minter.component(&login.account, user, life).await?;
        Ok((signature, jwt))
    }

    /// For a collector, sender or viewer of telemetry.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn telemetry(
        &self,
        token: &SecretBytes,
        kind: TelemetryKind,
    ) -> Result<Telemetry, Refusal> {
        let _slot = self.slots.try_acquire().map_err(|_| Refusal::Rate)?;
        let role = match kind {
            TelemetryKind::Collector => Role::Collector,
            TelemetryKind::Sender => Role::Tracer,
            TelemetryKind::Viewer => Role::Viewer,
        };
        let login = self.log_in(role, token).await?;
        let password = match kind {
            TelemetryKind::Collector => Some(self.password(&login, "telemetry").await?),
            TelemetryKind::Viewer => Some(self.password(&login, "viewer").await?),
            TelemetryKind::Sender => None,
        };
        let tls = match kind {
            TelemetryKind::Viewer => None,
            _ => Some(self.issue(&login, role.as_str()).await?),
        };
        Ok(Telemetry { tls, password })
    }

    /// For the controller of another pod of the vault: the key as it lies on disk, wrapped.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn wrapped_key(&self, token: &SecretBytes) -> Result<Vec<u8>, Refusal> {
        let _slot = self.slots.try_acquire().map_err(|_| Refusal::Rate)?;
        self.log_in(Role::Peer, token).await?;
        let file = self.disk.read().map_err(|error| {
            tracing::warn!(%error, "cannot read the wrapped key");
            Refusal::NotBootstrapped
        })?;
        file.ok_or(Refusal::NotBootstrapped)
    }

    /// Exchanges the token. The role follows from the call, the identity from the vault.
    async fn log_in(&self, role: Role, token: &SecretBytes) -> Result<Login, Refusal> {
        let claims = Claims::read(token, &self.settings.audience, self.clock.now())?;
        // An account that has no call left costs no review.
        if !self.rates().allows(&claims.account, self.clock.now()) {
            return Err(Refusal::Rate);
        }
        let began = Instant::now();
        let Ok(answer) = self.vault.call(&call::log_in(role, token)).await else {
            // A vault that waits for the API server may outlast the deadline of the call.
            return Err(match self.reviewer().await {
                Reviewer::Down => Refusal::ReviewDown,
                Reviewer::Up => Refusal::VaultDown,
            });
        };
        let took = began.elapsed();
        match call::logged_in(&answer) {
            Some(login) if login.account == claims.account => {
                let (account, role) = (&login.account, role.as_str());
                tracing::info!(target: "audit", %account, role, "the vault knows the caller");
                let taken = self.rates().take(&login.account, self.clock.now());
                taken.then_some(login).ok_or(Refusal::Rate)
            }
            Some(_) => Err(Refusal::VaultError),
            None => {
                let reviewer = match answer.status {
                    // What took so long needs no second look.
                    403 if took < REVIEW_TIMEOUT => self.reviewer().await,
                    _ => Reviewer::Up,
                };
                Err(caller::classify_login(&answer, took, reviewer))
            }
        }
    }

    fn rates(&self) -> MutexGuard<'_, Rates> {
        self.rates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn reviewer(&self) -> Reviewer {
        match tokio::time::timeout(PROBE, self.cluster.is_up()).await {
            Ok(true) => Reviewer::Up,
            _ => Reviewer::Down,
        }
    }

    async fn issue(&self, login: &Login, role: &str) -> Result<Material, Refusal> {
        let host = login.account.host();
        let hosts = match role {
            // No server: nobody connects to it by name.
            "telemetry-client" => vec![host.clone()],
            _ => vec![host.clone(), "localhost".to_owned()],
        };
        self.certificate(login, call::issue(role, &host, &hosts))
            .await
    }

    async fn certificate(&self, login: &Login, request: Request) -> Result<Material, Refusal> {
        let answer = self.vault.call(&request.by(&login.token)).await;
        let answer = answer.map_err(|_| Refusal::VaultDown)?;
        let tls = Material::from_issued(&answer).map_err(|_| caller::classify_call(&answer))?;
        tracing::info!(account = %login.account, serial = %tls.serial, "certificate issued");
        Ok(tls)
    }

    async fn password(&self, login: &Login, user: &str) -> Result<SecretBytes, Refusal> {
        let request = password::read(user).by(&login.token);
        let answer = self.vault.call(&request).await;
        let answer = answer.map_err(|_| Refusal::VaultDown)?;
        let stored = Stored::from_answer(&answer);
        let stored = stored.map_err(|_| caller::classify_call(&answer))?;
        Ok(stored.password)
    }

    /// A quarter of a second of work, away from the threads that answer.
    async fn hash(&self, password: SecretBytes) -> Result<String, Refusal> {
        let salt = SecretArray::random(&mut EntropyRng::new(&*self.entropy));
        let work = move || opensearch::hash(&password, &salt, opensearch::BCRYPT_COST);
        let hash = tokio::task::spawn_blocking(work).await;
        hash.ok().and_then(Result::ok).ok_or(Refusal::VaultError)
    }
}
