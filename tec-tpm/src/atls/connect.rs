//! The client's end of a handshake.

use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;

use rustls::ClientConfig;
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::client::Resumption;
use rustls::pki_types::DnsName;
use rustls::pki_types::ServerName;
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use tokio::io::AsyncRead;
use tokio::io::AsyncWrite;
use tokio::runtime::Handle;
use tokio_rustls::TlsConnector;
use tokio_rustls::TlsStream;

use super::AtlsError;
use super::AtlsStream;
use super::Endpoint;
use super::Nonce;
use super::bind;
use super::endpoint::Inner;
use super::verify::PeerVerifier;

impl Endpoint {
    /// Connects over `io` and judges the server.
    ///
    /// With an issuer the whole handshake runs on a thread that may block, since rustls asks for
    /// the certificate, and so for a quote, in the midst of it.
    ///
    /// # Errors
    /// [`AtlsError`]; without validator always, unless
    /// [allowed](super::EndpointBuilder::dangerous_unverified_server).
    ///
    /// # Cancel safety
    /// Dropping the future gives the connection up; such a thread ends with the handshake's limit.
    pub async fn connect<IO>(&self, io: IO) -> Result<AtlsStream<IO>, AtlsError>
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let limit = self.0.limit;
        let inner = Arc::clone(&self.0);
        let blocks = inner.issuer.is_some();
        let handshake = async move {
            tokio::time::timeout(limit, connect(&inner, io))
                .await
                .unwrap_or(Err(AtlsError::TimedOut { limit }))
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
    if inner.validators.is_empty() && !inner.unverified_server {
        return Err(AtlsError::NoValidator);
    }
    let verifier = PeerVerifier::new(Arc::clone(inner));
    let identity = Arc::new(Identity::new(Arc::clone(inner)));
    let config = config(inner, &verifier, &identity)?;
    let stream = TlsConnector::from(Arc::new(config))
        .connect(unnamed(), io)
        .await;
    let peer = verifier.take()?;
    identity.take()?;
    let mut stream = TlsStream::Client(stream.map_err(AtlsError::Handshake)?);
    let peer = bind::exchange(inner, &mut stream, peer).await?;
    Ok(AtlsStream::new(stream, peer))
}

/// Evidence names the server; no name is sent.
fn unnamed() -> ServerName<'static> {
    const NAME: &str = "atls.invalid";
    match DnsName::try_from(NAME) {
        Ok(name) => ServerName::DnsName(name),
        Err(_) => ServerName::IpAddress(std::net::IpAddr::from([0, 0, 0, 0]).into()),
    }
}

fn config(
    inner: &Inner,
    verifier: &Arc<PeerVerifier>,
    identity: &Arc<Identity>,
) -> Result<ClientConfig, AtlsError> {
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&inner.provider))
        .with_protocol_versions(&[&TLS13])
        .map_err(AtlsError::Setup)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::clone(verifier) as Arc<_>)
        .with_client_cert_resolver(Arc::clone(identity) as Arc<_>);
    config.alpn_protocols = inner.binding.protocols();
    config.alpn_protocols.push(verifier.nonce().to_alpn());
    config.enable_sni = false;
    // Resumption would skip the evidence.
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Makes our certificate when the server asks for it.
struct Identity {
    inner: Arc<Inner>,
    failure: Mutex<Option<AtlsError>>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

impl Identity {
    fn new(inner: Arc<Inner>) -> Self {
        Self {
            inner,
            failure: Mutex::new(None),
        }
    }

    fn take(&self) -> Result<(), AtlsError> {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.take().map_or(Ok(()), Err)
    }
}

impl ResolvesClientCert for Identity {
    fn resolve(
        &self,
        root_hint_subjects: &[&[u8]],
        _sigschemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        // Asked also where there is nothing to say; the server then decides.
        self.inner.issuer.as_ref()?;
        let nonce = Nonce::from_authorities(root_hint_subjects);
        match self.inner.certify(nonce.as_ref()) {
            Ok(certified) => Some(Arc::new(certified)),
            Err(error) => {
                let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
                *failure = Some(error);
                None
            }
        }
    }

    fn has_certs(&self) -> bool {
        self.inner.issuer.is_some()
    }
}
