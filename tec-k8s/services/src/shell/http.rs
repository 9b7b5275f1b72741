//! HTTP calls over a Unix socket, TCP or TLS, with a deadline and a limit on the size of the answer.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Limited};
use parking_lot::Mutex;
use reqwest::header::HeaderValue;
use reqwest::redirect::Policy;
use reqwest::{Body, Client, Method, RequestBuilder, Response, Url};
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tec_core::secret::SecretBytes;
use tokio::time::{Instant, timeout};

/// Maximum size of an answer, in bytes.
const MAX_ANSWER: usize = 4 * 1024 * 1024;
/// Maximum number of idle connections that are kept. More are open only while there are more calls.
const IDLE: usize = 16;
/// How long connections are used for new calls: one authenticated by a certificate must not outlive the
/// certificate for long, and servers close idle connections only later (OpenBao after five minutes).
const LIFE: Duration = Duration::from_secs(30);
const JSON: &str = "application/json";

type Cause = Box<dyn std::error::Error + Send + Sync>;
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
        /// Host, as its certificate names it, and port.
        address: String,
        /// Trust and, optionally, a client certificate.
        config: Arc<ClientConfig>,
    },
}

impl Target {
    /// TLS to a host and port; the certificate must name the host.
    pub fn tls(address: &str, config: Arc<ClientConfig>) -> Result<Self, InvalidDnsNameError> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        ServerName::try_from(host)?;
        Ok(Self::Tls { address: address.to_owned(), config })
    }

    fn client(&self) -> reqwest::Result<Client> {
        let mut builder = Client::builder().no_proxy().redirect(Policy::none());
        if let Self::Unix(path) = self {
            builder = builder.unix_socket(path.as_path());
        }
        let config = match self {
            Self::Tls { config, .. } => ClientConfig::clone(config),
            // Unused; without it, reqwest would load the CAs of the system.
            Self::Unix(_) | Self::DangerousPlain { .. } => ClientConfig::builder()
                .with_root_certificates(RootCertStore::empty())
                .with_no_client_auth(),
        };
        builder.tls_backend_preconfigured(config).pool_max_idle_per_host(IDLE).build()
    }
}

/// Makes calls to one target. Clones share their connections.
#[derive(Clone, Debug)]
pub struct Http {
    pub(super) target: Target,
    deadline: Duration,
    /// Since when they are open.
    connections: Arc<Mutex<Option<(Instant, Client)>>>,
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
    Request(Target, #[source] Cause),
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
    /// # Panics
    /// If rustls has no default provider of cryptography, even without TLS.
    ///
    /// # Cancel safety
    /// When dropped, the call may or may not have happened.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, &SecretBytes)],
        body: Option<&SecretBytes>,
    ) -> Result<Reply, HttpError> {
        let mut request = self.request(method, path, headers)?.header("accept", JSON);
        if let Some(body) = body {
            let bytes = body.expose("to send it").to_vec();
            request = request.header("content-type", JSON).body(bytes);
        }
        // Boxed, since callers hold several calls at the same time.
        let exchange = async { self.read(self.send(request).await?, MAX_ANSWER).await };
        self.in_time(Box::pin(exchange)).await
    }

    pub(super) fn request(
        &self,
        method: Method,
        path: &str,
        headers: Headers<'_>,
    ) -> Result<RequestBuilder, HttpError> {
        let base = match &self.target {
            Target::Unix(_) => "http://localhost".to_owned(),
            Target::DangerousPlain { address } => format!("http://{address}"),
            Target::Tls { address, .. } => format!("https://{address}"),
        };
        let url = Url::parse(&(base + path)).map_err(|error| self.unwritten(error))?;
        // The parser resolves "..", and takes what does not begin with a slash for a part of the address.
        if !path.starts_with('/') || !url.as_str().ends_with(path) {
            return Err(self.unwritten("the path is not canonical"));
        }
        let mut request = self.client()?.request(method, url);
        for (name, value) in headers {
            let value = HeaderValue::from_bytes(value.expose("a header carries the token"));
            let mut value = value.map_err(|error| self.unwritten(error))?;
            value.set_sensitive(true);
            request = request.header(*name, value);
        }
        Ok(request)
    }

