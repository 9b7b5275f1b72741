//! State for serving requests: settings, the controller's own token, CA certificates, and who signs for NATS.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tec_core::secret::SecretBytes;

use crate::caller::Refusal;
use crate::vault::{Platform, Signers};

/// The settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Who may call, and the audience that their tokens must name.
    pub platform: Platform,
    /// Lifetime of a user's JWT.
    pub user_life: Duration,
    /// Maximum number of concurrent calls, about half of them from one network. Each costs the API server a
    /// token review, also one with a forged token.
    pub concurrency: usize,
    /// Maximum number of calls of an account per minute, even in one burst.
    pub calls_per_minute: NonZeroU32,
}

/// The result of the controller's latest round: its own token for the vault, the CA certificates that everyone
/// trusts, and the keys that sign for NATS.
#[derive(Debug, Default)]
pub struct Standing(RwLock<Option<Held>>);

#[derive(Debug)]
struct Held {
    token: Arc<SecretBytes>,
    authorities: Arc<str>,
    signers: Signers,
}

impl Standing {
    /// Uses this token, these CA certificates (PEM) and these signers from now on.
    pub fn replace(&self, token: SecretBytes, authorities: &str, signers: Signers) {
        let held = Held { token: Arc::new(token), authorities: authorities.into(), signers };
        *self.0.write() = Some(held);
    }

    /// The current token.
    ///
    /// # Errors
    /// [`Refusal::NotBootstrapped`] until there is one.
    pub fn token(&self) -> Result<Arc<SecretBytes>, Refusal> {
        self.held(|held| Arc::clone(&held.token))
    }

    /// The current CA certificates, in PEM. Those that signed a certificate are not all that its owner has to
    /// trust: while they are being replaced, there are others.
    ///
    /// # Errors
    /// Same as [`token`](Self::token).
    pub fn authorities(&self) -> Result<Arc<str>, Refusal> {
        self.held(|held| Arc::clone(&held.authorities))
    }

    /// The keys that sign for NATS, and those that servers trust.
    ///
    /// # Errors
    /// Same as [`token`](Self::token).
    pub fn signers(&self) -> Result<Signers, Refusal> {
        self.held(|held| held.signers)
    }

    /// Uses these signers from now on, if there is a token.
    pub fn sign_by(&self, signers: Signers) {
        let mut held = self.0.write();
        if let Some(held) = held.as_mut() {
            held.signers = signers;
        }
    }

    fn held<T>(&self, part: impl FnOnce(&Held) -> T) -> Result<T, Refusal> {
        let held = self.0.read();
        held.as_ref().map(part).ok_or(Refusal::NotBootstrapped)
    }
}
