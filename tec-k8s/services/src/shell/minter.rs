//! NATS JWTs, signed by keys that never leave the vault.

use std::collections::BTreeMap;
use std::time::Duration;

use tec_core::secret::SecretBytes;
use tec_core::time::Timestamp;

use crate::caller::Refusal;
use crate::nats::{KeyKind, Nonce, PublicKey, Revocations, Scope, Unsigned};
use crate::vault::{Request, Response, Signers, call};
use crate::{caller, nats};

use super::{Keys, Vault};

/// Mints with the controller's own token: a caller may receive JWTs, but never sign them.
#[derive(Debug)]
pub struct Minter<'a> {
    vault: &'a Vault,
    token: &'a SecretBytes,
    keys: &'a Keys,
    signers: Signers,
    now: Timestamp,
}

/// Version of the identities, which are never replaced: everything names them.
const IDENTITY: u32 = 1;

/// Name of this controller's own users.
const OWN_USER: &str = "services-bootstrap";
/// The key of the operator that signs accounts.
pub const OPERATOR: &str = "operator-sk";
/// All keys that sign users.
pub const ACCOUNTS: [&str; 3] = ["account-sys-sk", "account-app-sk", "account-app-stream-sk"];
/// Keys that sign users of the system account and of the components' account.
const SYSTEM: [(&str, Scope); 1] = [("account-sys-sk", Scope::Any)];
const COMPONENTS: [(&str, Scope); 2] =
    [("account-app-sk", Scope::Component), ("account-app-stream-sk", Scope::Stream)];

/// A key of the vault: its public half, and which version of it signs.
#[derive(Clone, Debug)]
struct Key {
    name: String,
    version: u32,
    public: PublicKey,
}

impl Key {
    fn of(kind: KeyKind, name: &str, version: u32, bytes: [u8; 32]) -> Self {
        Self { name: name.to_owned(), version, public: PublicKey::new(kind, bytes) }
    }
}

impl<'a> Minter<'a> {
    /// Uses the controller's token. Recently seen keys are not requested again.
    pub fn new(
        vault: &'a Vault,
        token: &'a SecretBytes,
        keys: &'a Keys,
        signers: Signers,
        now: Timestamp,
    ) -> Self {
        Self { vault, token, keys, signers, now }
    }

    async fn call(&self, request: Request) -> Result<Response, Refusal> {
        let answer = self.vault.call(&request.by(self.token)).await;
        let answer = answer.map_err(|_| Refusal::VaultDown)?;
        match answer.status {
            200..=299 => Ok(answer),
            // The controller's own token: a problem with it is not the caller's fault.
            403 => Err(Refusal::NotBootstrapped),
            _ => Err(caller::classify_call(&answer)),
        }
    }

    /// A version of one of the platform's own keys.
    async fn key(&self, kind: KeyKind, name: &str, version: u32) -> Result<Key, Refusal> {
        if let Some(bytes) = self.keys.seen(name, version, self.now) {
            return Ok(Key::of(kind, name, version, bytes));
        }
        let versions = call::public_keys(&self.call(call::read_key(name)).await?);
        let versions = versions.map_err(|_| Refusal::VaultError)?;
        let bytes = versions.get(&version).copied().ok_or(Refusal::VaultError)?;
        self.keys.see(name, versions, self.now);
        Ok(Key::of(kind, name, version, bytes))
    }

    /// Makes sure that a key has this version.
    pub async fn ensure_version(&self, name: &str, version: u32) -> Result<(), Refusal> {
        let versions = call::public_keys(&self.call(call::read_key(name)).await?);
        let versions = versions.map_err(|_| Refusal::VaultError)?;
        // Another pod may create one at the same time: it is there for the next replacement.
        if versions.keys().last().is_none_or(|last| *last < version) {
            self.call(call::rotate_key(name)).await?;
        }
        Ok(())
    }

    /// The operator's signing key of this version.
    pub async fn operator_key(&self, version: u32) -> Result<PublicKey, Refusal> {
        Ok(self.key(KeyKind::Operator, OPERATOR, version).await?.public)
    }

    /// Signs with a key of one user: nobody else waits for it.
    async fn sign(&self, key: &Key, message: &[u8]) -> Result<[u8; 64], Refusal> {
        let signatures = self.sign_all(key, vec![message.to_vec()]).await;
        signatures.into_iter().next().unwrap_or(Err(Refusal::VaultError))
    }

    /// As many signatures as messages.
    async fn sign_all(&self, key: &Key, messages: Vec<Vec<u8>>) -> Vec<Result<[u8; 64], Refusal>> {
        let request = call::sign(&key.name, key.version, &messages);
        let signatures = self
            .call(request)
            .await
            .and_then(|answer| call::signatures(&answer).map_err(|_| Refusal::VaultError));
        match signatures {
            Ok(signatures) => {
                signatures.into_iter().map(|one| one.ok_or(Refusal::VaultError)).collect()
            }
            Err(refusal) => vec![Err(refusal); messages.len()],
        }
    }

    /// Signs with a key of the platform, together with what others want signed at this moment.
    async fn signed(&self, key: &Key, unsigned: &Unsigned) -> Result<String, Refusal> {
        let signing = self.keys.signing(&key.name, key.version);
        let message = unsigned.message().to_vec();
        let signature = signing.ask(message, |messages| self.sign_all(key, messages)).await;
        Ok(unsigned.signed(&signature.unwrap_or(Err(Refusal::VaultError))?))
    }

