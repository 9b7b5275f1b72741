//! Where data keys come from: the key services that tec-node opens, and Trustees, to which this machine
//! attests with its TPM.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use tec_core::endpoint::Endpoint;
use tec_core::port::{Attester, PortError, PortErrorKind};
use tec_core::secret::SecretBytes;
use tec_core::system::SystemEntropy;
use tec_node::host::KeyBackends;
use tec_node::port::{KeyServices, ReleasedSecrets};
use tec_node::uri::TrusteeKey;
use tec_trustee::client::{Deadlines, RcarClient, RcarError};

/// Every key service that this program was built with; `attester` proves its machine to Trustees. Keys are
/// not stored on `own_disk`, given as its device and its mount point.
pub fn services(attester: Arc<dyn Attester>, own_disk: Vec<PathBuf>) -> Arc<dyn KeyServices> {
    let released = Arc::new(Trustee { attester });
    let entropy = Arc::new(SystemEntropy);
    let backends = KeyBackends::new(entropy).with_own_disk(own_disk);
    Arc::new(backends.with_released(released))
}

#[derive(Debug)]
struct Trustee {
    attester: Arc<dyn Attester>,
}

#[async_trait]
impl ReleasedSecrets for Trustee {
    async fn release(&self, key: &TrusteeKey) -> Result<SecretBytes, PortError> {
        let operation = "obtain the master secret of a Trustee";
        let server = Endpoint::new(key.url.clone(), key.ca.clone().unwrap_or_default());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let entropy = Arc::new(SystemEntropy);
        let client = RcarClient::new(&[server], Deadlines::default(), &provider, entropy);
        let client = client
            .map_err(|error| PortError::new(PortErrorKind::Invalid, operation).because(error))?;
        let released = client.fetch(&key.path, &*self.attester).await;
        released.map_err(|error| {
            let kind = match &error {
                RcarError::Denied { .. } => PortErrorKind::Denied,
                _ => PortErrorKind::Unavailable,
            };
            PortError::new(kind, operation).with_code(error.code()).because(error)
        })
    }
}
