//! A registry that misbehaves on demand.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use tec_registry::testing::Content;

/// How it misbehaves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Behaviour {
    /// Requires this token, which `/token` issues in exchange for `Basic …`.
    pub(crate) bearer: Option<(&'static str, &'static str)>,
    /// Blobs are redirected to this host.
    pub(crate) redirect: Option<String>,
    /// Each answer with a blob ends after this many bytes.
    pub(crate) cut: Option<usize>,
    /// It does not support ranges.
    pub(crate) ignores_ranges: bool,
    /// Number of calls that are first answered with 503.
    pub(crate) busy: usize,
}

/// The requests it received, and how much it sent.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) calls: Vec<String>,
    /// `Authorization` of calls to `/v2`, if there was one.
    pub(crate) authorized: Vec<String>,
    pub(crate) bytes: usize,
}

pub(crate) struct Fake {
    pub(crate) host: String,
    pub(crate) seen: Arc<Mutex<Seen>>,
}

#[derive(Clone)]
struct Shared {
    content: Arc<Content>,
    behaviour: Behaviour,
    host: String,
    seen: Arc<Mutex<Seen>>,
}

impl Fake {
    pub(crate) async fn start(content: &Content, behaviour: Behaviour) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let shared = Shared {
            content: Arc::new(content.clone()),
            behaviour,
            host: host.clone(),
            seen: Arc::clone(&seen),
        };
        let router = Router::new().fallback(answer).with_state(shared);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { host, seen }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.seen.lock().unwrap().bytes
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.seen.lock().unwrap().calls.clone()
    }
}

fn status(code: u16) -> axum::http::response::Builder {
    Response::builder().status(code)
}

async fn answer(State(shared): State<Shared>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let header = |name: &str| {
        let value = request.headers().get(name);
        value.map(|value| value.to_str().unwrap().to_owned())
    };
    let authorization = header("authorization");
    let count = {
        let mut seen = shared.seen.lock().unwrap();
        seen.calls.push(path.clone());
        if path.starts_with("/v2") {
            seen.authorized.extend(authorization.clone());
        }
        seen.calls.len()
    };
    let behaviour = &shared.behaviour;
    if count <= behaviour.busy {
        return status(503).body(Body::empty()).unwrap();
    }
    if let Some((basic, token)) = behaviour.bearer {
        if path == "/token" {
            let scope = request.uri().query().unwrap_or_default().to_owned();
            let is_allowed = authorization.as_deref() == Some(basic) && scope.contains("pull");
            let body = format!(r#"{{"token":"{token}","expires_in":60}}"#);
            return if is_allowed {
                Response::new(body.into())
            } else {
                status(401).body(Body::empty()).unwrap()
            };
        }
        if authorization != Some(format!("Bearer {token}")) {
            let host = &shared.host;
            let challenge = format!(r#"Bearer realm="http://{host}/token",service="fake""#);
            let refused = status(401).header("www-authenticate", challenge);
            return refused.body(Body::empty()).unwrap();
        }
    }
    let digest = path.rsplit('/').next().unwrap_or_default();
    if path.contains("/manifests/") {
        return match shared.content.manifests.get(digest) {
            Some((_, bytes)) => Response::new(bytes.clone().into()),
            None => status(404).body(Body::empty()).unwrap(),
        };
    }
    if let Some(host) = &behaviour.redirect {
        let place = format!("http://{host}{path}");
        let moved = status(307).header("location", place);
        return moved.body(Body::empty()).unwrap();
    }
    match shared.content.blobs.get(digest) {
        Some(bytes) => blob(&shared, bytes, header("range").as_deref()),
        None => status(404).body(Body::empty()).unwrap(),
    }
}

/// RFC 9110, 14: one range, as the reader sends it.
fn blob(shared: &Shared, bytes: &[u8], range: Option<&str>) -> Response {
    let range = range.filter(|_| !shared.behaviour.ignores_ranges);
    let (code, part) = match range.and_then(|range| range.strip_prefix("bytes=")) {
        Some(range) => {
            let (first, last) = range.split_once('-').unwrap();
            let (first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
            (206, &bytes[first..bytes.len().min(last + 1)])
        }
        None => (200, bytes),
    };
    let sent = shared.behaviour.cut.unwrap_or(part.len()).min(part.len());
    shared.seen.lock().unwrap().bytes += sent;
    let chunk = part[..sent].to_vec();
    if sent == part.len() {
        return status(code).body(chunk.into()).unwrap();
    }
    // The length promises more, so the connection breaks off.
    let stream = axum::body::Body::from_stream(Cut::new(chunk));
    let answer = status(code).header("content-length", part.len());
    answer.body(stream).unwrap()
}

/// Some bytes, followed by an error.
struct Cut(std::collections::VecDeque<Option<Result<axum::body::Bytes, std::io::Error>>>);

impl Cut {
    fn new(bytes: Vec<u8>) -> Self {
        let broken = std::io::Error::other("cut");
        Self([Some(Ok(bytes.into())), None, Some(Err(broken))].into())
    }
}

impl futures_core::Stream for Cut {
    type Item = Result<axum::body::Bytes, std::io::Error>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        if let Some(None) = self.0.front() {
            // The server sends what it has when it has to wait.
            self.0.pop_front();
            context.waker().wake_by_ref();
            return std::task::Poll::Pending;
        }
        std::task::Poll::Ready(self.0.pop_front().flatten())
    }
}

/// Replaces the blobs with altered ones under the same digests.
pub(crate) fn altered(content: &Content) -> Content {
    let spoil = |bytes: &Vec<u8>| {
        let mut bytes = bytes.clone();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        bytes
    };
    let blobs: BTreeMap<_, _> =
        content.blobs.iter().map(|(digest, bytes)| (digest.clone(), spoil(bytes))).collect();
    let mut altered = content.clone();
    altered.blobs = blobs;
    altered
}
