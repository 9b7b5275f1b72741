//! Looks tags up in registries.

use std::sync::Arc;

use async_trait::async_trait;
use tec_core::code::Code;
use tec_core::port::{PortError, PortErrorKind};
use tec_core::secret::SecretBytes;
use tec_core::system::SystemEntropy;
use tec_core::time::Timestamp;
use tec_k8s::controller::TagReader;
use tec_registry::{ImageReference, Registry, TagReference};
use tec_support::registry::RegistryArgs;

use crate::labels::{options, port_error, provider};

/// Looks tags up, with the pull secret of the followed image first, then those of the flags.
#[derive(Clone, Debug)]
pub struct RegistryTags(RegistryArgs);

impl RegistryTags {
    /// Uses the registries that the flags describe.
    pub fn new(registries: RegistryArgs) -> Self {
        Self(registries)
    }

    fn registry(
        &self,
        what: &str,
        credentials: Option<SecretBytes>,
    ) -> Result<Registry, PortError> {
        let options = options(&self.0, credentials).map_err(|error| {
            PortError::new(PortErrorKind::Invalid, what).with_code(Code::ImageSecret).because(error)
        })?;
        Registry::new(options, &provider(), Arc::new(SystemEntropy))
            .map_err(|error| port_error(what.to_owned(), error))
    }
}

#[async_trait]
impl TagReader for RegistryTags {
    async fn resolve(
        &self,
        reference: &str,
        credentials: Option<SecretBytes>,
    ) -> Result<String, PortError> {
        let what = format!("look up the tag {reference}");
        let parsed: TagReference = reference.parse().map_err(|error| {
            PortError::new(PortErrorKind::Invalid, &*what).with_code(Code::ImageTag).because(error)
        })?;
        let image = self.registry(&what, credentials)?.resolve(&parsed).await;
        Ok(image.map_err(|error| port_error(what, error))?.to_string())
    }

    async fn built_at(
        &self,
        reference: &str,
        credentials: Option<SecretBytes>,
    ) -> Result<Option<Timestamp>, PortError> {
        let what = format!("read the configuration of {reference}");
        let parsed: ImageReference = reference.parse().map_err(|error| {
            let invalid = PortError::new(PortErrorKind::Invalid, &*what);
            invalid.with_code(Code::ImageReference).because(error)
        })?;
        let image = self.registry(&what, credentials)?.find(&parsed).await;
        Ok(image.map_err(|error| port_error(what, error))?.built_at())
    }
}
