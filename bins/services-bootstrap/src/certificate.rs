//! The controller's certificate: in memory only, replaced while connections come in.

use std::fmt;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::RwLock;

use anyhow::Context as _;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::server::ClientHello;
use rustls::server::ResolvesServerCert;
use rustls::sign::CertifiedKey;
use tec_core::service::tls::Material;

/// What connections are shown; until there is something, they are refused.
#[derive(Default)]
pub struct Certificate(RwLock<Option<Arc<CertifiedKey>>>);

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificate")
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Certificate {
    /// From now on this one.
    ///
    /// # Errors
    /// Certificate and key cannot be used.
    pub fn replace(&self, tls: &Material) -> anyhow::Result<()> {
        let chain = CertificateDer::pem_slice_iter(tls.chain.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .context("read the own certificate")?;
        let key = PrivateKeyDer::from_pem_slice(tls.key.expose("to serve with it"))
            .context("read the own key")?;
        let provider = rustls::crypto::ring::default_provider();
        let key = CertifiedKey::from_der(chain, key, &provider)
            .context("own certificate and key do not fit")?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(key));
        Ok(())
    }

    /// A server that shows it: TLS 1.3 and HTTP/2 only, no client certificates, since callers come
    /// here to get one.
    pub fn server_config(self: &Arc<Self>) -> Arc<ServerConfig> {
        let resolver = Arc::clone(self) as Arc<dyn ResolvesServerCert>;
        let mut config = ServerConfig::builder_with_protocol_versions(&[&rustls::version::TLS13])
            .with_no_client_auth()
            .with_cert_resolver(resolver);
        config.alpn_protocols = vec![b"h2".to_vec()];
        Arc::new(config)
    }
}
