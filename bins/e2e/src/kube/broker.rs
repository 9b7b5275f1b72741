//! An embedded key broker with an admin API, which loses requests, answers and its state on demand.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use http::{Method, StatusCode};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ObjectMeta;
use tec_core::digest::Sha256Digest;
use tec_core::id::{MachineId, ResourcePath};
use tec_core::port::{Entropy, EntropyRng};
use tec_core::testing::{SeededEntropy, sample};
use tec_k8s::render::{ADMIN_AUDIENCE, TRUSTEE_AUTH};
use tec_support::{SystemClock, SystemEntropy};
use tec_tpm::verifier::TpmVerifier;
use tec_trustee::kbs::{
    AdminAuth, Admission, Backend as _, Kbs, KbsConfig, MemoryBackend, PolicyDecision,
};
use tec_trustee::publish::AdminKey;
use tec_trustee::token::TokenSigner;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tower_service::Service as _;

/// Largest accepted body; the broker itself accepts less.
const MAX_BODY: usize = 4 << 20;

/// The requests sent to a broker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sent {
    /// Digests of the disk keys sent, one for each request, by the resource's path.
    pub keys: BTreeMap<String, Vec<Sha256Digest>>,
    /// Requests of all kinds.
    pub requests: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
}

struct Inside {
    backend: Arc<MemoryBackend>,
    router: Router,
    sent: Sent,
    /// How many of 1000 requests fail.
    faults: u16,
    is_down: bool,
}

struct Shared {
    inside: Mutex<Inside>,
    admin: String,
    /// Required audience of its admin's tokens.
    audience: String,
    dice: SeededEntropy,
}

impl Shared {
    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn roll(&self) -> (u16, bool) {
        let mut random = [0; 3];
        self.dice.fill(&mut random);
        let [low, high, coin] = random;
        (u16::from_le_bytes([low, high]) % 1000, coin & 1 == 0)
    }
}

/// A key broker on loopback; stopped on drop.
pub struct Broker {
    url: String,
    key: AdminKey,
    shared: Arc<Shared>,
    _server: JoinSet<()>,
}

impl std::fmt::Debug for Broker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Broker").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Broker {
    /// An empty broker; `seed` determines which requests fail when some do.
    pub async fn start(seed: u64) -> anyhow::Result<Self> {
        Self::with_audience(seed, Some(ADMIN_AUDIENCE)).await
    }

    /// A broker outside any cluster: tokens must name its address.
    pub async fn outside(seed: u64) -> anyhow::Result<Self> {
        Self::with_audience(seed, None).await
    }

    async fn with_audience(seed: u64, audience: Option<&str>) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let audience = audience.unwrap_or(&url).to_owned();
        let key = AdminKey::generate(&mut EntropyRng::new(&SystemEntropy));
        let admin = key.public_pem();
        let (backend, router) = empty(&admin, &audience)?;
        let shared = Arc::new(Shared {
            inside: Mutex::new(Inside {
                backend,
                router,
                sent: Sent::default(),
                faults: 0,
                is_down: false,
            }),
            admin,
            audience,
            dice: SeededEntropy::new(seed),
        });
        let router = Router::new().fallback(serve).with_state(Arc::clone(&shared));
        let mut server = JoinSet::new();
        server.spawn(async {
            // It ends only with the value that holds it.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { url, key, shared, _server: server })
    }

    /// Its URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The Secret with its admin's key, as an operator finds it on a later start.
    pub fn admin_secret(&self) -> Secret {
        let private = self.key.private_pem();
        let private = private.expose("the API server stores it").to_vec();
        let public = self.shared.admin.clone().into_bytes();
        let entries = [("private.key", private), ("public.pub", public)];
        Secret {
            metadata: ObjectMeta { name: Some(TRUSTEE_AUTH.to_owned()), ..ObjectMeta::default() },
            data: Some(entries.map(|(name, bytes)| (name.to_owned(), ByteString(bytes))).into()),
            ..Secret::default()
        }
    }

    /// Makes this many of 1000 admin requests fail from now on, half of them after they were carried out.
    pub fn set_faults(&self, per_mille: u16) {
        self.shared.inside().faults = per_mille;
    }

    /// Stops answering, or answers again.
    pub fn set_down(&self, is_down: bool) {
        self.shared.inside().is_down = is_down;
    }

    /// Restarts with empty state.
    ///
    /// # Errors
    /// Never: its admin's key was valid before.
    pub fn lose_everything(&self) -> anyhow::Result<()> {
        let (backend, router) = empty(&self.shared.admin, &self.shared.audience)?;
        let mut inside = self.shared.inside();
        (inside.backend, inside.router) = (backend, router);
        Ok(())
    }

    /// The requests sent to the broker since the last call.
    pub fn take_sent(&self) -> Sent {
        std::mem::take(&mut self.shared.inside().sent)
    }

    /// The disk key it holds for a machine, even if a policy denies everything.
    pub async fn key(&self, machine: &MachineId) -> Option<Vec<u8>> {
        let backend = Arc::clone(&self.shared.inside().backend);
        let admission = Admission::new(sample::attempt_id(1));
        let path = ResourcePath::luks_root(machine);
        let key = backend.release(&admission, &path, PolicyDecision::Allow, None).await;
        Some(key.ok()?.expose("the test compares it").to_vec())
    }

    /// The paths of everything it holds.
    pub async fn paths(&self) -> Vec<ResourcePath> {
        let backend = Arc::clone(&self.shared.inside().backend);
        let listed = match backend.broker() {
            Some(broker) => broker.list().await,
            None => Ok(None),
        };
        listed.ok().flatten().unwrap_or_default()
    }
}

fn empty(admin: &str, audience: &str) -> anyhow::Result<(Arc<MemoryBackend>, Router)> {
    let backend = Arc::new(MemoryBackend::new());
    let config = KbsConfig::new(
        Arc::clone(&backend) as _,
        Arc::new(TpmVerifier::new()),
        TokenSigner::random(&mut EntropyRng::new(&SystemEntropy)),
        Arc::new(SystemClock),
        Arc::new(SystemEntropy),
    );
    let admin = AdminAuth::from_pem(admin)?.with_audience(audience);
    let kbs = Kbs::new(config.with_admin(admin));
    Ok((backend, kbs.router()))
}

async fn serve(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, MAX_BODY).await.unwrap_or_default();
    let path = parts.uri.path();
    let is_node = path.ends_with("/auth") || path.ends_with("/attest");
    let is_admin = parts.method != Method::GET && !is_node;
    let (roll, is_early) = shared.roll();
    let (mut router, fails) = {
        let mut inside = shared.inside();
        if inside.is_down {
            return StatusCode::BAD_GATEWAY.into_response();
        }
        inside.sent.requests += 1;
        inside.sent.bytes += body.len() as u64;
        if parts.method == Method::POST
            && let Some((_, resource)) = path.split_once("/resource/")
        {
            let sent = inside.sent.keys.entry(resource.to_owned()).or_default();
            sent.push(Sha256Digest::of(&body));
        }
        (inside.router.clone(), is_admin && roll < inside.faults)
    };
    if fails && is_early {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let answer = match router.call(Request::from_parts(parts, Body::from(body))).await {
        Ok(answer) => answer,
        Err(never) => match never {},
    };
    if fails {
        // It was carried out, but the caller does not learn of it.
        return StatusCode::BAD_GATEWAY.into_response();
    }
    answer
}
