//! Acts like a node at boot: attests to a key broker and gets its disk key.

use std::sync::Arc;
use std::time::Duration;

use tec_core::endpoint::Endpoint;
use tec_core::id::{MachineId, ResourcePath};
use tec_core::port::Attester;
use tec_core::secret::SecretBytes;
use tec_support::SystemEntropy;
use tec_trustee::client::{Deadlines, RcarClient, RcarError};

/// The disk key of a machine, which may differ from the attester's.
pub(crate) async fn fetch(
    url: &str,
    whose: &MachineId,
    attester: &dyn Attester,
) -> Result<SecretBytes, RcarError> {
    client(url).fetch(&ResourcePath::luks_root(whose), attester).await
}

/// A node's client of one key broker.
pub(crate) fn client(url: &str) -> RcarClient {
    let endpoint = Endpoint::new(url.parse().unwrap(), String::new());
    let deadlines = Deadlines::new(Duration::from_secs(20), Duration::from_secs(40));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    RcarClient::new(&[endpoint], deadlines, &provider, Arc::new(SystemEntropy)).unwrap()
}
