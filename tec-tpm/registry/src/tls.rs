//! TLS to registries.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls_platform_verifier::Verifier;

use crate::error::RegistryError;

/// Trusts the platform's roots, and the additional CAs.
pub(crate) fn config(
    extra: &[Vec<u8>],
    provider: &Arc<CryptoProvider>,
) -> Result<ClientConfig, RegistryError> {
    let setup = |error: rustls::Error| RegistryError::Setup(Box::new(error));
    let extra = extra.iter().map(|der| CertificateDer::from(der.clone()));
    let verifier = Verifier::new_with_extra_roots(extra, Arc::clone(provider)).map_err(setup)?;
    Ok(ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_safe_default_protocol_versions()
        .map_err(setup)?
        // The verifier of the platform; the name of the method means that any could be given.
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth())
}
