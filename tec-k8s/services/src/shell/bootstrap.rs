//! Answers bootstrap requests: first logs in on behalf of the caller, then does everything else.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::caller::{Claims, Pod, REVIEW_TIMEOUT, Refusal, Reviewer, Role};
use crate::nats::{KeyKind, Nonce, PublicKey};
use crate::tls::{Material, SigningRequest};
use crate::vault::call::{Login, Subject};
use crate::vault::password::Stored;
use crate::vault::{OPENSEARCH_USERS, call, password};
use crate::{Rates, caller, nats, opensearch};
use tec_core::port::{Clock, Entropy, EntropyRng, chain};
use tec_core::secret::{SecretArray, SecretBytes};

use super::sessions::Sessions;
use super::slots::Slots;
use super::{
    ApiServer, Component, ComponentCall, Disk, Keys, Minter, NatsServer, Note, OpenSearchNode,
    Settings, Standing, Telemetry, TelemetryKind, Vault, Visit,
};

/// Time limit of a login: together with the check of the API server that follows, a call is answered within
/// its ten seconds.
const LOGIN: Duration = Duration::from_secs(7);
/// Time limit of the check: an API server that is up answers by then, and callers wait for it.
const PROBE: Duration = Duration::from_secs(2);

/// A caller that the vault knows.
#[derive(Debug)]
struct Caller {
    login: Login,
    /// The pod that its token is bound to.
    pod: Option<Pod>,
}

/// Answers bootstrap requests.
#[derive(Debug)]
pub struct Bootstrap {
    vault: Vault,
    cluster: Arc<ApiServer>,
    disk: Arc<dyn Disk>,
    standing: Arc<Standing>,
    keys: Keys,
    sessions: Sessions<Caller>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    rates: Mutex<Rates>,
    settings: Settings,
    slots: Slots,
}

