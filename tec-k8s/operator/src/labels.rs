//! Reads image labels from registries.

use std::sync::Arc;

use async_trait::async_trait;
use tec_core::code::Code;
use tec_core::image::ExpectedPcrs;
use tec_core::port::{PortError, PortErrorKind};
use tec_core::secret::SecretBytes;
use tec_core::system::SystemEntropy;
use tec_k8s::controller::LabelReader;
use tec_registry::{Credentials, ImageReference, Registry, RegistryArgs, RegistryError};

/// Reads labels, with the pull secret of the image first, then those of the flags.
#[derive(Clone, Debug)]
pub struct RegistryLabels(RegistryArgs);

impl RegistryLabels {
    /// Uses the registries that the flags describe.
    pub fn new(registries: RegistryArgs) -> Self {
        Self(registries)
    }
}

#[async_trait]
impl LabelReader for RegistryLabels {
    async fn label(
        &self,
        reference: &str,
        credentials: Option<SecretBytes>,
    ) -> Result<Option<ExpectedPcrs>, PortError> {
        let invalid = |code| {
            let what = format!("read the label of {reference}");
            PortError::new(PortErrorKind::Invalid, what).with_code(code)
        };
        let parsed: ImageReference =
            reference.parse().map_err(|error| invalid(Code::ImageReference).because(error))?;
        let mut options =
            self.0.options().map_err(|error| invalid(Code::ImageSecret).because(error))?;
        if let Some(json) = credentials {
            let own = Credentials::parse(json.expose("the registry is logged in to with it"))
                .map_err(|error| invalid(Code::ImageSecret).because(error))?;
            options.credentials = own.and(options.credentials);
        }
        let failed = |error| port_error(reference, error);
        let registry = Registry::new(options, Arc::new(SystemEntropy)).map_err(failed)?;
        let image = registry.find(&parsed).await.map_err(failed)?;
        image.labeled_pcrs().map_err(failed)
    }
}

fn port_error(reference: &str, error: RegistryError) -> PortError {
    let kind = match error.code() {
        Code::RegistryUnreachable => PortErrorKind::Unavailable,
        Code::ImageAbsent => PortErrorKind::NotFound,
        Code::ImageDenied => PortErrorKind::Denied,
        _ => PortErrorKind::Invalid,
    };
    let code = error.code();
    let what = format!("read the label of {reference}");
    PortError::new(kind, what).with_code(code).because(error)
}
