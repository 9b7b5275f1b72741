//! A connection to the API server that counts requests, and that tests can cut.
//!
//! ```text
//! operator ─ HTTP ─► Link ─ TLS, with the operator's token ─► kube-apiserver
//! ```

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context as _;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use http::StatusCode;
use http::header::{ACCEPT, AUTHORIZATION, DATE, HOST};
use k8s_openapi::jiff;
use k8s_openapi::jiff::fmt::rfc2822::DateTimePrinter;
use kube::{Client, Config};
use tec_core::port::Clock as _;
use tec_support::SystemClock;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Largest body of a request; the API server itself takes 3 MiB.
const MAX_BODY: usize = 4 << 20;
/// The event with which an API server ends a watch when it no longer has its events (Kubernetes API concepts,
/// "410 Gone responses").
const EXPIRED: &str = r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old resource version","reason":"Expired","code":410}}
"#;

/// The traffic through a link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Requests by method and kind, such as `PATCH machines/status`.
    pub requests: BTreeMap<String, u64>,
    /// Bytes of bodies in both directions, including watches.
    pub bytes: u64,
}

impl Traffic {
    /// Requests of all kinds.
    pub fn total(&self) -> u64 {
        self.requests.values().sum()
    }

    /// Requests that change objects of this kind.
    pub fn writes(&self, kind: &str) -> u64 {
        let of_kind = |(name, _): &(&String, &u64)| {
            let (method, of) = name.split_once(' ').unwrap_or_default();
            !["GET", "LIST", "WATCH"].contains(&method) && of == kind
        };
        self.requests.iter().filter(of_kind).map(|(_, count)| count).sum()
    }
}

/// What happens to open streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fate {
    is_cut: bool,
    /// How many times all watches have expired.
    expired: u64,
}

/// How many more requests may pass; the answer to the last one is lost.
#[derive(Debug, Default)]
struct Allowance {
    left: Option<u64>,
    /// Whether any request or answer was lost because the allowance was used up.
    has_cut: bool,
}

/// What to do with a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Passage {
    Whole,
    OneWay,
    Closed,
}

impl Allowance {
    fn take(&mut self) -> Passage {
        let Some(left) = &mut self.left else {
            return Passage::Whole;
        };
        let passage = match *left {
            0 => Passage::Closed,
            1 => Passage::OneWay,
            _ => Passage::Whole,
        };
        *left = left.saturating_sub(1);
        self.has_cut |= passage != Passage::Whole;
        passage
    }
}

struct Shared {
    client: Client,
    allowance: Mutex<Allowance>,
    traffic: Mutex<Traffic>,
    fate: watch::Sender<Fate>,
    /// How far the API server's clock appears to be ahead, in seconds.
    ahead: AtomicI64,
}

impl Shared {
    fn traffic(&self) -> MutexGuard<'_, Traffic> {
        self.traffic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn allowance(&self) -> MutexGuard<'_, Allowance> {
        let allowance = self.allowance.lock();
        allowance.unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, request: String, bytes: usize) {
        let mut traffic = self.traffic();
        *traffic.requests.entry(request).or_default() += 1;
        traffic.bytes += bytes as u64;
    }
}

