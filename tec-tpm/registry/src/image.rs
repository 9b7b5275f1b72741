//! An image that was found.

use std::collections::BTreeMap;
use std::sync::Arc;

use tec_core::image::ExpectedPcrs;
use tec_core::time::Timestamp;
use tec_tpm::compute::input::{BootSource, Extent, ImageParts, OpenImage};
use tec_tpm::output::read_label;

use crate::document::ImageConfig;
use crate::error::RegistryError;
use crate::parts::RemoteParts;
use crate::reference::ImageReference;
use crate::registry::{MAX_CONFIG, MAX_IMAGE, Registry, malformed, parsed};
use crate::transport::Ask;

/// The label with PCR values.
pub const LABEL: &str = "org.coreos.pcrs";
/// Labels of images that bootc accepts, which have one kernel (bootc, "bootc-compatible images").
const BOOTC: [&str; 2] = ["containers.bootc", "ostree.bootable"];

/// An image in a registry: its manifest and labels, whose digests were checked.
#[derive(Clone, Debug)]
pub struct RemoteImage {
    reference: ImageReference,
    manifest: Vec<u8>,
    labels: BTreeMap<String, String>,
    built_at: Option<Timestamp>,
}

impl Registry {
    /// Finds an image: reads its manifest, through an index if there is one, and its
    /// configuration.
    pub async fn find(&self, reference: &ImageReference) -> Result<RemoteImage, RegistryError> {
        let (manifest, config, layers) = self.manifest(reference).await?;
        let total = layers.iter().fold(0, |sum: u64, layer| sum.saturating_add(layer.size));
        if total > MAX_IMAGE {
            return Err(RegistryError::TooLarge { what: reference.to_string(), limit: MAX_IMAGE });
        }
        let ask = Ask::Blob(config.digest.clone(), 0..config.size.min(MAX_CONFIG + 1));
        let digest = parsed("the digest of the configuration", &config.digest)?;
        let text = self.document(reference, &ask, digest, MAX_CONFIG).await?;
        let parsed: ImageConfig = serde_json::from_slice(&text)
            .map_err(|error| malformed("the configuration", &config.digest, error.to_string()))?;
        Ok(RemoteImage {
            reference: reference.clone(),
            manifest,
            built_at: parsed.built_at(),
            labels: parsed.labels(),
        })
    }
}

impl RemoteImage {
    /// When it was built, as its configuration states, if it does.
    ///
    /// # Security
    /// Its builder chose the time; only a signature of the image vouches for it.
    pub fn built_at(&self) -> Option<Timestamp> {
        self.built_at
    }

    /// The PCR values that the builder of the image put into its label, if the image has that label.
    ///
    /// # Errors
    /// The label is malformed, or its events do not extend to its values.
    pub fn labeled_pcrs(&self) -> Result<Option<ExpectedPcrs>, RegistryError> {
        let read = self.labels.get(LABEL).map(|text| read_label(text));
        read.transpose().map_err(|source| RegistryError::Label {
            reference: self.reference.to_string(),
            name: LABEL,
            source,
        })
    }

    /// Opens the files of the image. Layers are read one after the other as they arrive; from layers with a
    /// table of contents, only files that are opened are fetched. Images for bootc are read from the last
    /// layer down, until their boot chain is found.
    ///
    /// This function blocks, and so do reads of the files; `runtime` drives the connections.
    ///
    /// # Panics
    /// On a thread of the runtime that may not block; see [`tokio::runtime::Handle::block_on`].
    pub fn open(
        &self,
        registry: &Arc<Registry>,
        runtime: &tokio::runtime::Handle,
    ) -> Result<OpenImage, RegistryError> {
        let parts: Arc<dyn ImageParts> = RemoteParts::new(registry, &self.reference, runtime);
        let name = self.reference.to_string();
        let image = BootSource::new().open_parts(&name, &self.manifest, &parts, self.extent());
        image.map_err(|source| RegistryError::Layers { reference: name, source: Box::new(source) })
    }

    fn extent(&self) -> Extent {
        let says = |name: &&str| {
            let value = self.labels.get(*name).map(String::as_str);
            matches!(value, Some("1" | "true"))
        };
        if BOOTC.iter().any(says) { Extent::UntilBootable } else { Extent::Whole }
    }
}
