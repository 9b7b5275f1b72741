//! The baseline of attested connections: ordinary mutual TLS with certificates of a CA.

use std::sync::Arc;

use anyhow::Result;
use rcgen::{CertificateParams, CertifiedIssuer, KeyPair};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// Signs both ends.
pub type Ca = CertifiedIssuer<'static, KeyPair>;

/// The cryptography of all TLS here.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// A new CA.
pub fn authority() -> Result<Ca> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    Ok(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?)
}

fn roots(ca: &Ca) -> Result<Arc<RootCertStore>> {
    let mut roots = RootCertStore::empty();
    roots.add(ca.der().clone())?;
    Ok(Arc::new(roots))
}

fn leaf(ca: &Ca) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>)> {
    let key = KeyPair::generate()?;
    let params = CertificateParams::new(vec!["localhost".to_owned()])?;
    let certificate = params.signed_by(&key, ca)?;
    let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
    Ok((certificate.der().clone(), key))
}

/// A client without session resumption, with its certificate.
pub fn client(ca: &Ca) -> Result<(ClientConfig, CertificateDer<'static>)> {
    let (certificate, key) = leaf(ca)?;
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots(ca)?)
        .with_client_auth_cert(vec![certificate.clone()], key)?;
    config.resumption = rustls::client::Resumption::disabled();
    Ok((config, certificate))
}

/// A server for `localhost` that requests certificates and issues no tickets.
pub fn server(ca: &Ca) -> Result<ServerConfig> {
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(ca)?, provider());
    let (certificate, key) = leaf(ca)?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier.build()?)
        .with_single_cert(vec![certificate], key)?;
    config.send_tls13_tickets = 0;
    Ok(config)
}
