//! Plain HTTP to services of the host itself. A proxy or a redirect could answer in their place, so neither
//! is followed. Without TLS, no program has to choose a TLS provider.

use std::borrow::Cow;
use std::time::Duration;

use http::{Method, Request};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::TokioExecutor;

/// Time limit; such a service is on the host itself.
const LIMIT: Duration = Duration::from_secs(10);
/// Maximum size of an answer.
const MAX_ANSWER: usize = 1024 * 1024;

/// A call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// The URL is not a plain HTTP URL.
    #[error("not a plain HTTP URL: {0}")]
    Url(String),
    /// The connection cannot be opened or broke, or the answer is not HTTP.
    #[error("no answer over the connection")]
    Exchange(#[source] Error),
    /// It took too long.
    #[error("no answer within {LIMIT:?}")]
    TimedOut,
    /// The service answered with an error.
    #[error("unexpected answer {0}")]
    Status(u16),
    /// The answer lacks the mark of the service.
    #[error("the answer lacks the header {0} of the service")]
    Stranger(&'static str),
    /// The answer is too large, or its end is missing.
    #[error("no whole answer of at most {MAX_ANSWER} bytes")]
    Answer(#[source] Box<dyn std::error::Error + Send + Sync>),
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
        let mut request = Request::builder().method(self.method).uri(&self.url);
        for (name, value) in &self.headers {
            request = request.header(*name, value.as_ref());
        }
        let request = request.body(Empty::<&[u8]>::new()).ok();
        let request = request.filter(|request| request.uri().scheme_str() == Some("http"));
        let request = request.ok_or(HttpError::Url(self.url))?;
        let client = Client::builder(TokioExecutor::new()).build_http();
        let answer = client.request(request).await.map_err(HttpError::Exchange)?;
        if !answer.status().is_success() {
            return Err(HttpError::Status(answer.status().as_u16()));
        }
        if let Some((name, value)) = self.mark
            && answer.headers().get(name).is_none_or(|found| found != value)
        {
            return Err(HttpError::Stranger(name));
        }
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        Ok(body.map_err(HttpError::Answer)?.to_bytes().into())
    }
}
