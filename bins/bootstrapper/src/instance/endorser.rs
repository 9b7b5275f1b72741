//! The TPM of this node, whose endorsement key proves its attestation key.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use tec_core::ak::Credential;
use tec_core::port::{PortError, PortErrorKind};
use tec_core::secret::SecretBytes;
use tec_node::rpc::{Endorser, TpmOffer};
use tec_tpm::ak::AkHandle;
use tec_tpm::tpm::{AnyTpm, TpmError};

/// A TPM with an attestation key at this handle.
#[derive(Clone, Debug)]
pub struct TpmEndorser {
    tpm: Arc<dyn AnyTpm>,
    handle: AkHandle,
    /// Discrete TPMs take seconds to derive an RSA key.
    offer: Arc<OnceLock<TpmOffer>>,
}

impl TpmEndorser {
    /// Uses this TPM.
    pub fn new(tpm: Arc<dyn AnyTpm>, handle: AkHandle) -> Self {
        Self { tpm, handle, offer: Arc::default() }
    }

    /// Runs on a thread that may block.
    async fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn AnyTpm, AkHandle) -> Result<T, TpmError> + Send + 'static,
    ) -> Result<T, PortError> {
        let (tpm, handle) = (Arc::clone(&self.tpm), self.handle);
        let asked = tokio::task::spawn_blocking(move || ask(&*tpm, handle)).await;
        let asked = asked.map_err(|error| {
            PortError::new(PortErrorKind::Internal, "use the TPM").because(error)
        })?;
        Ok(asked?)
    }
}

#[async_trait]
impl Endorser for TpmEndorser {
    async fn offer(&self) -> Result<TpmOffer, PortError> {
        if let Some(offer) = self.offer.get() {
            return Ok(offer.clone());
        }
        let read = self.ask(|tpm, handle| {
            Ok(TpmOffer { ek: tpm.read_ek()?, ak_area: tpm.ak_public_area(handle)? })
        });
        let read = read.await?;
        Ok(self.offer.get_or_init(|| read).clone())
    }

    async fn activate(&self, credential: &Credential) -> Result<SecretBytes, PortError> {
        let credential = credential.clone();
        self.ask(move |tpm, handle| tpm.activate_credential(handle, &credential)).await
    }
}
