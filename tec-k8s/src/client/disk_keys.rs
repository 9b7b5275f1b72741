//! Reads all disk keys in one pass.

use tec_core::id::MachineId;
use tec_core::migrate::Deed;
use tec_core::port::PortError;
use tec_core::secret::SecretBytes;

use super::KubeRegistry;
use super::pages::{each, whole_pages};
use super::secret::{SECRET_KEY, path_of};

/// Type of the Secrets with disk keys; Helm releases, which are large, have a different type.
const ONLY_OPAQUE: &str = "type=Opaque";

/// A disk key as read.
#[derive(Debug)]
pub(crate) struct ReadKey {
    pub(crate) key: SecretBytes,
    /// Version of the Secret.
    pub(crate) version: Option<String>,
}

impl KubeRegistry {
    /// Passes every disk key to `take`, read in pages, which takes far fewer requests than reading each key.
    ///
    /// # Errors
    /// This anchor may not release keys, or the API server does not answer. Some keys may have been passed
    /// already.
    pub(crate) async fn each_disk_key(
        &self,
        mut take: impl FnMut(MachineId, ReadKey),
    ) -> Result<(), PortError> {
        self.permit_soon(Deed::Release, || "read all disk keys".to_owned()).await?;
        each(self.secrets(), whole_pages().fields(ONLY_OPAQUE), |secret| {
            let id = secret.metadata.name.as_deref().and_then(machine_of);
            let version = secret.metadata.resource_version;
            let key = secret.data.and_then(|mut entries| entries.remove(SECRET_KEY));
            if let Some((id, key)) = id.zip(key) {
                take(id, ReadKey { key: SecretBytes::new(key.0), version });
            }
        })
        .await
    }
}

/// The machine whose disk key a Secret with this name holds.
fn machine_of(object: &str) -> Option<MachineId> {
    path_of(object).filter(|path| path.recovery_of().is_none())?.machine()
}
