//! A key broker that records its requests.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use tokio::runtime::Runtime;

#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

type All = Arc<Mutex<Vec<Seen>>>;

#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) address: String,
    seen: All,
    _runtime: Runtime,
}

impl Upstream {
    pub(crate) fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let seen = All::default();
        let router = Router::new().fallback(serve).with_state(Arc::clone(&seen));
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        runtime.spawn(async move { axum::serve(listener, router).await });
        Self { address, seen, _runtime: runtime }
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn clear(&self) {
        self.seen.lock().unwrap().clear();
    }
}

async fn serve(State(seen): State<All>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, 1 << 20).await.unwrap();
    let headers = parts.headers.iter().map(|(name, value)| {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        (name.to_string(), value)
    });
    let mut all = seen.lock().unwrap();
    all.push(Seen {
        path: parts.uri.path().to_owned(),
        headers: headers.collect(),
        body: String::from_utf8_lossy(&body).into_owned(),
    });
    let mut response = Response::new(Body::from("of the upstream"));
    if parts.uri.path() == "/kbs/v0/auth" {
        *response.body_mut() = Body::from(r#"{"nonce":"bm9uY2U=","extra-params":""}"#);
        let id = format!("kbs-session-id={:032x}", all.len());
        let cookie = id.parse().unwrap();
        response.headers_mut().insert("set-cookie", cookie);
    }
    response
}
