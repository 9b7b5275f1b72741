//! JWTs of NATS, signed by keys that never leave the vault.

use std::collections::BTreeMap;
use std::time::Duration;

use tec_core::secret::SecretBytes;
use tec_core::service::caller;
use tec_core::service::caller::Refusal;
use tec_core::service::nats;
use tec_core::service::nats::KeyKind;
use tec_core::service::nats::Nonce;
use tec_core::service::nats::PublicKey;
use tec_core::service::nats::Revocations;
use tec_core::service::nats::Scope;
use tec_core::service::nats::Unsigned;
use tec_core::service::vault::Request;
use tec_core::service::vault::Response;
use tec_core::service::vault::call;
use tec_core::time::Timestamp;

use super::Vault;

/// Mints with the controller's own token: a caller may have JWTs, never sign them.
#[derive(Debug)]
pub struct Minter<'a> {
    vault: &'a Vault,
    token: &'a SecretBytes,
    now: Timestamp,
}

impl<'a> Minter<'a> {
    /// With the controller's token.
    pub fn new(vault: &'a Vault, token: &'a SecretBytes, now: Timestamp) -> Self {
        Self { vault, token, now }
    }

    async fn call(&self, request: Request) -> Result<Response, Refusal> {
        let answer = self.vault.call(&request.by(self.token)).await;
        let answer = answer.map_err(|_| Refusal::VaultDown)?;
        match answer.status {
            200..=299 => Ok(answer),
            // The controller's own token: whatever is wrong with it is no fault of the caller.
            403 => Err(Refusal::NotBootstrapped),
            _ => Err(caller::classify_call(&answer)),
        }
    }

    async fn key(&self, kind: KeyKind, name: &str) -> Result<PublicKey, Refusal> {
        let answer = self.call(call::read_key(name)).await?;
        let bytes = call::public_key(&answer).ok().flatten();
        Ok(PublicKey::new(kind, bytes.ok_or(Refusal::VaultError)?))
    }

    async fn sign(&self, key: &str, message: &[u8]) -> Result<[u8; 64], Refusal> {
        let answer = self.call(call::sign(key, message)).await?;
        let signature = call::signature(&answer).ok().flatten();
        signature.ok_or(Refusal::VaultError)
    }

    async fn signed(&self, key: &str, unsigned: &Unsigned) -> Result<String, Refusal> {
        let signature = self.sign(key, unsigned.message()).await?;
        Ok(unsigned.signed(&signature))
    }

    /// JWT of the operator, and the key of the system account.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn operator(&self) -> Result<(String, PublicKey), Refusal> {
        let operator = nats::Operator {
            name: "tec".to_owned(),
            key: self.key(KeyKind::Operator, "operator").await?,
            signing_key: self.key(KeyKind::Operator, "operator-sk").await?,
            system_account: self.key(KeyKind::Account, "account-sys").await?,
        };
        let jwt = self
            .signed("operator", &operator.unsigned(self.now))
            .await?;
        Ok((jwt, operator.system_account))
    }

    /// JWTs of the accounts, by their key.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn accounts(
        &self,
        revocations: Revocations,
    ) -> Result<BTreeMap<PublicKey, String>, Refusal> {
        // Boxed, since each holds five calls of the vault.
        let system = self.account("SYS", "account-sys", Scope::Any, Revocations::new());
        let system = Box::pin(system).await?;
        let app = self.account("APP", "account-app", Scope::Component, revocations);
        Ok(BTreeMap::from([system, Box::pin(app).await?]))
    }

    async fn account(
        &self,
        name: &str,
        key: &str,
        scope: Scope,
        revocations: Revocations,
    ) -> Result<(PublicKey, String), Refusal> {
        let account = nats::Account {
            name: name.to_owned(),
            key: self.key(KeyKind::Account, key).await?,
            issuer: self.key(KeyKind::Operator, "operator-sk").await?,
            signing_key: self.key(KeyKind::Account, &format!("{key}-sk")).await?,
            scope,
            revocations,
        };
        let jwt = self
            .signed("operator-sk", &account.unsigned(self.now))
            .await?;
        Ok((account.key, jwt))
    }

    /// JWT of a component's user, and when it ends.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn component(
        &self,
        component: &caller::Account,
        user: PublicKey,
        life: Duration,
    ) -> Result<(String, Timestamp), Refusal> {
        let account = self.key(KeyKind::Account, "account-app").await?;
        let issuer = self.key(KeyKind::Account, "account-app-sk").await?;
        let expires = self.after(life);
        let jwt = nats::User::of_component(component, user, account, issuer, expires);
        let unsigned = jwt.unsigned(self.now);
        let jti = unsigned.id();
        tracing::info!(component = %component, user = %user, jti, %expires, "user JWT minted");
        Ok((self.signed("account-app-sk", &unsigned).await?, expires))
    }

    /// JWT of a user of the system account: who may push accounts.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn system(&self, user: PublicKey, life: Duration) -> Result<String, Refusal> {
        let account = self.key(KeyKind::Account, "account-sys").await?;
        let issuer = self.key(KeyKind::Account, "account-sys-sk").await?;
        let expires = self.after(life);
        let user = nats::User::of_system("services-bootstrap", user, account, issuer, expires);
        self.signed("account-sys-sk", &user.unsigned(self.now))
            .await
    }

    fn after(&self, life: Duration) -> Timestamp {
        self.now
            .plus_seconds(i64::try_from(life.as_secs()).unwrap_or(i64::MAX))
    }

    /// Public key of the user whose key the vault keeps; made at the first call.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn kept_user(&self, account_uid: &str) -> Result<PublicKey, Refusal> {
        let name = user_key(account_uid)?;
        self.call(call::ensure_key(&name)).await?;
        self.key(KeyKind::User, &name).await
    }

    /// Signs what a server asked, with the user's key in the vault.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn sign_nonce(&self, account_uid: &str, nonce: &Nonce) -> Result<[u8; 64], Refusal> {
        self.sign(&user_key(account_uid)?, nonce.as_bytes()).await
    }
}

/// The identity becomes part of a path: it must be a plain one.
fn user_key(account_uid: &str) -> Result<String, Refusal> {
    if caller::is_label(account_uid) {
        Ok(format!("user-{account_uid}"))
    } else {
        Err(Refusal::VaultError)
    }
}
