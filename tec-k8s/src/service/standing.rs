//! State for serving requests: settings, and the controller's own token.

use std::num::NonZeroU32;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tec_core::secret::SecretBytes;
use tec_core::service::caller::Refusal;
use tec_core::service::vault::Platform;

/// The settings.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "every part is the caller's decision")]
pub struct Settings {
    /// Who may call, and the audience that their tokens must name.
    pub platform: Platform,
    /// Lifetime of a user's JWT.
    pub user_life: Duration,
    /// Maximum number of concurrent calls; each costs the API server a token review.
    pub concurrency: usize,
    /// Maximum number of calls of an account per minute, even in one burst.
    pub calls_per_minute: NonZeroU32,
}

/// The controller's own token for the vault, replaced when it is renewed.
#[derive(Debug, Default)]
pub struct Standing(RwLock<Option<Arc<SecretBytes>>>);

impl Standing {
    /// Uses this token from now on.
    pub fn replace(&self, token: SecretBytes) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(token));
    }

    /// The current token.
    ///
    /// # Errors
    /// [`Refusal::NotBootstrapped`] until there is one.
    pub fn token(&self) -> Result<Arc<SecretBytes>, Refusal> {
        let token = self.0.read().unwrap_or_else(PoisonError::into_inner);
        token.clone().ok_or(Refusal::NotBootstrapped)
    }
}
