//! HTTP calls over a Unix socket, TCP or TLS, with a deadline and a limit on the size of the answer.
//!
//! Implemented here because the vault is reached through a socket that only its pod has, and because a
//! connection that is driven by the call that uses it needs no task.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use rustls::ClientConfig;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use tec_core::secret::SecretBytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::keep_alive::{Connection, Failure, Idle, Request};

/// The target of calls.
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
        /// Trust and, optionally, a client certificate.
        config: Arc<ClientConfig>,
    },
}

impl Target {
    /// TLS to a host and port; the certificate must name the host.
    ///
    /// # Errors
    /// The host is not a valid server name.
    pub fn tls(address: &str, config: Arc<ClientConfig>) -> Result<Self, InvalidDnsNameError> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        Ok(Self::Tls {
            address: address.to_owned(),
            name: ServerName::try_from(host.to_owned())?,
            config,
        })
    }
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

/// A connection in both directions.
pub(super) trait Dialed: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Dialed for T {}

/// Makes calls to one target. Clones share their connections.
#[derive(Clone, Debug)]
pub struct Http {
    pub(super) target: Target,
    pub(super) deadline: Duration,
    idle: Arc<Idle>,
}

/// A call failed; it may have taken effect.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// The target does not listen, or TLS failed.
    #[error("cannot connect to {0:?}")]
    Connect(Target, #[source] std::io::Error),
    /// The connection broke.
    #[error("cannot communicate with {0:?}")]
    Speak(Target, #[source] hyper::Error),
    /// The answer is too long, or its end is missing.
    #[error("cannot read the answer of {0:?}")]
    Answer(Target, #[source] Box<dyn std::error::Error + Send + Sync>),
    /// The request cannot be created.
    #[error("cannot write a request to {0:?}")]
    Request(Target, #[source] ::http::Error),
    /// The answer cannot be stored.
    #[error("cannot store the answer of {0:?}")]
    Store(Target, #[source] std::io::Error),
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
        Self { target, deadline, idle: Arc::default() }
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
        let body =
            body.map_or(Bytes::new(), |body| Bytes::copy_from_slice(body.expose("to send it")));
        let request = request
            .body(Full::new(body))
            .map_err(|error| HttpError::Request(self.target.clone(), error))?;
        // Boxed, since callers hold several calls at the same time.
        tokio::time::timeout(self.deadline, Box::pin(self.exchange(request)))
            .await
            .map_err(|_| HttpError::Deadline(self.target.clone(), self.deadline))?
    }

    pub(super) fn host(&self) -> &str {
        match &self.target {
            Target::Unix(_) => "localhost",
            Target::DangerousPlain { address } | Target::Tls { address, .. } => address,
        }
    }

    async fn exchange(&self, mut request: Request) -> Result<Reply, HttpError> {
        while let Some(kept) = self.idle.take() {
            match kept.call(request).await {
                // It was closed while idle.
                Err(Failure::Unsent(unsent, _)) => request = *unsent,
                outcome => return self.settle(outcome),
            }
        }
        let fresh = self.connect().await?;
        self.settle(fresh.call(request).await)
    }

    fn settle(
        &self,
        outcome: Result<(Reply, Option<Connection>), Failure>,
    ) -> Result<Reply, HttpError> {
        let target = || self.target.clone();
        let (reply, connection) = outcome.map_err(|failure| match failure {
            Failure::Unsent(_, error) | Failure::Broken(error) => HttpError::Speak(target(), error),
            Failure::Answer(error) => HttpError::Answer(target(), error),
        })?;
        if let Some(connection) = connection {
            self.idle.keep(connection);
        }
        Ok(reply)
    }

    async fn connect(&self) -> Result<Connection, HttpError> {
        let connection = Connection::over(self.dial().await?).await;
        connection.map_err(|error| HttpError::Speak(self.target.clone(), error))
    }

    /// A new connection to the target.
    pub(super) async fn dial(&self) -> Result<Box<dyn Dialed>, HttpError> {
        let refused = |error| HttpError::Connect(self.target.clone(), error);
        Ok(match &self.target {
            Target::Unix(path) => Box::new(UnixStream::connect(path).await.map_err(refused)?),
            Target::DangerousPlain { address } => {
                Box::new(TcpStream::connect(address).await.map_err(refused)?)
            }
            Target::Tls { address, name, config } => {
                let stream = TcpStream::connect(address).await.map_err(refused)?;
                let connector = tokio_rustls::TlsConnector::from(Arc::clone(config));
                let stream = connector.connect(name.clone(), stream).await;
                Box::new(stream.map_err(refused)?)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixListener;
    use tokio::task::JoinSet;

    use super::*;

    /// Answers `calls` calls on each of `connections` connections, and closes them silently.
    fn serve(socket: &Path, connections: usize, calls: usize) -> JoinSet<()> {
        let listener = UnixListener::bind(socket).unwrap();
        let mut server = JoinSet::new();
        server.spawn(async move {
            for _ in 0..connections {
                let (mut stream, _) = listener.accept().await.unwrap();
                for _ in 0..calls {
                    let mut buffer = [0; 1024];
                    // A request without a body arrives whole on a socket of the same machine.
                    if stream.read(&mut buffer).await.unwrap() == 0 {
                        break;
                    }
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
                    stream.write_all(answer).await.unwrap();
                }
            }
        });
        server
    }

    fn http(socket: &Path) -> Http {
        Http::new(Target::Unix(socket.to_owned()), Duration::from_secs(5))
    }

    async fn status(http: &Http) -> Result<u16, HttpError> {
        let reply = http.call(::http::Method::GET, "/", &[], None).await;
        reply.map(|reply| reply.status)
    }

    #[tokio::test]
    async fn calls_share_a_connection() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let server = serve(&socket, 1, 3);
        let http = http(&socket);
        for _ in 0..3 {
            assert_eq!(status(&http.clone()).await.unwrap(), 200);
        }
        server.join_all().await;
    }

    #[tokio::test]
    async fn a_connection_that_was_closed_while_it_waited_fails_no_call() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let server = serve(&socket, 3, 1);
        let http = http(&socket);
        for _ in 0..3 {
            assert_eq!(status(&http).await.unwrap(), 200);
        }
        server.join_all().await;
        let nobody = status(&http).await;
        assert!(matches!(nobody, Err(HttpError::Connect(..))), "{nobody:?}");
    }

    #[tokio::test]
    async fn connections_of_a_server_that_was_restarted_fail_no_call() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let http = http(&socket);
        let mut server = serve(&socket, 1, 2);
        assert_eq!(status(&http).await.unwrap(), 200);
        server.shutdown().await;
        std::fs::remove_file(&socket).unwrap();
        let _server = serve(&socket, 1, 1);
        assert_eq!(status(&http).await.unwrap(), 200);
    }
}
