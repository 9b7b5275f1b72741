//! The server's end of a handshake.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::Acceptor;
use rustls::server::ClientHello;
use rustls::server::ResolvesServerCert;
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use tokio::io::AsyncRead;
use tokio::io::AsyncWrite;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::TlsStream;

use super::AtlsError;
use super::AtlsStream;
use super::Endpoint;
use super::Nonce;
use super::bind;
use super::endpoint::Inner;
use super::verify::PeerVerifier;

impl Endpoint {
    /// Takes a connection: reads the client's nonce, makes a document for it on a thread that may
    /// block, and judges the client where there are validators.
    ///
    /// # Errors
    /// [`AtlsError`]; the connection is then closed.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection; a document that is being made is thrown away.
    pub async fn accept<IO>(&self, io: IO) -> Result<AtlsStream<IO>, AtlsError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let limit = self.0.limit;
        tokio::time::timeout(limit, accept(&self.0, io))
            .await
            .unwrap_or(Err(AtlsError::TimedOut { limit }))
    }
}

async fn accept<IO>(inner: &Arc<Inner>, io: IO) -> Result<AtlsStream<IO>, AtlsError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let start = LazyConfigAcceptor::new(Acceptor::default(), io)
        .await
        .map_err(AtlsError::Handshake)?;
    let nonce = nonce(&start.client_hello());
    let identity = identity(inner, nonce).await?;
    let verifier = PeerVerifier::new(Arc::clone(inner));
    let config = config(inner, identity, &verifier)?;
    let stream = start.into_stream(Arc::new(config)).await;
    let peer = verifier.take()?;
    let mut stream = TlsStream::Server(stream.map_err(AtlsError::Handshake)?);
    let peer = bind::exchange(inner, &mut stream, peer).await?;
    Ok(AtlsStream::new(stream, peer))
}

fn nonce(hello: &ClientHello<'_>) -> Option<Nonce> {
    Nonce::from_alpn(hello.alpn()?)
}

/// Quoting takes as long as the TPM does, and anybody can ask for it: the number is bounded.
async fn identity(inner: &Arc<Inner>, nonce: Option<Nonce>) -> Result<CertifiedKey, AtlsError> {
    let _permit = inner.issuing.try_acquire().map_err(|_| AtlsError::Busy)?;
    let inner = Arc::clone(inner);
    tokio::task::spawn_blocking(move || inner.certify(nonce.as_ref()))
        .await
        .map_err(|_| AtlsError::Thread)?
}

fn config(
    inner: &Inner,
    identity: CertifiedKey,
    verifier: &Arc<PeerVerifier>,
) -> Result<ServerConfig, AtlsError> {
    let builder = ServerConfig::builder_with_provider(Arc::clone(&inner.provider))
        .with_protocol_versions(&[&TLS13])
        .map_err(AtlsError::Setup)?;
    let builder = if inner.validators.is_empty() {
        builder.with_no_client_auth()
    } else {
        builder.with_client_cert_verifier(Arc::clone(verifier) as Arc<_>)
    };
    let mut config = builder.with_cert_resolver(Arc::new(OneCertificate(Arc::new(identity))));
    config.alpn_protocols = inner.binding.protocols();
    // Resumption would skip the evidence.
    config.send_tls13_tickets = 0;
    Ok(config)
}

#[derive(Debug)]
struct OneCertificate(Arc<CertifiedKey>);

impl ResolvesServerCert for OneCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}
