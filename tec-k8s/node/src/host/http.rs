//! Plain HTTP to services of the host itself. A proxy or a redirect could answer in their place, so neither
//! is followed. Without TLS, no program has to choose a TLS provider.

use std::borrow::Cow;
use std::time::Duration;

use http::header::HOST;
use http::{Method, Uri};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Time limit; such a service is on the host itself.
const LIMIT: Duration = Duration::from_secs(10);
/// Maximum size of an answer.
const MAX_ANSWER: usize = 1024 * 1024;
/// Default port of a URL (RFC 9110, section 4.2.1).
const PORT: u16 = 80;

/// A call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// The URL is not a plain HTTP URL.
    #[error("not a plain HTTP URL: {0}")]
    Url(String),
    /// The connection cannot be opened.
    #[error("no connection")]
    Connect(#[source] std::io::Error),
    /// The connection broke, or the answer is not HTTP.
    #[error("no answer over the connection")]
    Exchange(#[source] hyper::Error),
    /// It took too long.
    #[error("no answer within {LIMIT:?}")]
    TimedOut,
    /// The service answered with an error.
    #[error("unexpected answer {0}")]
    Status(u16),
    /// The answer lacks the mark of the service.
    #[error("the answer lacks the header {0} of the service")]
    Stranger(&'static str),
    /// The answer is too large.
    #[error("the answer has more than {MAX_ANSWER} bytes")]
    TooLarge,
}

/// A request to make, without a body.
#[derive(Debug)]
pub(super) struct Ask {
    method: Method,
    url: String,
    headers: Vec<(&'static str, Cow<'static, str>)>,
    mark: Option<(&'static str, &'static str)>,
}

impl Ask {
    /// A GET of this URL.
    pub(super) fn get(url: impl Into<String>) -> Self {
        Self { method: Method::GET, url: url.into(), headers: Vec::new(), mark: None }
    }

    /// A PUT with an empty body.
    pub(super) fn put(url: impl Into<String>) -> Self {
        Self { method: Method::PUT, ..Self::get(url) }
    }

    /// Adds a header.
    pub(super) fn header(
        mut self,
        name: &'static str,
        value: impl Into<Cow<'static, str>>,
    ) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Accepts only answers with this header: others come from a different service.
    pub(super) fn marked(mut self, name: &'static str, value: &'static str) -> Self {
        self.mark = Some((name, value));
        self
    }

    /// The body of a successful answer.
    pub(super) async fn body(self) -> Result<Vec<u8>, HttpError> {
        tokio::time::timeout(LIMIT, self.exchange()).await.unwrap_or(Err(HttpError::TimedOut))
    }

    async fn exchange(self) -> Result<Vec<u8>, HttpError> {
        let malformed = || HttpError::Url(self.url.clone());
        let uri: Uri = self.url.parse().map_err(|_| malformed())?;
        let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http"));
        let authority = authority.ok_or_else(malformed)?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let request = hyper::Request::builder().method(self.method.clone());
        let mut request = request.uri(path).header(HOST, authority.as_str());
        for (name, value) in &self.headers {
            request = request.header(*name, value.as_ref());
        }
        let request = request.body(Empty::<Bytes>::new());
        let request = request.map_err(|_| malformed())?;
        let host = authority.host().trim_matches(['[', ']']);
        let stream = TcpStream::connect((host, authority.port_u16().unwrap_or(PORT)));
        let stream = stream.await.map_err(HttpError::Connect)?;
        let connected = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = connected.map_err(HttpError::Exchange)?;
        let answer = async move {
            let answer = sender.send_request(request).await;
            collect(answer.map_err(HttpError::Exchange)?, self.mark).await
        };
        // The connection ends when nobody sends any more.
        let (answer, _) = tokio::join!(answer, connection);
        answer
    }
}

async fn collect(
    answer: hyper::Response<Incoming>,
    mark: Option<(&'static str, &'static str)>,
) -> Result<Vec<u8>, HttpError> {
    if !answer.status().is_success() {
        return Err(HttpError::Status(answer.status().as_u16()));
    }
    if let Some((name, value)) = mark
        && answer.headers().get(name).is_none_or(|found| found != value)
    {
        return Err(HttpError::Stranger(name));
    }
    let mut body = answer.into_body();
    let mut all = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(HttpError::Exchange)?;
        let more = frame.into_data().unwrap_or_default();
        if all.len() + more.len() > MAX_ANSWER {
            return Err(HttpError::TooLarge);
        }
        all.extend_from_slice(&more);
    }
    Ok(all)
}
