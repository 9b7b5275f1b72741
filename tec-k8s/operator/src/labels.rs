//! Reads image labels from registries.

use std::sync::Arc;

use async_trait::async_trait;
use rustls::crypto::CryptoProvider;
use tec_core::code::Code;
use tec_core::image::ExpectedPcrs;
use tec_core::port::{PortError, PortErrorKind};
use tec_core::secret::SecretBytes;
use tec_core::system::SystemEntropy;
use tec_k8s::controller::LabelReader;
use tec_registry::{
    Credentials, CredentialsError, ImageReference, Registry, RegistryError, RegistryOptions,
};
use tec_support::registry::{ArgsError, RegistryArgs};

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
        let options = options(&self.0, credentials)
            .map_err(|error| invalid(Code::ImageSecret).because(error))?;
        let failed = |error| port_error(format!("read the label of {reference}"), error);
        let registry =
            Registry::new(options, &provider(), Arc::new(SystemEntropy)).map_err(failed)?;
        let image = registry.find(&parsed).await.map_err(failed)?;
        image.labeled_pcrs().map_err(failed)
    }
}

/// The provider of TLS.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A pull secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecretError {
    /// One that a flag names, or another file of the flags.
    #[error("cannot use the registry flags of the operator")]
    Flags(#[source] ArgsError),
    /// The object's own.
    #[error("cannot use the pull secret")]
    Own(#[source] CredentialsError),
}

/// How to access registries: with an object's own pull secret first, then with those of the flags.
pub(crate) fn options(
    registries: &RegistryArgs,
    credentials: Option<SecretBytes>,
) -> Result<RegistryOptions, SecretError> {
    let mut options = registries.options().map_err(SecretError::Flags)?;
    if let Some(json) = credentials {
        let own = Credentials::parse(json.expose("the registry is logged in to with it"));
        options.credentials = own.map_err(SecretError::Own)?.and(options.credentials);
    }
    Ok(options)
}

/// An error of the registry in this operation.
pub(crate) fn port_error(what: String, error: RegistryError) -> PortError {
    let kind = match error.code() {
        Code::RegistryUnreachable => PortErrorKind::Unavailable,
        Code::ImageAbsent => PortErrorKind::NotFound,
        Code::ImageDenied => PortErrorKind::Denied,
        _ => PortErrorKind::Invalid,
    };
    let code = error.code();
    PortError::new(kind, what).with_code(code).because(error)
}
