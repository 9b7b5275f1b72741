//! The client's side of a handshake.

use std::sync::Arc;

use parking_lot::Mutex;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::{DnsName, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;
use tokio_rustls::{TlsConnector, TlsStream};

use super::inner::Inner;
use super::verify::PeerVerifier;
use super::{AtlsError, AtlsStream, AttestedPeer, ChannelBinding, Endpoint, Nonce, bind, config};

impl Endpoint {
    /// Connects over `io`, verifies the server, and then proves this side to it if there is an issuer.
    ///
    /// With an issuer, and unless binding is required, the whole handshake runs on a thread that
    /// may block, because rustls asks for the certificate, and thus for a quote, in the middle of
    /// it.
    ///
    /// # Errors
    /// [`AtlsError`]; always if there is no validator. A server that refuses this side's evidence closes the
    /// connection later.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the connection; the thread ends with the handshake's time
    /// limit.
    pub async fn connect<IO>(&self, io: IO) -> Result<AtlsStream<IO>, AtlsError>
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let limit = self.0.limit;
        let inner = Arc::clone(&self.0);
        let blocks = inner.issuer.is_some() && inner.binding != ChannelBinding::Required;
        let handshake = async move {
            tokio::time::timeout(limit, connect(&inner, io))
                .await
                .unwrap_or(Err(AtlsError::TimedOut(limit)))
        };
        if !blocks {
            return handshake.await;
        }
        let runtime = Handle::current();
        tokio::task::spawn_blocking(move || runtime.block_on(handshake))
            .await
            .map_err(|_| AtlsError::Thread)?
    }
}

async fn connect<IO>(inner: &Arc<Inner>, io: IO) -> Result<AtlsStream<IO>, AtlsError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    if inner.validators.is_empty() {
        return Err(AtlsError::NoValidator);
    }
    let (tls, peer) = match inner.binding {
        ChannelBinding::Required => {
            let config = Arc::clone(&inner.bound.client);
            let mut tls = finish(config, io).await?;
            let peer = bind::exchange(inner, &mut tls).await?;
            (tls, peer)
        }
        ChannelBinding::WherePeerCan => {
            let protocols = [bind::bound(), bind::unbound()].concat();
            with_nonce(inner, io, protocols).await?
        }
    };
    Ok(AtlsStream::new(tls, peer))
}

async fn finish<IO>(config: Arc<ClientConfig>, io: IO) -> Result<TlsStream<IO>, AtlsError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let stream = TlsConnector::from(config).connect(unnamed(), io).await;
    stream.map(TlsStream::Client).map_err(AtlsError::handshake)
}

/// The server decides where documents are sent: in certificates, or over the connection.
pub(super) async fn with_nonce<IO>(
    inner: &Arc<Inner>,
    io: IO,
    mut protocols: Vec<Vec<u8>>,
) -> Result<(TlsStream<IO>, Option<AttestedPeer>), AtlsError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let nonce = inner.nonce();
    let verifier = PeerVerifier::judging(Arc::clone(inner), nonce, false);
    let identity = Arc::new(Identity::new(Arc::clone(inner), Arc::clone(&verifier)));
    protocols.push(nonce.to_alpn());
    let attests = inner.issuer.is_some();
    let config = config::client(
        &inner.provider,
        Arc::clone(&verifier),
        attests.then(|| Arc::clone(&identity) as Arc<_>),
        protocols,
    )
    .map_err(AtlsError::Setup)?;
    let stream = finish(Arc::new(config), io).await;
    if let Ok(mut tls) = stream {
        if bind::is_agreed(&tls) {
            let peer = bind::exchange(inner, &mut tls).await?;
            return Ok((tls, peer));
        }
        let peer = verifier.take()?;
        identity.take()?;
        return Ok((tls, peer));
    }
    verifier.take()?;
    identity.take()?;
    Err(stream.err().unwrap_or(AtlsError::NoCertificate))
}

/// Evidence identifies the server; no name is sent.
fn unnamed() -> ServerName<'static> {
    const NAME: &str = "atls.invalid";
    match DnsName::try_from(NAME) {
        Ok(name) => ServerName::DnsName(name),
        Err(_) => ServerName::IpAddress(std::net::IpAddr::from([0, 0, 0, 0]).into()),
    }
}

/// Creates our certificate when the server asks for it.
#[derive(derive_more::Debug)]
#[debug("Identity {{ .. }}")]
struct Identity {
    inner: Arc<Inner>,
    verifier: Arc<PeerVerifier>,
    failure: Mutex<Option<AtlsError>>,
}

impl Identity {
    fn new(inner: Arc<Inner>, verifier: Arc<PeerVerifier>) -> Self {
        Self { inner, verifier, failure: Mutex::new(None) }
    }

    fn take(&self) -> Result<(), AtlsError> {
        let mut failure = self.failure.lock();
        failure.take().map_or(Ok(()), Err)
    }

    fn fail(&self, error: AtlsError) {
        let mut failure = self.failure.lock();
        *failure = Some(error);
    }
}

impl ResolvesClientCert for Identity {
    fn resolve(
        &self,
        root_hint_subjects: &[&[u8]],
        _sigschemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        let Some(nonce) = Nonce::from_authorities(root_hint_subjects) else {
            // A server that expects evidence over the connection sends no nonce; any other gets a
            // certificate that proves nothing, and the failure counts.
            self.fail(AtlsError::NoNonce);
            return Some(Arc::clone(&self.inner.bound.certificate));
        };
        // It wants our document in a certificate, so its own document is in one, which is verified
        // before ours is sent.
        self.verifier.demand_document();
        self.inner.certify(Some(&nonce)).map_err(|error| self.fail(error)).ok().map(Arc::new)
    }

    fn has_certs(&self) -> bool {
        true
    }
}