impl Bootstrap {
    /// Uses these parts.
    pub fn new(
        vault: Vault,
        cluster: Arc<ApiServer>,
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
            keys: Keys::default(),
            sessions: Sessions::default(),
            clock,
            entropy,
            rates: Mutex::new(Rates::new(settings.calls_per_minute)),
            slots: Slots::new(settings.concurrency),
            settings,
        }
    }

    /// Answers a NATS server.
    pub async fn nats(
        &self,
        visit: &Visit,
        token: &SecretBytes,
        own_key: Option<&SigningRequest>,
    ) -> Result<NatsServer, Refusal> {
        let _slot = self.slots.enter(visit.source)?;
        let caller = self.log_in(visit, Role::Nats, token).await?;
        let own = self.standing.token()?;
        let minter = self.minter(&own)?;
        let accounts = async {
            let revocations = self.cluster.revocations().await;
            let revocations = revocations.map_err(|_| Refusal::ReviewDown)?;
            minter.accounts(revocations).await
        };
        let ((operator, system_account), accounts, tls) = tokio::try_join!(
            minter.operator(),
            accounts,
            self.issue(visit, &caller, "nats", own_key),
        )?;
        Ok(NatsServer { operator, system_account, accounts, tls })
    }

    /// Answers an OpenSearch node.
    pub async fn opensearch(
        &self,
        visit: &Visit,
        token: &SecretBytes,
    ) -> Result<OpenSearchNode, Refusal> {
        let _slot = self.slots.enter(visit.source)?;
        let caller = self.log_in(visit, Role::OpenSearch, token).await?;
        let mut hashes = BTreeMap::new();
        for user in OPENSEARCH_USERS {
            let password = self.password(&caller.login, user).await?;
            hashes.insert(user.to_owned(), self.hash(password).await?);
        }
        let admin = Subject::named("opensearch-admin");
        Ok(OpenSearchNode {
            node: self.issue(visit, &caller, "opensearch", None).await?,
            admin: self.certificate(visit, &caller.login, "opensearch-admin", &admin, None).await?,
            hashes,
        })
    }

    /// Answers the broker of a component, which has its own key or one that the vault keeps.
    pub async fn component(
        &self,
        visit: &Visit,
        token: &SecretBytes,
        call: &ComponentCall,
    ) -> Result<Component, Refusal> {
        let _slot = self.slots.enter(visit.source)?;
        let caller = self.component_caller(visit, token).await?;
        let own = self.standing.token()?;
        let minter = self.minter(&own)?;
        let (login, life) = (&caller.login, self.settings.user_life);
        let mint = async {
            let (user, signature) = user_of(&minter, login, call).await?;
            let minted = minter.component(&login.account, user, life).await?;
            visit.minted(user, minted.id);
            Ok((user, signature, minted.jwt, minted.expires))
        };
        // JWT and certificate are independent.
        let answer = tokio::try_join!(
            mint,
            self.issue(visit, &caller, "component", call.certificate.as_ref()),
        );
        // Its login may be the reason, so a second try begins with a new one.
        let answer = answer.inspect_err(|_| self.sessions.forget(token));
        let ((user, signature, user_jwt, expires), tls) = answer?;
        Ok(Component {
            user_jwt,
            user,
            signature,
            expires,
            name: nats::user_name(&login.account),
            tls,
        })
    }

    /// Signs a nonce with the key that the vault keeps for the caller, and mints a fresh JWT.
    pub async fn sign_nonce(
        &self,
        visit: &Visit,
        token: &SecretBytes,
        nonce: &Nonce,
    ) -> Result<([u8; 64], String), Refusal> {
        let _slot = self.slots.enter(visit.source)?;
        let caller = self.component_caller(visit, token).await?;
        let login = &caller.login;
        let own = self.standing.token()?;
        let minter = self.minter(&own)?;
        let user = minter.kept_user(&login.account_uid).await?;
        let life = self.settings.user_life;
        let (signature, minted) = tokio::try_join!(
            minter.sign_nonce(&user, nonce),
            minter.component(&login.account, user.public(), life),
        )?;
        visit.minted(user.public(), minted.id);
        Ok((signature, minted.jwt))
    }

    /// Answers a collector, sender or viewer of telemetry.
    pub async fn telemetry(
        &self,
        visit: &Visit,
        token: &SecretBytes,
        kind: TelemetryKind,
        own_key: Option<&SigningRequest>,
    ) -> Result<Telemetry, Refusal> {
        let _slot = self.slots.enter(visit.source)?;
        let (role, user) = match kind {
            TelemetryKind::Collector => (Role::Collector, Some("telemetry")),
            TelemetryKind::Sender => (Role::Tracer, None),
            TelemetryKind::Viewer => (Role::Viewer, Some("viewer")),
        };
        let caller = self.log_in(visit, role, token).await?;
        let password = match user {
            Some(user) => Some(self.password(&caller.login, user).await?),
            None => None,
        };
        let tls = match kind {
            TelemetryKind::Viewer => None,
            _ => Some(self.issue(visit, &caller, role.as_str(), own_key).await?),
        };
        Ok(Telemetry { tls, password })
    }

    /// Answers the controller of another pod of the vault: returns the wrapped key, as stored on disk.
    pub async fn wrapped_key(
        &self,
        visit: &Visit,
        token: &SecretBytes,
    ) -> Result<Vec<u8>, Refusal> {
        let _slot = self.slots.enter(visit.source)?;
        self.log_in(visit, Role::Peer, token).await?;
        let file = self.disk.read(Note::Key).map_err(|error| {
            tracing::warn!(%error, "cannot read the wrapped key");
            Refusal::NotBootstrapped
        })?;
        file.ok_or(Refusal::NotBootstrapped)
    }

    /// Logs a component in, unless it did so a moment ago. Its calls are counted either way.
    async fn component_caller(
        &self,
        visit: &Visit,
        token: &SecretBytes,
    ) -> Result<Arc<Caller>, Refusal> {
        let role = Role::Component;
        let now = self.clock.now();
        if let Some(caller) = self.sessions.seen(token, now) {
            visit.claims(role, &Claims::read(token, &self.settings.platform.audience, now)?);
            visit.is_of(&caller.login.account);
            let taken = self.rates.lock().take(&caller.login.account, now);
            return taken.then_some(caller).ok_or(Refusal::Rate);
        }
        let caller = Arc::new(self.log_in(visit, role, token).await?);
        self.sessions.see(token, Arc::clone(&caller), now);
        Ok(caller)
    }

    /// Exchanges the token. The call determines the role, the vault the identity.
    async fn log_in(
        &self,
        visit: &Visit,
        role: Role,
        token: &SecretBytes,
    ) -> Result<Caller, Refusal> {
        let claims = Claims::read(token, &self.settings.platform.audience, self.clock.now())?;
        visit.claims(role, &claims);
        // An account that has no calls left costs no token review.
        if !self.rates.lock().allows(&claims.account, self.clock.now()) {
            return Err(Refusal::Rate);
        }
        let began = Instant::now();
        let request = call::log_in(role, token);
        let answer = tokio::time::timeout(LOGIN, self.vault.call(&request)).await;
        let Ok(Ok(answer)) = answer else {
            // A vault that waits for the API server exceeds the deadline of the call.
            return Err(match self.reviewer().await {
                Reviewer::Down => Refusal::ReviewDown,
                Reviewer::Up => Refusal::VaultDown,
            });
        };
        let took = began.elapsed();
        match call::logged_in(&answer) {
            Some(login) if login.account == claims.account => {
                visit.is_of(&login.account);
                if !self.settings.platform.admits(role, &login.account) {
                    return Err(Refusal::NotBound);
                }
                let taken = self.rates.lock().take(&login.account, self.clock.now());
                // The vault had the token reviewed: all its claims hold.
                let pod = claims.pod;
                taken.then_some(Caller { login, pod }).ok_or(Refusal::Rate)
            }
            Some(_) => Err(Refusal::VaultError),
            None => {
                let reviewer = match answer.status {
                    // A call that took this long needs no second check.
                    403 if took < REVIEW_TIMEOUT => self.reviewer().await,
                    _ => Reviewer::Up,
                };
                Err(caller::classify_login(&answer, took, reviewer))
            }
        }
    }

    async fn reviewer(&self) -> Reviewer {
        match tokio::time::timeout(PROBE, self.cluster.is_up()).await {
            Ok(true) => Reviewer::Up,
            _ => Reviewer::Down,
        }
    }

    fn minter<'a>(&'a self, own: &'a SecretBytes) -> Result<Minter<'a>, Refusal> {
        let signers = self.standing.signers()?;
        Ok(Minter::new(&self.vault, own, &self.keys, signers, self.clock.now()))
    }

    /// Issues a certificate for the caller's own names, and the addresses of its pod.
    async fn issue(
        &self,
        visit: &Visit,
        caller: &Caller,
        role: &str,
        own_key: Option<&SigningRequest>,
    ) -> Result<Material, Refusal> {
        let common_name = caller.login.account.host();
        let subject = match role {
            // Not a server: nobody connects to it.
            "telemetry-client" => {
                Subject { hosts: vec![common_name.clone()], common_name, addresses: Vec::new() }
            }
            _ => Subject {
                hosts: hosts(role, caller, &common_name),
                common_name,
                addresses: self.addresses(caller).await?,
            },
        };
        self.certificate(visit, &caller.login, role, &subject, own_key).await
    }

    /// Addresses of the pod that the token is bound to, from the API server; none if it is bound to none.
    async fn addresses(&self, caller: &Caller) -> Result<Vec<IpAddr>, Refusal> {
        let Some(claimed) = &caller.pod else {
            return Ok(Vec::new());
        };
        let account = &caller.login.account;
        let pod = self.cluster.pod(account.namespace(), &claimed.name).await;
        let pod = pod.map_err(|error| {
            tracing::warn!(error = %chain(&error), "cannot look at the caller's pod");
            Refusal::ReviewDown
        })?;
        match pod {
            Some(pod) if pod.ended => {
                tracing::warn!(pod = claimed.name, "the caller's pod has ended");
                Err(Refusal::TokenInvalid)
            }
            Some(pod) if pod.uid == claimed.uid && pod.account == account.name() => {
                if pod.on_host {
                    return Ok(Vec::new());
                }
                let is_known = !pod.addresses.is_empty();
                is_known.then_some(pod.addresses).ok_or(Refusal::PodPending)
            }
            // Reviews are cached for some seconds: this pod no longer exists.
            _ => Err(Refusal::TokenInvalid),
        }
    }

    async fn certificate(
        &self,
        visit: &Visit,
        login: &Login,
        role: &str,
        subject: &Subject,
        own_key: Option<&SigningRequest>,
    ) -> Result<Material, Refusal> {
        let request = match own_key {
            Some(own_key) => call::certify(role, subject, own_key),
            None => call::issue(role, subject),
        };
        let answer = self.vault.call(&request.by(&login.token)).await;
        let answer = answer.map_err(|_| Refusal::VaultDown)?;
        let tls = match own_key {
            Some(_) => Material::from_signed(&answer),
            None => Material::from_issued(&answer),
        };
        let mut tls = tls.map_err(|_| caller::classify_call(&answer))?;
        visit.issued(&tls.serial);
        tls.authorities = self.standing.authorities()?.to_string();
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

    /// Takes a quarter of a second, so it does not run on the threads that answer calls.
    async fn hash(&self, password: SecretBytes) -> Result<String, Refusal> {
        let salt = SecretArray::random(&mut EntropyRng::new(&*self.entropy));
        let work = move || opensearch::hash(&password, &salt, opensearch::BCRYPT_COST);
        let hash = tokio::task::spawn_blocking(work).await;
        hash.ok().and_then(Result::ok).ok_or(Refusal::VaultError)
    }
}

/// Names by which others reach the caller.
fn hosts(role: &str, caller: &Caller, name: &str) -> Vec<String> {
    let mut hosts = vec![name.to_owned(), "localhost".to_owned()];
    // Servers of a cluster reach each other by the names of their pods.
    if let ("nats", Some(pod)) = (role, &caller.pod) {
        hosts.push(format!("{}.{name}", pod.name));
    }
    hosts
}

/// The user of the JWT, and the signature of the nonce, if there is one.
async fn user_of(
    minter: &Minter<'_>,
    login: &Login,
    call: &ComponentCall,
) -> Result<(PublicKey, Option<[u8; 64]>), Refusal> {
    match (call.user, &call.nonce) {
        (Some(user), None) if user.kind() == KeyKind::User => Ok((user, None)),
        // Not a user's key, or a nonce that its own key has to sign.
        (Some(_), _) => Err(Refusal::BadRequest),
        (None, nonce) => {
            let user = minter.kept_user(&login.account_uid).await?;
            let signature = match nonce {
                Some(nonce) => Some(minter.sign_nonce(&user, nonce).await?),
                None => None,
            };
            Ok((user.public(), signature))
        }
    }
}
