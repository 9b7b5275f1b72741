//! Passes requests on, and answers back.

use axum::body::Body;
use axum::http::uri::{Authority, PathAndQuery, Scheme};
use axum::http::{HeaderMap, HeaderName, Request, Response, Uri, Version, header};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tec_core::port::chain;
use tokio::time::{Duration, timeout};

use crate::kbs::reply::{Refusal, Reply};

/// The Trustee must have begun to answer by then; clients wait 60 s.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(50);

/// The same for a probe, whose own deadline is five seconds.
const PROBE_TIMEOUT: Duration = Duration::from_secs(4);

/// Headers that belong to one connection (RFC 9110, section 7.6.1; the last two are legacy).
const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// The Trustee behind the guard.
pub(super) struct Upstream {
    client: Client<HttpConnector, Body>,
    authority: Authority,
}

impl Upstream {
    pub(super) fn new(authority: Authority) -> Self {
        Self { client: Client::builder(TokioExecutor::new()).build_http(), authority }
    }

    /// Passes a request on and its answer back, unchanged. The framing of the body belongs to each
    /// connection: it is derived anew from the body itself.
    pub(super) async fn stream(&self, mut request: Request<Body>) -> Reply {
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() = self.uri(path)?;
        *request.version_mut() = Version::HTTP_11;
        remove_hop_by_hop(request.headers_mut());
        for framing in [header::CONTENT_LENGTH, header::EXPECT] {
            request.headers_mut().remove(framing);
        }
        let answer = timeout(ANSWER_TIMEOUT, self.client.request(request))
            .await
            .map_err(|_elapsed| unavailable("no answer in time"))?
            .map_err(|error| unavailable(&chain(&error)))?;
        let mut answer = answer.map(Body::new);
        remove_hop_by_hop(answer.headers_mut());
        Ok(answer)
    }

    /// Whether the Trustee answers requests. Versions before v0.21 have no `/healthz`: their 404 proves as
    /// much as the 200 of later ones, which check nothing behind it.
    pub(super) async fn answers(&self) -> bool {
        let Ok(uri) = self.uri(Some(PathAndQuery::from_static("/healthz"))) else {
            return false;
        };
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = uri;
        let answer = timeout(PROBE_TIMEOUT, self.client.request(request)).await;
        answer.is_ok_and(|answer| answer.is_ok_and(|answer| !answer.status().is_server_error()))
    }

    fn uri(&self, path: Option<PathAndQuery>) -> Result<Uri, Refusal> {
        let mut parts = axum::http::uri::Parts::default();
        parts.scheme = Some(Scheme::HTTP);
        parts.authority = Some(self.authority.clone());
        parts.path_and_query = Some(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
        Uri::from_parts(parts).map_err(|error| unavailable(&error))
    }
}

pub(super) fn unavailable(why: &(impl std::fmt::Display + ?Sized)) -> Refusal {
    tracing::error!(error = %why, "the Trustee behind the guard does not answer");
    Refusal::busy("the key broker does not answer, try again later")
}

/// Whether `Connection` names only headers that belong to a connection. Any other header that it names, such
/// as the cookie, would be removed on the way to the Trustee after the guard has read it.
pub(super) fn connection_is_plain(headers: &HeaderMap) -> bool {
    let plain = |name: &str| {
        name.is_empty()
            || name.eq_ignore_ascii_case("close")
            || HOP_BY_HOP.iter().any(|known| name.eq_ignore_ascii_case(known.as_str()))
    };
    headers.get_all(header::CONNECTION).iter().all(|value| {
        value.to_str().is_ok_and(|text| text.split(',').all(|name| plain(name.trim())))
    })
}

/// Also removes those that `Connection` names.
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in HOP_BY_HOP.iter().chain(&named) {
        headers.remove(name);
    }
}

/// An answer that was read completely, to be examined and passed on unchanged.
pub(super) struct Whole {
    pub(super) answer: Response<()>,
    pub(super) body: axum::body::Bytes,
}

impl Whole {
    pub(super) fn into_response(self) -> Response<Body> {
        self.answer.map(|()| Body::from(self.body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_one_connection_stay_there() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Once"),
            ("x-once", "1"),
            ("cookie", "a=b"),
            ("keep-alive", "5"),
        ] {
            headers.insert(HeaderName::from_static(name), value.parse().unwrap());
        }
        assert!(!connection_is_plain(&headers));
        remove_hop_by_hop(&mut headers);
        assert!(connection_is_plain(&headers));
        assert_eq!(headers.len(), 1);
        assert!(headers.contains_key("cookie"));
    }
}
