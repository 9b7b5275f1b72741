//! A KBS that keeps what it receives, and fails as instructed.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use async_trait::async_trait;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, Request, Response};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Map, Value, json};
use tec_core::id::ResourcePath;
use tec_core::port::{KeyBroker, PolicySlot, PortError, PortErrorKind};
use tec_core::testing::ManualClock;

use super::super::desired::{Content, Desired};
use super::super::item::Item;
use super::*;
use crate::kbs::AdminAuth;
use crate::testing::serve;
use crate::wire::{ErrorBody, ErrorKind};

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// A different status, with a page that no KBS writes.
    Page(u16),
    /// A refusal with a KBS message, before anything happened.
    Refused(&'static str),
    /// The connection breaks, before anything happened.
    NothingDone,
    /// It happens, and the connection breaks.
    LostAck,
    /// It is acknowledged, and lost: someone else wrote the same file (seen with Trustee v0.21).
    LostUpdate,
    /// The KBS restarts without its state, and then answers.
    RestartBefore,
    /// It answers, and restarts without its state.
    RestartAfter,
}

/// What a KBS holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Store {
    pub(super) policies: BTreeMap<String, String>,
    pub(super) references: BTreeMap<String, Value>,
    pub(super) resources: BTreeMap<String, Vec<u8>>,
}

impl Store {
    /// Differences from `desired`, in words; the publisher's own notes do not count.
    pub(super) fn differences(&self, desired: &Desired) -> Vec<String> {
        let mut found = Vec::new();
        let (mut references, mut resources) = (self.references.clone(), self.resources.clone());
        desired.read(|state| {
            for (item, entry) in state.items() {
                let same = match (item, &entry.content) {
                    (Item::AttestationPolicy, Content::Policy(text)) => {
                        self.policies.get("default_cpu") == Some(text)
                    }
                    (_, Content::Policy(text)) => self.policies.get("resource") == Some(text),
                    (Item::Reference(name), Content::Reference(value)) => {
                        references.remove(name.as_str()).as_ref() == Some(value)
                    }
                    (Item::Secret(path), Content::Secret(secret)) => {
                        let there = resources.remove(path.as_str());
                        there.as_deref() == Some(secret.expose("a test compares it"))
                    }
                    _ => false,
                };
                if !same {
                    found.push(format!("{item} is not as desired"));
                }
            }
        });
        let empty = |value: &Value| value.is_null() || *value == json!([]);
        let left = references
            .iter()
            .filter(|(name, value)| !name.starts_with("tec-index") && !empty(value));
        found.extend(left.map(|(name, _)| format!("the reference value {name} is left")));
        let left = resources.iter().filter(|(_, content)| *content != b"{}");
        found.extend(left.map(|(path, _)| format!("the secret {path} is left")));
        found
    }
}

#[derive(Debug, Default)]
struct Inner {
    store: Store,
    faults: VecDeque<Fault>,
    requests: Vec<String>,
    bytes: usize,
    /// Secrets that arrived while the policies were those of a fresh start.
    early: usize,
}

/// The KBS. Clones share its state.
#[derive(Clone, Debug)]
pub(super) struct Fake {
    inner: Arc<Mutex<Inner>>,
    auth: AdminAuth,
    clock: Arc<ManualClock>,
}

