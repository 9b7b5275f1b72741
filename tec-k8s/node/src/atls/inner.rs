//! The data of an endpoint.

use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ServerConfig};
use tec_core::port::{Clock, Entropy};
use tokio::sync::Semaphore;

use super::identity::LeafKey;
use super::{AtlsError, ChannelBinding, Issuer, Nonce, Validator, Variant, certificate, issue};

/// TLS configurations for connections whose sides send evidence over them.
#[derive(Debug)]
pub(super) struct BoundConfigs {
    pub(super) server: Arc<ServerConfig>,
    pub(super) client: Arc<ClientConfig>,
    /// The certificate that carries the key.
    pub(super) certificate: Arc<CertifiedKey>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) provider: Arc<CryptoProvider>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) entropy: Arc<dyn Entropy>,
    pub(super) key: LeafKey,
    pub(super) issuer: Option<Arc<dyn Issuer>>,
    pub(super) validators: Vec<Arc<dyn Validator>>,
    pub(super) binding: ChannelBinding,
    pub(super) limit: Duration,
    pub(super) issuing: Semaphore,
    pub(super) turns: Arc<Semaphore>,
    pub(super) bound: BoundConfigs,
}

impl Inner {
    /// Our certificate for a peer with this nonce; without an issuer it attests nothing.
    ///
    /// The key is new: whoever steals it can relay only this document.
    pub(super) fn certify(&self, nonce: Option<&Nonce>) -> Result<CertifiedKey, AtlsError> {
        let key = LeafKey::generate(&*self.entropy, &self.provider).map_err(AtlsError::Setup)?;
        let document = match (&self.issuer, nonce) {
            (Some(issuer), Some(nonce)) => {
                let key_hash = key.key_hash.as_bytes();
                let made = issue::issue(&**issuer, key_hash, nonce).map_err(AtlsError::Issue)?;
                Some((issuer.variant(), made))
            }
            (Some(_), None) => return Err(AtlsError::NoNonce),
            (None, _) => None,
        };
        let document = document.as_ref().map(|(variant, made)| (*variant, &**made));
        let validity = certificate::around(self.clock.now());
        key.certified(&*self.entropy, validity, document).map_err(AtlsError::Setup)
    }

    /// Runs work that takes as long as a TPM does, on a thread that may block. A caller that stops
    /// waiting loses its turn.
    pub(super) async fn in_turn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, AtlsError> + Send + 'static,
    ) -> Result<T, AtlsError> {
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work()
        })
        .await
        .map_err(|_| AtlsError::Thread)?
    }

    /// A nonce for one peer.
    pub(super) fn nonce(&self) -> Nonce {
        Nonce::random(&*self.entropy)
    }

    pub(super) fn accepted(&self) -> Vec<Variant> {
        self.validators.iter().map(|one| one.variant()).collect()
    }

    pub(super) fn validator(&self, variant: Variant) -> Option<&Arc<dyn Validator>> {
        self.validators.iter().find(|one| one.variant() == variant)
    }
}
