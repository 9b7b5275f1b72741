//! The server's side of a handshake.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::Acceptor;
use rustls::sign::CertifiedKey;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{LazyConfigAcceptor, StartHandshake, TlsStream};

use super::config::OneCertificate;
use super::inner::Inner;
use super::verify::PeerVerifier;
use super::{AtlsError, AtlsStream, AttestedPeer, ChannelBinding, Endpoint, Nonce, bind, config};

impl Endpoint {
    /// Accepts a connection: proves itself to the client with a document created on a thread that
    /// may block, and verifies the client if there are validators.
    ///
    /// # Errors
    /// [`AtlsError`]; the connection is closed in that case.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection; a document that is being created is discarded.
    pub async fn accept<IO>(&self, io: IO) -> Result<AtlsStream<IO>, AtlsError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let limit = self.0.limit;
        tokio::time::timeout(limit, accept(&self.0, io))
            .await
            .unwrap_or(Err(AtlsError::TimedOut(limit)))
    }
}

async fn accept<IO>(inner: &Arc<Inner>, io: IO) -> Result<AtlsStream<IO>, AtlsError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let start =
        LazyConfigAcceptor::new(Acceptor::default(), io).await.map_err(AtlsError::Handshake)?;
    let hello = start.client_hello();
    let (tls, peer) = if inner.binding == ChannelBinding::Required || bind::is_offered(&hello) {
        let mut tls = finish(start, Arc::clone(&inner.bound.server)).await?;
        let peer = bind::exchange(inner, &mut tls).await?;
        (tls, peer)
    } else {
        let nonce = hello.alpn().and_then(Nonce::from_alpn);
        by_certificate(inner, start, nonce).await?
    };
    Ok(AtlsStream::new(tls, peer))
}

async fn finish<IO>(
    start: StartHandshake<IO>,
    config: Arc<ServerConfig>,
) -> Result<TlsStream<IO>, AtlsError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let stream = start.into_stream(config).await;
    stream.map(TlsStream::Server).map_err(AtlsError::handshake)
}

/// Handshake with documents in its certificates.
async fn by_certificate<IO>(
    inner: &Arc<Inner>,
    start: StartHandshake<IO>,
    nonce: Option<Nonce>,
) -> Result<(TlsStream<IO>, Option<AttestedPeer>), AtlsError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let identity = identity(inner, nonce).await?;
    let verifier = PeerVerifier::judging(Arc::clone(inner), inner.nonce(), true);
    let judges = !inner.validators.is_empty();
    let config = config::server(
        &inner.provider,
        judges.then(|| Arc::clone(&verifier)),
        Arc::new(OneCertificate(Arc::new(identity))),
        bind::unbound(),
    );
    let stream = finish(start, Arc::new(config.map_err(AtlsError::Setup)?)).await;
    let peer = verifier.take()?;
    Ok((stream?, peer))
}

/// Quotes take as long as the TPM does, and anyone can request one, so their number is bounded.
async fn identity(inner: &Arc<Inner>, nonce: Option<Nonce>) -> Result<CertifiedKey, AtlsError> {
    let _permit = inner.issuing.try_acquire().map_err(|_| AtlsError::Busy)?;
    let certifying = Arc::clone(inner);
    let certify = move || certifying.certify(nonce.as_ref());
    inner.in_turn(certify).await
}
