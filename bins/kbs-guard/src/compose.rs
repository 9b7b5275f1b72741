//! The guard, its limits, its state.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use axum::extract::ConnectInfo;
use axum::extract::Request;
use axum::extract::State;
use axum::middleware::Next;
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::get;
use http::uri::Authority;
use tec_core::http::ReplyStyle;
use tec_core::port::Clock;
use tec_core::port::Entropy;
use tec_core::store::Store;
use tec_support::SystemEntropy;
use tec_support::limit::Limiter;
use tec_support::limit::limit;
use tec_tpm::verifier::ByTee;
use tec_trustee::guard::Guard;
use tec_trustee::guard::GuardConfig;
use tec_trustee::guard::Registries;

/// Opens the state directory.
///
/// # Errors
/// `TEC-S…`: it is damaged, or not ours alone.
pub fn open(dir: &Path) -> anyhow::Result<Arc<Store>> {
    let store = Store::open(dir, &SystemEntropy)
        .with_context(|| format!("open the state in {}", dir.display()))?;
    Ok(Arc::new(store))
}

/// A guard over the keys, attempts and audit log of a store. It takes the sorts of evidence that
/// `verifier` does, and leaves the registers to the policies of the Trustee.
pub fn guard(
    upstream: Authority,
    verifier: ByTee,
    store: &Arc<Store>,
    clock: Arc<dyn Clock>,
) -> Guard {
    let registries = Registries {
        machines: Arc::clone(store) as _,
        aks: Arc::clone(store) as _,
        boots: None,
        attempts: Arc::clone(store) as _,
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
    guard
        .router()
        .layer(from_fn_with_state(limiter, limit_sessions))
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

/// The guard's own metrics.
pub fn metrics(guard: &Guard) -> Router {
    let guard = guard.clone();
    Router::new().route("/metrics", get(async move || guard.metrics()))
}
