//! HTTP calls over a Unix socket, TCP or TLS, with a deadline and a limit on the size of the answer.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use tec_core::secret::SecretBytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, timeout};
use tower_service::Service;

/// Maximum size of an answer, in bytes.
const MAX_ANSWER: usize = 4 * 1024 * 1024;
/// Maximum number of idle connections that are kept. More are open only while there are more calls.
const IDLE: usize = 16;
/// How long connections are used for new calls: one authenticated by a certificate must not outlive the
/// certificate for long, and servers close idle connections only later (OpenBao after five minutes).
const LIFE: Duration = Duration::from_secs(30);

type Cause = Box<dyn std::error::Error + Send + Sync>;
pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;
pub(super) type Headers<'a> = &'a [(&'static str, &'a SecretBytes)];

/// The target of calls.
#[derive(Clone, derive_more::Debug)]
pub enum Target {
    /// A socket in the file system.
    #[debug("unix:{}", _0.display())]
    Unix(PathBuf),
    /// A host and port without TLS. Only for loopback, where nobody else listens.
    #[debug("http://{address}")]
    DangerousPlain {
        /// Host and port.
        address: String,
    },
    /// A host and port with TLS.
    #[debug("https://{address}")]
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
    pub fn tls(address: &str, config: Arc<ClientConfig>) -> Result<Self, InvalidDnsNameError> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        Ok(Self::Tls {
            address: address.to_owned(),
            name: ServerName::try_from(host.to_owned())?,
            config,
        })
    }
}

/// Opens connections to a target.
#[derive(Clone)]
struct Dial(Target);

/// A connection in both directions.
trait Dialed: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Dialed for T {}

impl Connection for Box<dyn Dialed> {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Target {
    async fn dial(self) -> io::Result<Box<dyn Dialed>> {
        Ok(match self {
            Self::Unix(path) => Box::new(UnixStream::connect(path).await?),
            Self::DangerousPlain { address } => Box::new(TcpStream::connect(address).await?),
            Self::Tls { address, name, config } => {
                let stream = TcpStream::connect(address).await?;
                let connector = tokio_rustls::TlsConnector::from(config);
                Box::new(connector.connect(name, stream).await?)
            }
        })
    }
}

impl Service<::http::Uri> for Dial {
    type Response = TokioIo<Box<dyn Dialed>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: ::http::Uri) -> Self::Future {
        let target = self.0.clone();
        Box::pin(async move { target.dial().await.map(TokioIo::new) })
    }
}

/// Makes calls to one target. Clones share their connections.
#[derive(Clone, Debug)]
pub struct Http {
    pub(super) target: Target,
    deadline: Duration,
    connections: Arc<Mutex<Option<Connections>>>,
}

#[derive(Debug)]
struct Connections {
    since: Instant,
    client: Client<Dial, Body>,
}

/// A call failed; it may have taken effect.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// The target does not listen, or TLS failed.
    #[error("cannot connect to {0:?}")]
    Connect(Target, #[source] Cause),
    /// The connection broke.
    #[error("cannot communicate with {0:?}")]
    Speak(Target, #[source] Cause),
    /// The answer is too long, or its end is missing.
    #[error("cannot read the answer of {0:?}")]
    Answer(Target, #[source] Cause),
    /// The request cannot be created.
    #[error("cannot write a request to {0:?}")]
    Request(Target, #[source] ::http::Error),
    /// The answer cannot be stored.
    #[error("cannot store the answer of {0:?}")]
    Store(Target, #[source] io::Error),
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
        Self { target, deadline, connections: Arc::default() }
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
        let bytes =
            body.map_or(Bytes::new(), |body| Bytes::copy_from_slice(body.expose("to send it")));
        let bytes = Full::new(bytes).map_err(|never| match never {}).boxed_unsync();
        let mut request = self.request(method, path, headers, bytes)?;
        let json = || ::http::HeaderValue::from_static("application/json");
        request.headers_mut().insert("accept", json());
        if body.is_some() {
            request.headers_mut().insert("content-type", json());
        }
        // Boxed, since callers hold several calls at the same time.
        let exchange = async { self.read(self.send(request).await?, MAX_ANSWER).await };
        self.in_time(Box::pin(exchange)).await
    }

    pub(super) fn request(
        &self,
        method: ::http::Method,
        path: &str,
        headers: Headers<'_>,
        body: Body,
    ) -> Result<::http::Request<Body>, HttpError> {
        let host = match &self.target {
            Target::Unix(_) => "localhost",
            Target::DangerousPlain { address } | Target::Tls { address, .. } => address,
        };
        // Only the path is sent: where the call goes is up to the target.
        let uri = format!("http://localhost{path}");
        let mut request = ::http::Request::builder().method(method).uri(uri).header("host", host);
        for (name, value) in headers {
            request = request.header(*name, value.expose("a header carries the token"));
        }
        request.body(body).map_err(|error| HttpError::Request(self.target.clone(), error))
    }

    pub(super) async fn send(
        &self,
        request: ::http::Request<Body>,
    ) -> Result<::http::Response<Incoming>, HttpError> {
        self.client().request(request).await.map_err(|error| {
            let failed = if error.is_connect() { HttpError::Connect } else { HttpError::Speak };
            failed(self.target.clone(), error.into())
        })
    }

    /// Reads an answer of at most `limit` bytes.
    pub(super) async fn read(
        &self,
        answer: ::http::Response<Incoming>,
        limit: usize,
    ) -> Result<Reply, HttpError> {
        let status = answer.status().as_u16();
        let body = Limited::new(answer.into_body(), limit).collect().await;
        let body = body.map_err(|error| HttpError::Answer(self.target.clone(), error))?;
        Ok(Reply { status, body: body.to_bytes().to_vec() })
    }

    pub(super) async fn in_time<T>(
        &self,
        part: impl Future<Output = Result<T, HttpError>>,
    ) -> Result<T, HttpError> {
        let late = |_| Err(HttpError::Deadline(self.target.clone(), self.deadline));
        timeout(self.deadline, part).await.unwrap_or_else(late)
    }

    /// A call that was not sent since its connection was closed while idle is sent over another one.
    fn client(&self) -> Client<Dial, Body> {
        let mut connections = self.connections.lock();
        let recent = connections.take().filter(|kept| kept.since.elapsed() < LIFE);
        let open = || {
            let mut builder = Client::builder(TokioExecutor::new());
            let client = builder.pool_max_idle_per_host(IDLE).build(Dial(self.target.clone()));
            Connections { since: Instant::now(), client }
        };
        connections.insert(recent.unwrap_or_else(open)).client.clone()
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