/// A link to the API server; stopped on drop.
pub struct Link {
    url: String,
    shared: Arc<Shared>,
    _server: JoinSet<()>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Link {
    /// A link with the identity of `client`.
    pub async fn new(client: Client) -> anyhow::Result<Self> {
        let shared = Arc::new(Shared {
            client,
            allowance: Mutex::default(),
            traffic: Mutex::default(),
            fate: watch::Sender::default(),
            ahead: AtomicI64::new(0),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let router = Router::new().fallback(forward).with_state(Arc::clone(&shared));
        let mut server = JoinSet::new();
        server.spawn(async {
            // It ends only with the value that holds it.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { url, shared, _server: server })
    }

    /// Its URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A client that uses this link.
    pub fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::try_from(Config::new(self.url.parse()?))?)
    }

    /// Cuts what is in progress and lets nothing pass, or restores the link.
    pub fn set_cut(&self, is_cut: bool) {
        self.shared.fate.send_modify(|fate| fate.is_cut = is_cut);
    }

    /// Makes the API server report a time this many seconds ahead of this host's.
    pub fn set_clock(&self, ahead: i64) {
        self.shared.ahead.store(ahead, Ordering::Relaxed);
    }

    /// Lets this many more requests pass, then cuts the link; the last one is carried out, but its answer is lost.
    pub fn cut_after(&self, requests: u64) {
        *self.shared.allowance() = Allowance { left: Some(requests), has_cut: false };
    }

    /// Lets everything pass again; returns whether a request was affected by the cut.
    pub fn mend(&self) -> bool {
        std::mem::take(&mut *self.shared.allowance()).has_cut
    }

    /// Ends every open watch as expired.
    pub fn expire_watches(&self) {
        self.shared.fate.send_modify(|fate| fate.expired += 1);
    }

    /// The traffic since the last call.
    pub fn take_traffic(&self) -> Traffic {
        std::mem::take(&mut self.shared.traffic())
    }
}

fn forward(State(shared): State<Arc<Shared>>, request: Request) -> BoxFuture<'static, Response> {
    async move {
        let is_cut = shared.fate.borrow().is_cut;
        let passage = shared.allowance().take();
        if is_cut || passage == Passage::Closed {
            return StatusCode::BAD_GATEWAY.into_response();
        }
        let answer = pass(shared, request).await;
        if passage == Passage::OneWay {
            return StatusCode::BAD_GATEWAY.into_response();
        }
        answer
            .unwrap_or_else(|error| (StatusCode::BAD_GATEWAY, format!("{error:#}")).into_response())
    }
    .boxed()
}

async fn pass(shared: Arc<Shared>, request: Request) -> anyhow::Result<Response> {
    let (mut parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, MAX_BODY).await?;
    let is_watch = parts.uri.query().is_some_and(|query| query.contains("watch="));
    shared.note(name_of(&parts, is_watch), body.len());
    let path = parts.uri.path_and_query().context("the request has no path")?;
    parts.uri = path.as_str().parse()?;
    parts.headers.remove(AUTHORIZATION);
    parts.headers.remove(HOST);
    let request = http::Request::from_parts(parts, body.to_vec().into());
    let answer = shared.client.send(request).await?;
    let (mut parts, body) = answer.into_parts();
    let told = SystemClock.now().plus_seconds(shared.ahead.load(Ordering::Relaxed));
    let told = jiff::Timestamp::from_second(told.unix_seconds())?;
    let told = DateTimePrinter::new().timestamp_to_rfc9110_string(&told)?;
    parts.headers.insert(DATE, told.parse()?);
    let fate = shared.fate.subscribe();
    let pieces = Body::new(body).into_data_stream().map(move |piece| {
        let bytes = piece?;
        shared.traffic().bytes += bytes.len() as u64;
        anyhow::Ok(bytes)
    });
    let pieces = pieces.take_until(ended(fate.clone()));
    // Only watches can expire; a list that is cut off is invalid.
    let before = fate.borrow().expired;
    let last = futures::stream::once(async move {
        let fate = *fate.borrow();
        if fate.is_cut {
            Err(anyhow::anyhow!("cut off"))
        } else if is_watch && fate.expired != before {
            Ok(Bytes::from_static(EXPIRED.as_bytes()))
        } else {
            Ok(Bytes::new())
        }
    });
    Ok(Response::from_parts(parts, Body::from_stream(pieces.chain(last))))
}

/// Waits until requests in progress must end.
async fn ended(mut fate: watch::Receiver<Fate>) {
    let before = fate.borrow().expired;
    // The sender lives as long as the link.
    let _ = fate.wait_for(|fate| fate.is_cut || fate.expired != before).await;
}

/// `PATCH machines/status` for `/apis/group/v1/namespaces/a/machines/b/status`; `LIST machines` and `WATCH
/// machines` for reads of all objects of a kind.
fn name_of(request: &http::request::Parts, is_watch: bool) -> String {
    let path = request.uri.path();
    let parts: Vec<&str> = path.split('/').collect();
    let place = parts.iter().position(|part| *part == "namespaces");
    // A metadata-only request does not show the content.
    let accept = request.headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    let what = if accept.is_some_and(|accept| accept.contains("PartialObjectMetadata")) {
        " metadata"
    } else {
        ""
    };
    let of_namespace = place.and_then(|place| parts.get(place + 2..));
    match (of_namespace.unwrap_or_default(), request.method.as_str()) {
        ([kind], "GET") if is_watch => format!("WATCH {kind}{what}"),
        ([kind], "GET") => format!("LIST {kind}{what}"),
        ([kind] | [kind, _], method) => format!("{method} {kind}"),
        ([kind, _, rest @ ..], method) => format!("{method} {kind}/{}", rest.join("/")),
        ([], method) => format!("{method} {path}"),
    }
}
