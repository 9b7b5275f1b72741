//! What controllers read from registries: labels of images, and tags.

use std::error::Error;
use std::sync::Arc;

use async_trait::async_trait;
use rustls::crypto::CryptoProvider;
use tec_core::code::Code;
use tec_core::image::ExpectedPcrs;
use tec_core::port::{PortError, PortErrorKind};
use tec_core::secret::SecretBytes;
use tec_core::system::SystemEntropy;
use tec_core::time::Timestamp;
use tec_k8s::controller::{LabelReader, TagReader};
use tec_registry::{
    Credentials, CredentialsError, ImageReference, Registry, RegistryError, RegistryOptions,
    RemoteImage, TagReference,
};

type Cause = Box<dyn Error + Send + Sync>;

/// Registries, asked with the pull secret of the object first, then with those of the options.
#[derive(Clone, derive_more::Debug)]
#[debug("Registries {{ .. }}")]
pub struct Registries {
    options: Arc<dyn Fn() -> Result<RegistryOptions, Cause> + Send + Sync>,
    provider: Arc<CryptoProvider>,
}

/// A pull secret cannot be used.
#[derive(Debug, thiserror::Error)]
enum SecretError {
    /// One of the options, or another file of them.
    #[error("cannot use the registry flags of the operator")]
    Options(#[source] Cause),
    /// The object's own.
    #[error("cannot use the pull secret")]
    Own(#[source] CredentialsError),
}

impl Registries {
    /// Asks for `options` before each access, since the files of pull secrets change.
    pub fn new<E: Into<Cause>>(
        options: impl Fn() -> Result<RegistryOptions, E> + Send + Sync + 'static,
        provider: Arc<CryptoProvider>,
    ) -> Self {
        Self { options: Arc::new(move || options().map_err(Into::into)), provider }
    }

    fn open(&self, what: &str, credentials: Option<SecretBytes>) -> Result<Registry, PortError> {
        let options = self.options(credentials);
        let options = options.map_err(|error| invalid(what, Code::ImageSecret, error))?;
        let registry = Registry::new(options, &self.provider, Arc::new(SystemEntropy));
        registry.map_err(|error| failed(what, error))
    }

    fn options(&self, credentials: Option<SecretBytes>) -> Result<RegistryOptions, SecretError> {
        let mut options = (self.options)().map_err(SecretError::Options)?;
        if let Some(json) = credentials {
            let own = Credentials::parse(json.expose("the registry is logged in to with it"));
            options.credentials = own.map_err(SecretError::Own)?.and(options.credentials);
        }
        Ok(options)
    }

    async fn find(
        &self,
        what: &str,
        reference: &str,
        credentials: Option<SecretBytes>,
    ) -> Result<RemoteImage, PortError> {
        let parsed = reference.parse::<ImageReference>();
        let parsed = parsed.map_err(|error| invalid(what, Code::ImageReference, error))?;
        let found = self.open(what, credentials)?.find(&parsed).await;
        found.map_err(|error| failed(what, error))
    }
}

#[async_trait]
impl LabelReader for Registries {
    async fn label(
        &self,
        reference: &str,
        credentials: Option<SecretBytes>,
    ) -> Result<Option<ExpectedPcrs>, PortError> {
        let what = format!("read the label of {reference}");
        let image = self.find(&what, reference, credentials).await?;
        image.labeled_pcrs().map_err(|error| failed(&what, error))
    }
}

#[async_trait]
impl TagReader for Registries {
    async fn resolve(
        &self,
        reference: &str,
        credentials: Option<SecretBytes>,
    ) -> Result<String, PortError> {
        let what = format!("look up the tag {reference}");
        let parsed = reference.parse::<TagReference>();
        let parsed = parsed.map_err(|error| invalid(&what, Code::ImageTag, error))?;
        let image = self.open(&what, credentials)?.resolve(&parsed).await;
        Ok(image.map_err(|error| failed(&what, error))?.to_string())
    }

    async fn built_at(
        &self,
        reference: &str,
        credentials: Option<SecretBytes>,
    ) -> Result<Option<Timestamp>, PortError> {
        let what = format!("read the configuration of {reference}");
        Ok(self.find(&what, reference, credentials).await?.built_at())
    }
}

fn invalid(what: &str, code: Code, error: impl Into<Cause>) -> PortError {
    PortError::new(PortErrorKind::Invalid, what).with_code(code).because(error)
}

/// An error of the registry in this operation.
fn failed(what: &str, error: RegistryError) -> PortError {
    let code = error.code();
    let kind = match code {
        Code::RegistryUnreachable => PortErrorKind::Unavailable,
        Code::ImageAbsent => PortErrorKind::NotFound,
        Code::ImageDenied => PortErrorKind::Denied,
        _ => PortErrorKind::Invalid,
    };
    PortError::new(kind, what).with_code(code).because(error)
}
