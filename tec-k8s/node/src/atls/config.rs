//! TLS configuration that is shared by all connections whose sides send evidence over them.

use std::sync::Arc;

use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig, SignatureScheme};

use super::bind;
use super::inner::BoundConfigs;
use super::verify::PeerVerifier;

/// TLS configuration for both roles of an endpoint. The certificate only carries the key.
/// `attests`: there is an issuer; `judges`: there are validators.
pub(super) fn bound(
    provider: &Arc<CryptoProvider>,
    certified: CertifiedKey,
    attests: bool,
    judges: bool,
) -> Result<BoundConfigs, rustls::Error> {
    let certified = Arc::new(certified);
    let only = Arc::new(OneCertificate(Arc::clone(&certified)));
    let verifier = PeerVerifier::any(provider);
    let clients = judges.then(|| Arc::clone(&verifier));
    let server = server(provider, clients, Arc::clone(&only) as Arc<_>, bind::bound())?;
    let identity = attests.then_some(only as Arc<_>);
    let client = client(provider, verifier, identity, bind::bound())?;
    Ok(BoundConfigs { server: Arc::new(server), client: Arc::new(client), certificate: certified })
}

/// A server that requests certificates if there is a verifier.
pub(super) fn server(
    provider: &Arc<CryptoProvider>,
    verifier: Option<Arc<PeerVerifier>>,
    identity: Arc<dyn ResolvesServerCert>,
    protocols: Vec<Vec<u8>>,
) -> Result<ServerConfig, rustls::Error> {
    let builder = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&TLS13])?;
    let builder = match verifier {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(identity);
    config.alpn_protocols = protocols;
    // Resumption would skip the evidence.
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// A client that has a certificate if there is an identity.
pub(super) fn client(
    provider: &Arc<CryptoProvider>,
    verifier: Arc<PeerVerifier>,
    identity: Option<Arc<dyn ResolvesClientCert>>,
    protocols: Vec<Vec<u8>>,
) -> Result<ClientConfig, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match identity {
        Some(identity) => builder.with_client_cert_resolver(identity),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = protocols;
    config.enable_sni = false;
    // Resumption would skip the evidence.
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Always presents the same certificate.
#[derive(Debug)]
pub(super) struct OneCertificate(pub(super) Arc<CertifiedKey>);

impl ResolvesServerCert for OneCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

impl ResolvesClientCert for OneCertificate {
    fn resolve(
        &self,
        _root_hint_subjects: &[&[u8]],
        _sigschemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}
