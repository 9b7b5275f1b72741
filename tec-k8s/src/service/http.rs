//! One HTTP call over a Unix socket, TCP or TLS, with a deadline and a bound on the answer.
//!
//! Written here since the vault is reached through a socket that only its pod has, and since a
//! connection that is driven by its own call needs no task.

use std::fmt;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use http_body_util::Full;
use http_body_util::Limited;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tec_core::secret::SecretBytes;
use tokio::io::AsyncRead;
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;
use tokio::net::UnixStream;

/// Longest answer, in bytes.
const MAX_ANSWER: usize = 4 * 1024 * 1024;

/// Where calls go.
#[derive(Clone)]
#[expect(clippy::exhaustive_enums, reason = "these three are spoken")]
pub enum Target {
    /// A socket in the file system.
    Unix(PathBuf),
    /// A host and port without TLS. Only for loopback, where nobody else listens.
    DangerousPlain {
        /// Host and port.
        address: String,
    },
    /// A host and port with TLS.
    Tls {
        /// Host and port.
        address: String,
        /// Name in the certificate.
        name: ServerName<'static>,
        /// Trust and, maybe, a certificate of our own.
        config: Arc<ClientConfig>,
    },
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::DangerousPlain { address } => write!(f, "http://{address}"),
            Self::Tls { address, .. } => write!(f, "https://{address}"),
        }
    }
}

/// Makes calls to one target.
#[derive(Clone, Debug)]
pub struct Http {
    target: Target,
    deadline: Duration,
}

/// A call failed; whether it happened is not known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// Nobody listens, or TLS failed.
    #[error("connect to {0:?}")]
    Connect(Target, #[source] std::io::Error),
    /// The connection broke.
    #[error("speak to {0:?}")]
    Speak(Target, #[source] hyper::Error),
    /// The answer is too long, or its end is missing.
    #[error("read the answer of {0:?}")]
    Answer(Target, #[source] Box<dyn std::error::Error + Send + Sync>),
    /// The request cannot be written.
    #[error("write a request to {0:?}")]
    Request(Target, #[source] ::http::Error),
    /// No answer in time.
    #[error("{0:?} did not answer within {1:?}")]
    Deadline(Target, Duration),
}

/// An answer.
#[derive(Debug)]
#[non_exhaustive]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The body, which may hold secrets.
    pub body: Vec<u8>,
}

impl Http {
    /// Calls `target`; every call must be answered within `deadline`.
    pub fn new(target: Target, deadline: Duration) -> Self {
        Self { target, deadline }
    }

    /// Makes a call. `headers` may hold a token.
    ///
    /// # Errors
    /// [`HttpError`]; any status is an answer, not an error.
    ///
    /// # Cancel safety
    /// When dropped, the call may or may not have happened.
    pub async fn call(
        &self,
        method: ::http::Method,
        path: &str,
        headers: &[(&'static str, &SecretBytes)],
        body: Option<&SecretBytes>,
    ) -> Result<Reply, HttpError> {
        let mut request = ::http::Request::builder()
            .method(method)
            .uri(path)
            .header("host", self.host())
            .header("accept", "application/json");
        for (name, value) in headers {
            request = request.header(*name, value.expose("a header carries the token"));
        }
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let body = body.map_or(Bytes::new(), |body| {
            Bytes::copy_from_slice(body.expose("to send it"))
        });
        let request = request
            .body(Full::new(body))
            .map_err(|error| HttpError::Request(self.target.clone(), error))?;
        tokio::time::timeout(self.deadline, self.exchange(request))
            .await
            .map_err(|_| HttpError::Deadline(self.target.clone(), self.deadline))?
    }

    fn host(&self) -> &str {
        match &self.target {
            Target::Unix(_) => "localhost",
            Target::DangerousPlain { address } | Target::Tls { address, .. } => address,
        }
    }

    async fn exchange(&self, request: ::http::Request<Full<Bytes>>) -> Result<Reply, HttpError> {
        let refused = |error| HttpError::Connect(self.target.clone(), error);
        match &self.target {
            Target::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(refused)?;
                self.over(stream, request).await
            }
            Target::DangerousPlain { address } => {
                let stream = TcpStream::connect(address).await.map_err(refused)?;
                self.over(stream, request).await
            }
            Target::Tls {
                address,
                name,
                config,
            } => {
                let stream = TcpStream::connect(address).await.map_err(refused)?;
                let connector = tokio_rustls::TlsConnector::from(Arc::clone(config));
                let stream = connector.connect(name.clone(), stream).await;
                self.over(stream.map_err(refused)?, request).await
            }
        }
    }

    /// Drives connection and call together, since nothing else does.
    async fn over<S>(
        &self,
        stream: S,
        request: ::http::Request<Full<Bytes>>,
    ) -> Result<Reply, HttpError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let broken = |error| HttpError::Speak(self.target.clone(), error);
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(broken)?;
        let call = async {
            let answer = sender.send_request(request).await.map_err(broken)?;
            let status = answer.status().as_u16();
            let body = Limited::new(answer.into_body(), MAX_ANSWER);
            let body = body
                .collect()
                .await
                .map_err(|error| HttpError::Answer(self.target.clone(), error))?;
            let body = body.to_bytes().to_vec();
            Ok(Reply { status, body })
        };
        let (mut call, mut connection) = (pin!(call), pin!(connection));
        tokio::select! {
            biased;
            reply = &mut call => return reply,
            // The answer may have come with the end of the connection.
            _ = &mut connection => {}
        }
        call.await
    }
}
