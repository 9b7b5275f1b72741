//! Secrets and token reviews, in memory. A token is good if it was made here and is not revoked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;

use axum::Json;
use axum::Router;
use axum::extract::Path;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::routing::post;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;
use serde_json::json;

#[derive(Default)]
struct Objects {
    is_frozen: bool,
    secrets: BTreeMap<String, Value>,
    version: u64,
}

type Shared = Arc<Mutex<Objects>>;

pub(crate) struct FakeApi {
    address: String,
    objects: Shared,
    /// Ends with this.
    _server: tokio::task::JoinSet<()>,
}

impl FakeApi {
    pub(crate) async fn start() -> Self {
        let objects = Shared::default();
        let secrets = "/api/v1/namespaces/platform/secrets";
        let router = Router::new()
            .route(secrets, post(create))
            .route(&format!("{secrets}/{{name}}"), get(read).put(replace))
            .route("/apis/authentication.k8s.io/v1/tokenreviews", post(review))
            .route("/readyz", get(ready))
            .with_state(Arc::clone(&objects));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut server = tokio::task::JoinSet::new();
        server.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self {
            address,
            objects,
            _server: server,
        }
    }

    pub(crate) fn address(&self) -> String {
        self.address.clone()
    }

    /// Some certificate: the vault wants one, and speaks plain HTTP here.
    pub(crate) fn authority() -> String {
        include_str!("authority.pem").to_owned()
    }

    pub(crate) fn secret(&self, name: &str) -> Option<Value> {
        self.objects.lock().unwrap().secrets.get(name).cloned()
    }

    pub(crate) fn freeze(&self, is_frozen: bool) {
        self.objects.lock().unwrap().is_frozen = is_frozen;
    }

    pub(crate) fn token(namespace: &str, name: &str, audience: &str) -> String {
        let part = |json: Value| URL_SAFE_NO_PAD.encode(json.to_string());
        let claims = json!({
            "aud": [audience], "exp": 4_000_000_000u32, "iat": 1, "nbf": 1,
            "iss": "https://kubernetes.default.svc",
            "sub": format!("system:serviceaccount:{namespace}:{name}"),
            "kubernetes.io": {
                "namespace": namespace,
                "serviceaccount": {"name": name, "uid": uid(namespace, name)},
                "pod": {"name": format!("{name}-0"), "uid": "p-1"},
            },
        });
        let header = json!({"alg": "RS256", "kid": "fake"});
        format!(
            "{}.{}.{}",
            part(header),
            part(claims),
            URL_SAFE_NO_PAD.encode("good")
        )
    }
}

fn uid(namespace: &str, name: &str) -> String {
    format!("uid-{namespace}-{name}")
}

async fn create(State(objects): State<Shared>, Json(mut object): Json<Value>) -> StatusCode {
    let mut objects = objects.lock().unwrap();
    let name = object["metadata"]["name"].as_str().unwrap().to_owned();
    if objects.secrets.contains_key(&name) {
        return StatusCode::CONFLICT;
    }
    objects.version += 1;
    object["metadata"]["resourceVersion"] = json!(objects.version.to_string());
    objects.secrets.insert(name, object);
    StatusCode::CREATED
}

async fn read(
    State(objects): State<Shared>,
    Path(name): Path<String>,
) -> Result<Json<Value>, StatusCode> {
    let objects = objects.lock().unwrap();
    let object = objects.secrets.get(&name).cloned();
    object.map(Json).ok_or(StatusCode::NOT_FOUND)
}

async fn replace(
    State(objects): State<Shared>,
    Path(name): Path<String>,
    Json(mut object): Json<Value>,
) -> StatusCode {
    let mut objects = objects.lock().unwrap();
    let current = objects.secrets.get(&name).cloned().unwrap_or_default();
    if current["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"] {
        return StatusCode::CONFLICT;
    }
    objects.version += 1;
    object["metadata"]["resourceVersion"] = json!(objects.version.to_string());
    objects.secrets.insert(name, object);
    StatusCode::OK
}

/// A frozen server takes connections and answers nobody.
async fn thaw(objects: &Shared) {
    while objects.lock().unwrap().is_frozen {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

async fn ready(State(objects): State<Shared>) -> &'static str {
    thaw(&objects).await;
    "ok"
}

async fn review(
    State(objects): State<Shared>,
    Json(review): Json<Value>,
) -> (StatusCode, Json<Value>) {
    thaw(&objects).await;
    let status = reviewed(&review).unwrap_or_else(|| json!({"authenticated": false}));
    let kind = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "status": status,
    });
    (StatusCode::CREATED, Json(kind))
}

fn reviewed(review: &Value) -> Option<Value> {
    let token = review["spec"]["token"].as_str()?;
    let mut parts = token.split('.').skip(1);
    let claims: Value =
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(parts.next()?).ok()?).ok()?;
    let signature = URL_SAFE_NO_PAD.decode(parts.next()?).ok()?;
    let account = &claims["kubernetes.io"];
    (signature == b"good").then(|| {
        json!({
            "authenticated": true, "audiences": claims["aud"],
            "user": {
                "username": claims["sub"],
                "uid": account["serviceaccount"]["uid"],
                "groups": ["system:serviceaccounts"],
            },
        })
    })
}
