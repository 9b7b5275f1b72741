//! A certificate issued while the program runs: kept only in memory, and replaced without closing
//! connections.

use std::sync::Arc;

use anyhow::Context as _;
use parking_lot::RwLock;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SignatureScheme};
use tec_core::secret::SecretBytes;

/// The certificate presented to peers; before there is one, a server refuses connections, and a client
/// presents none.
#[derive(Default, derive_more::Debug)]
#[debug("Certificate")]
pub struct Certificate(RwLock<Option<Arc<CertifiedKey>>>);

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current()
    }
}

impl ResolvesClientCert for Certificate {
    fn resolve(
        &self,
        _authorities: &[&[u8]],
        _schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        self.current()
    }

    fn has_certs(&self) -> bool {
        self.current().is_some()
    }
}

impl Certificate {
    fn current(&self) -> Option<Arc<CertifiedKey>> {
        self.0.read().clone()
    }

    /// Replaces the certificate with this one: chain and key in PEM.
    /// Errors: the chain and key cannot be used, or do not belong together; the previous certificate stays.
    pub fn replace(&self, chain: &[u8], key: &SecretBytes) -> anyhow::Result<()> {
        let chain = CertificateDer::pem_slice_iter(chain)
            .collect::<Result<Vec<_>, _>>()
            .context("cannot read this program's certificate")?;
        let key = PrivateKeyDer::from_pem_slice(key.expose("to prove who we are with it"))
            .context("cannot read this program's private key")?;
        let provider = rustls::crypto::ring::default_provider();
        let key = CertifiedKey::from_der(chain, key, &provider)
            .context("this program's certificate and private key do not match")?;
        *self.0.write() = Some(Arc::new(key));
        Ok(())
    }

    /// Configuration of a server that presents it: TLS 1.3 and HTTP/2 only, no client certificates.
    pub fn server_config(self: &Arc<Self>) -> Arc<ServerConfig> {
        let resolver = Arc::clone(self) as Arc<dyn ResolvesServerCert>;
        let mut config = ServerConfig::builder_with_protocol_versions(&[&rustls::version::TLS13])
            .with_no_client_auth()
            .with_cert_resolver(resolver);
        config.alpn_protocols = vec![b"h2".to_vec()];
        Arc::new(config)
    }

    /// Configuration of a client that presents it to servers of these authorities (PEM). TLS 1.3 only.
    pub fn client_config(self: &Arc<Self>, authorities: &[u8]) -> anyhow::Result<ClientConfig> {
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(authorities) {
            roots.add(authority.context("cannot read the authorities")?)?;
        }
        anyhow::ensure!(!roots.is_empty(), "there are no CA certificates to trust");
        let resolver = Arc::clone(self) as Arc<dyn ResolvesClientCert>;
        let config = ClientConfig::builder_with_protocol_versions(&[&rustls::version::TLS13])
            .with_root_certificates(roots)
            .with_client_cert_resolver(resolver);
        Ok(config)
    }
}