    /// JWT of the operator, and the key of the system account.
    pub async fn operator(&self) -> Result<(String, PublicKey), Refusal> {
        let (own, system) = tokio::try_join!(
            self.key(KeyKind::Operator, "operator", IDENTITY),
            self.key(KeyKind::Account, "account-sys", IDENTITY),
        )?;
        let mut signing_keys = Vec::new();
        for version in self.signers.operator.trusted() {
            signing_keys.push(self.operator_key(version).await?);
        }
        let operator = nats::Operator {
            name: "tec".to_owned(),
            key: own.public,
            signing_keys,
            system_account: system.public,
        };
        let jwt = self.signed(&own, &operator.unsigned(self.now)).await?;
        Ok((jwt, operator.system_account))
    }

    /// JWTs of the accounts, by their key.
    pub async fn accounts(
        &self,
        revocations: Revocations,
    ) -> Result<BTreeMap<PublicKey, String>, Refusal> {
        // Boxed, since each holds several calls to the vault.
        let (system, app) = tokio::try_join!(
            Box::pin(self.account("SYS", "account-sys", &SYSTEM, Revocations::new())),
            Box::pin(self.account("APP", "account-app", &COMPONENTS, revocations)),
        )?;
        Ok(BTreeMap::from([system, app]))
    }

    async fn account(
        &self,
        name: &str,
        key: &str,
        signing: &[(&str, Scope)],
        revocations: Revocations,
    ) -> Result<(PublicKey, String), Refusal> {
        let (own, operator) = tokio::try_join!(
            self.key(KeyKind::Account, key, IDENTITY),
            self.key(KeyKind::Operator, OPERATOR, self.signers.operator.signs),
        )?;
        let mut signing_keys = Vec::new();
        for version in self.signers.accounts.trusted() {
            for &(name, scope) in signing {
                let key = self.key(KeyKind::Account, name, version).await?;
                signing_keys.push((key.public, scope));
            }
        }
        let account = nats::Account {
            name: name.to_owned(),
            key: own.public,
            issuer: operator.public,
            signing_keys,
            revocations,
        };
        let jwt = self.signed(&operator, &account.unsigned(self.now)).await?;
        Ok((account.key, jwt))
    }

    /// JWT of a component's user.
    pub async fn component(
        &self,
        component: &caller::Account,
        user: PublicKey,
        life: Duration,
    ) -> Result<Minted, Refusal> {
        self.user(Scope::Component, nats::user_name(component), user, life).await
    }

    /// JWT of a user of the system account, who may push accounts.
    pub async fn system(&self, user: PublicKey, life: Duration) -> Result<String, Refusal> {
        Ok(self.user(Scope::Any, OWN_USER.to_owned(), user, life).await?.jwt)
    }

    /// JWT of a user in the components' account who may only create the stream of events.
    pub async fn stream(&self, user: PublicKey, life: Duration) -> Result<String, Refusal> {
        Ok(self.user(Scope::Stream, OWN_USER.to_owned(), user, life).await?.jwt)
    }

    /// JWT of a user of the account whose key grants this.
    async fn user(
        &self,
        scope: Scope,
        name: String,
        key: PublicKey,
        life: Duration,
    ) -> Result<Minted, Refusal> {
        let (account, signing) = match scope {
            Scope::Component => ("account-app", "account-app-sk"),
            Scope::Stream => ("account-app", "account-app-stream-sk"),
            Scope::Any => ("account-sys", "account-sys-sk"),
        };
        let (account, issuer) = tokio::try_join!(
            self.key(KeyKind::Account, account, IDENTITY),
            self.key(KeyKind::Account, signing, self.signers.accounts.signs),
        )?;
        let expires = self.after(life);
        let (account, by) = (account.public, issuer.public);
        let user = nats::User { name, key, account, issuer: by, scope, expires };
        let unsigned = user.unsigned(self.now);
        let jwt = self.signed(&issuer, &unsigned).await?;
        Ok(Minted { jwt, expires, id: unsigned.id().to_owned() })
    }

    fn after(&self, life: Duration) -> Timestamp {
        self.now.plus_seconds(i64::try_from(life.as_secs()).unwrap_or(i64::MAX))
    }

    /// The user whose key the vault keeps; created on the first call.
    pub async fn kept_user(&self, account_uid: &str) -> Result<KeptUser, Refusal> {
        let name = user_key(account_uid)?;
        let made = self.call(call::ensure_key(&name)).await?;
        let latest = |answer: &Response| call::public_keys(answer).ok()?.pop_last();
        let (version, bytes) = match latest(&made) {
            Some(half) => half,
            // Vault only reports that it exists.
            None => latest(&self.call(call::read_key(&name)).await?).ok_or(Refusal::VaultError)?,
        };
        Ok(KeptUser(Key::of(KeyKind::User, &name, version, bytes)))
    }

    /// Signs a server's nonce with the user's key in the vault.
    pub async fn sign_nonce(&self, user: &KeptUser, nonce: &Nonce) -> Result<[u8; 64], Refusal> {
        self.sign(&user.0, nonce.as_bytes()).await
    }
}

/// JWT of a user.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Minted {
    /// The JWT.
    pub jwt: String,
    /// When it expires.
    pub expires: Timestamp,
    /// Its ID, `jti`.
    pub id: String,
}

/// A user whose key is in the vault.
#[derive(Clone, Debug)]
pub struct KeptUser(Key);

impl KeptUser {
    /// Its public key.
    pub fn public(&self) -> PublicKey {
        self.0.public
    }
}

/// The identity becomes part of a path, so it must have no special characters.
fn user_key(account_uid: &str) -> Result<String, Refusal> {
    if caller::is_label(account_uid) {
        Ok(format!("user-{account_uid}"))
    } else {
        Err(Refusal::VaultError)
    }
}