impl Fake {
    pub(super) fn new() -> Self {
        Self {
            inner: Arc::default(),
            auth: AdminAuth::from_pem(&admin_key(1).public_pem()).unwrap(),
            clock: clock(),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    pub(super) fn clock(&self) -> Arc<ManualClock> {
        Arc::clone(&self.clock)
    }

    pub(super) fn store(&self) -> Store {
        self.inner().store.clone()
    }

    pub(super) fn restore(&self, store: Store) {
        self.inner().store = store;
    }

    /// The next requests meet these faults.
    pub(super) fn plan(&self, faults: impl IntoIterator<Item = Fault>) {
        self.inner().faults = faults.into_iter().collect();
    }

    /// Requests and bytes of their bodies since the last call.
    pub(super) fn taken(&self) -> (Vec<String>, usize) {
        let mut inner = self.inner();
        (std::mem::take(&mut inner.requests), std::mem::take(&mut inner.bytes))
    }

    pub(super) fn early_secrets(&self) -> usize {
        self.inner().early
    }

    pub(super) fn router(&self) -> Router {
        Router::new().fallback(answer).with_state(self.clone())
    }

    pub(super) async fn serve(&self) -> String {
        serve(self.router()).await
    }

    fn authorized(&self, headers: &HeaderMap) -> bool {
        use tec_core::port::Clock as _;
        let header = headers.get("authorization").and_then(|value| value.to_str().ok());
        let token = header.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
        self.auth.accepts(token, self.clock.now())
    }

    fn handle(&self, method: &Method, place: &str, body: &[u8]) -> Result<Vec<u8>, ErrorKind> {
        let mut inner = self.inner();
        let store = &mut inner.store;
        match (method, place.split_once('/').unwrap_or((place, ""))) {
            (&Method::POST, (verb @ ("attestation-policy" | "resource-policy"), "")) => {
                let body: Value =
                    serde_json::from_slice(body).map_err(|_| ErrorKind::SerdeError)?;
                let text = URL_SAFE_NO_PAD.decode(body["policy"].as_str().unwrap_or_default());
                let text = text.map_err(|_| ErrorKind::ParsePolicyError)?;
                let text = String::from_utf8(text).map_err(|_| ErrorKind::ParsePolicyError)?;
                if !text.contains("package policy") {
                    return Err(ErrorKind::ParsePolicyError);
                }
                let id = match verb {
                    "attestation-policy" => body["policy_id"].as_str().unwrap_or_default(),
                    _ => "resource",
                };
                store.policies.insert(id.to_owned(), text);
                Ok(Vec::new())
            }
            (&Method::POST, ("reference-value", "")) => {
                let message: Value =
                    serde_json::from_slice(body).map_err(|_| ErrorKind::SerdeError)?;
                assert_eq!(
                    (&message["version"], &message["type"]),
                    (&json!("0.1.0"), &json!("sample"))
                );
                let payload = STANDARD.decode(message["payload"].as_str().unwrap_or_default());
                let payload = payload.map_err(|_| ErrorKind::RvpsError)?;
                let values: Map<String, Value> =
                    serde_json::from_slice(&payload).map_err(|_| ErrorKind::RvpsError)?;
                store.references.extend(values);
                Ok(Vec::new())
            }
            (&Method::GET, ("reference-value", name)) => {
                let value = store.references.get(name).ok_or(ErrorKind::RvpsError)?;
                Ok(value.to_string().into_bytes())
            }
            (&Method::POST, ("resource", path)) => {
                store.resources.insert(path.to_owned(), body.to_vec());
                let lax = inner.store.policies.len() < 2;
                inner.early += usize::from(lax);
                Ok(Vec::new())
            }
            (&Method::DELETE, ("resource", path)) => {
                let there = store.resources.remove(path);
                there.map(|_| Vec::new()).ok_or(ErrorKind::PluginInternalError)
            }
            (_, ("resource", _)) => Err(ErrorKind::PluginInternalError),
            _ => Err(ErrorKind::PluginNotFound),
        }
    }
}

async fn answer(State(fake): State<Fake>, request: Request<Body>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 10_000_000).await.unwrap();
    let place = parts.uri.path().strip_prefix("/kbs/v0/").unwrap_or_default().to_owned();
    let fault = {
        let mut inner = fake.inner();
        inner.requests.push(format!("{} {place}", parts.method));
        inner.bytes += body.len();
        inner.faults.pop_front().unwrap_or(Fault::None)
    };
    match fault {
        Fault::Page(status) => return reply(status, "<html>try again</html>"),
        Fault::Refused(kind) => return refusal(&ErrorKind::Other(kind.to_owned())),
        Fault::NothingDone => return broken(),
        Fault::RestartBefore => fake.restore(Store::default()),
        _ => {}
    }
    if !fake.authorized(&parts.headers) {
        // Recorded: there is a different name for it when resources are written.
        let name = if place.starts_with("resource/") {
            "AdminAuthInitialization"
        } else {
            "AdminAuthAccess"
        };
        return refusal(&ErrorKind::Other(name.to_owned()));
    }
    let before = fake.store();
    let outcome = fake.handle(&parts.method, &place, &body);
    match fault {
        Fault::LostAck => return broken(),
        Fault::LostUpdate => fake.restore(before),
        Fault::RestartAfter => fake.restore(Store::default()),
        _ => {}
    }
    match outcome {
        Ok(body) => reply(200, body),
        Err(kind) => refusal(&kind),
    }
}

fn reply(status: u16, body: impl Into<Body>) -> Response<Body> {
    Response::builder().status(status).body(body.into()).unwrap()
}

fn refusal(kind: &ErrorKind) -> Response<Body> {
    let body = serde_json::to_string(&ErrorBody::new(kind, "refused")).unwrap();
    reply(kind.http_status(), body)
}

/// An answer that is cut off.
fn broken() -> Response<Body> {
    struct BreaksOff;
    impl http_body::Body for BreaksOff {
        type Data = Bytes;
        type Error = std::io::Error;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
            Poll::Ready(Some(Err(std::io::Error::other("gone"))))
        }
    }
    Response::new(Body::new(BreaksOff))
}

