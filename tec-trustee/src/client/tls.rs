//! TLS of one server. The provider is the caller's choice.

use std::error::Error;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt as _;
use tec_core::endpoint::Endpoint;

use super::SetupError;

/// Trusts the server's CA bundle alone, or the platform's roots if there is none.
///
/// # Errors
/// The CA bundle, the platform's roots or the provider cannot be used.
pub fn tls_config(
    endpoint: &Endpoint,
    provider: &Arc<CryptoProvider>,
) -> Result<ClientConfig, SetupError> {
    let client = |error: rustls::Error| SetupError::Client {
        server: endpoint.url.clone(),
        source: Box::new(error),
    };
    let builder = ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_safe_default_protocol_versions()
        .map_err(client)?;
    let builder = if !endpoint.url.is_tls() {
        // Never used, but the HTTP client requires one.
        builder.with_root_certificates(RootCertStore::empty())
    } else if endpoint.cert.trim().is_empty() {
        builder.with_platform_verifier().map_err(client)?
    } else {
        builder.with_root_certificates(roots(endpoint)?)
    };
    Ok(builder.with_no_client_auth())
}

fn roots(endpoint: &Endpoint) -> Result<RootCertStore, SetupError> {
    let unusable = |source: Option<Box<dyn Error + Send + Sync>>| SetupError::Ca {
        server: endpoint.url.clone(),
        source,
    };
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(endpoint.cert.as_bytes()) {
        let certificate = certificate.map_err(|error| unusable(Some(Box::new(error))))?;
        store.add(certificate).map_err(|error| unusable(Some(Box::new(error))))?;
    }
    if store.is_empty() {
        return Err(unusable(None));
    }
    Ok(store)
}
