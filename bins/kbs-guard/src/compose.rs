//! The guard, its limits, its state.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::get;
use http::uri::Authority;
use tec_core::http::ReplyStyle;
use tec_core::port::{AkRegistry, AttemptLog, Clock, ClockLog, Entropy, MachineRegistry};
use tec_core::store::Store;
use tec_k8s::client::{AttemptEvents, KubeRegistry};
use tec_support::limit::{Limiter, limit};
use tec_support::listen::Counts;
use tec_support::{SystemEntropy, listen};
use tec_tpm::verifier::ByTee;
use tec_trustee::guard::{Guard, GuardConfig, Registries};

/// Opens the state directory.
///
/// # Errors
/// `TEC-S…`: it is damaged, or not ours alone.
pub fn open(dir: &Path) -> anyhow::Result<Arc<Store>> {
    let store = Store::open(dir, &SystemEntropy)
        .with_context(|| format!("open the state in {}", dir.display()))?;
    Ok(Arc::new(store))
}

/// Who knows which key belongs to which machine, and is told of attempts.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Known {
    machines: Arc<dyn MachineRegistry>,
    aks: Arc<dyn AkRegistry>,
    attempts: Arc<dyn AttemptLog>,
    clocks: Arc<dyn ClockLog>,
}

impl Known {
    /// The store, which [`Keys`](crate::keys::Keys) keeps in step with directories.
    pub fn store(store: &Arc<Store>) -> Self {
        Self {
            machines: Arc::clone(store) as _,
            aks: Arc::clone(store) as _,
            attempts: Arc::clone(store) as _,
            clocks: Arc::clone(store) as _,
        }
    }

    /// The objects in the namespace of this pod, or of the current context. Each attempt asks, so a
    /// revocation counts at once; attempts are told of while the second value runs.
    ///
    /// # Errors
    /// There is neither a service account nor a kubeconfig.
    pub async fn cluster(
        store: &Arc<Store>,
        clock: &Arc<dyn Clock>,
    ) -> anyhow::Result<(Self, Arc<AttemptEvents>)> {
        let client = kube::Client::try_default().await;
        let client = client.context("find the API server of this pod")?;
        let namespace = client.default_namespace().to_owned();
        let registry = KubeRegistry::new(client, namespace, Arc::clone(clock));
        let events = AttemptEvents::new(Arc::clone(store) as _, registry.clone());
        let (registry, events) = (Arc::new(registry), Arc::new(events));
        let known = Self {
            machines: Arc::clone(&registry) as _,
            aks: Arc::clone(&registry) as _,
            attempts: Arc::clone(&events) as _,
            // They outlive the pod, whose directory may be a new one.
            clocks: registry,
        };
        Ok((known, events))
    }
}

/// A guard over these keys, with the audit log in a store. It takes the sorts of evidence
/// that `verifier` does, and leaves the registers to the policies of the Trustee.
pub fn guard(
    upstream: Authority,
    verifier: ByTee,
    known: Known,
    store: &Arc<Store>,
    clock: Arc<dyn Clock>,
) -> Guard {
    let registries = Registries {
        machines: known.machines,
        aks: known.aks,
        boots: None,
        clocks: known.clocks,
        attempts: known.attempts,
        audit: Arc::clone(store) as _,
        clock: Arc::clone(&clock),
    };
    let entropy: Arc<dyn Entropy> = Arc::new(SystemEntropy);
    let tees: Vec<_> = verifier.tees().collect();
    let (verifier, gatekeeper) = (Arc::new(verifier), Arc::new(registries));
    let config = GuardConfig::new(upstream, verifier, gatekeeper, clock, entropy);
    Guard::new(config.with_tees(tees))
}

/// The public endpoints: the guard, with a limit on sessions that begin.
pub fn public(guard: &Guard, auth_rate: NonZeroU32) -> Router {
    let limiter = Arc::new(Limiter::new(auth_rate, ReplyStyle::KeyBroker));
    guard.router().layer(from_fn_with_state(limiter, limit_sessions))
}

/// Only `POST auth` costs the Trustee memory before anything is proven.
async fn limit_sessions(
    State(limiter): State<Arc<Limiter>>,
    peer: ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    if request.uri().path().ends_with("/auth") {
        limit(State(limiter), peer, request, next).await
    } else {
        next.run(request).await
    }
}

/// The guard's own metrics, and those of its listeners.
pub fn metrics(guard: &Guard, connections: Vec<Arc<Counts>>) -> Router {
    let guard = guard.clone();
    let all = async move || guard.metrics() + &listen::render(&connections);
    Router::new().route("/metrics", get(all))
}