    fn unwritten(&self, cause: impl Into<Cause>) -> HttpError {
        HttpError::Request(self.target.clone(), cause.into())
    }

    pub(super) async fn send(&self, request: RequestBuilder) -> Result<Response, HttpError> {
        request.send().await.map_err(|error| {
            let failed = match () {
                () if error.is_builder() => HttpError::Request,
                () if error.is_connect() => HttpError::Connect,
                () => HttpError::Speak,
            };
            failed(self.target.clone(), error.without_url().into())
        })
    }

    /// Reads an answer of at most `limit` bytes.
    pub(super) async fn read(&self, answer: Response, limit: usize) -> Result<Reply, HttpError> {
        let status = answer.status().as_u16();
        let body = Limited::new(Body::from(answer), limit).collect().await;
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
    fn client(&self) -> Result<Client, HttpError> {
        let mut connections = self.connections.lock();
        let recent = connections.take().filter(|(since, _)| since.elapsed() < LIFE);
        let kept = match recent {
            Some(kept) => kept,
            None => (Instant::now(), self.target.client().map_err(|error| self.unwritten(error))?),
        };
        Ok(connections.insert(kept).1.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixListener;
    use tokio::task::JoinSet;

    use super::*;

    const EMPTY: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";

    /// Answers `calls` calls on each of `connections` connections, and closes them silently.
    fn serve(socket: &Path, connections: usize, calls: usize) -> JoinSet<()> {
        serve_answer(socket, connections, calls, EMPTY)
    }

    fn serve_answer(
        socket: &Path,
        connections: usize,
        calls: usize,
        answer: &'static [u8],
    ) -> JoinSet<()> {
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
        let reply = http.call(reqwest::Method::GET, "/", &[], None).await;
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

    #[tokio::test]
    async fn a_connection_is_used_for_a_limited_time() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let server = serve(&socket, 2, 2);
        let http = http(&socket);
        assert_eq!(status(&http).await.unwrap(), 200);
        tokio::time::pause();
        tokio::time::advance(LIFE).await;
        tokio::time::resume();
        assert_eq!(status(&http).await.unwrap(), 200);
        drop(http);
        // The second connection was accepted.
        timeout(Duration::from_secs(5), server.join_all()).await.unwrap();
    }

    #[tokio::test]
    async fn a_redirect_is_an_answer() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let elsewhere = b"HTTP/1.1 307 Temporary Redirect\r\nlocation: /elsewhere\r\n\
            content-length: 0\r\n\r\n";
        let server = serve_answer(&socket, 1, 1, elsewhere);
        assert_eq!(status(&http(&socket)).await.unwrap(), 307);
        server.join_all().await;
    }

    #[tokio::test]
    async fn an_answer_that_is_too_long_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let long = format!("HTTP/1.1 200 OK\r\n\r\n{}", " ".repeat(MAX_ANSWER + 1));
        let _server = serve_answer(&socket, 1, 1, long.leak().as_bytes());
        let reply = status(&http(&socket)).await;
        assert!(matches!(reply, Err(HttpError::Answer(..))), "{reply:?}");
    }

    #[tokio::test]
    async fn a_path_is_sent_as_it_is_or_not_at_all() {
        let http = http(Path::new("/nobody"));
        for path in ["/v1/../v2", "/v1/%2e%2E/v2", "/v1\\v2", "/a b", "/a\tb", "@elsewhere/", "0/"]
        {
            let refused = http.call(Method::GET, path, &[], None).await;
            assert!(matches!(refused, Err(HttpError::Request(..))), "{path}: {refused:?}");
        }
    }

    #[test]
    fn a_token_is_not_printed() {
        let token = SecretBytes::new(b"s.token".to_vec());
        let headers = [("x-vault-token", &token)];
        let request = http(Path::new("/nobody")).request(Method::GET, "/", &headers).unwrap();
        let printed = format!("{request:?}");
        assert!(printed.contains("x-vault-token") && !printed.contains("s.token"), "{printed}");
    }
}