/// The same store without HTTP in between, for many cases.
#[async_trait]
impl KeyBroker for Fake {
    async fn put(&self, path: &ResourcePath, secret: &SecretBytes) -> Result<(), PortError> {
        let bytes = secret.expose("the fake keeps it");
        self.direct(&Method::POST, &format!("resource/{path}"), bytes).map(drop)
    }

    async fn remove(&self, path: &ResourcePath) -> Result<(), PortError> {
        let place = format!("resource/{path}");
        if self.store().resources.contains_key(path.as_str()) {
            self.direct(&Method::DELETE, &place, b"").map(drop)
        } else {
            Ok(())
        }
    }

    async fn list(&self) -> Result<Option<Vec<ResourcePath>>, PortError> {
        Ok(None)
    }

    async fn set_policy(&self, slot: PolicySlot, rego: &str) -> Result<(), PortError> {
        let place = match slot {
            PolicySlot::Attestation => "attestation-policy",
            _ => "resource-policy",
        };
        let policy = URL_SAFE_NO_PAD.encode(rego);
        let body = json!({"policy_id": "default_cpu", "policy": policy}).to_string();
        self.direct(&Method::POST, place, body.as_bytes()).map(drop)
    }

    async fn set_reference_value(&self, name: &str, value: &Value) -> Result<(), PortError> {
        let payload = STANDARD.encode(json!({name: value}).to_string());
        let body = json!({"version": "0.1.0", "type": "sample", "payload": payload}).to_string();
        self.direct(&Method::POST, "reference-value", body.as_bytes()).map(drop)
    }

    async fn reference_value(&self, name: &str) -> Result<Option<Value>, PortError> {
        if !self.store().references.contains_key(name) {
            let _ = self.direct(&Method::GET, "reference-value/tec-nothing", b"");
            return Ok(None);
        }
        let value = self.direct(&Method::GET, &format!("reference-value/{name}"), b"")?;
        Ok(value.map(|value| serde_json::from_slice(&value).unwrap()))
    }
}

impl Fake {
    /// A request without HTTP; `None` if the state was lost before the answer.
    fn direct(
        &self,
        method: &Method,
        place: &str,
        body: &[u8],
    ) -> Result<Option<Vec<u8>>, PortError> {
        let away = || PortError::new(PortErrorKind::Unavailable, place.to_owned());
        let fault = self.inner().faults.pop_front().unwrap_or(Fault::None);
        match fault {
            Fault::Page(_) | Fault::Refused(_) | Fault::NothingDone => return Err(away()),
            Fault::RestartBefore => self.restore(Store::default()),
            _ => {}
        }
        let before = self.store();
        let outcome = self.handle(method, place, body);
        match fault {
            Fault::LostAck => return Err(away()),
            Fault::LostUpdate => self.restore(before),
            Fault::RestartAfter => self.restore(Store::default()),
            _ => {}
        }
        // Items refused because they are missing were lost in a restart.
        Ok(outcome.ok())
    }
}
