//! Composes the guard with its limits and its state, and the key broker over an API server.

mod api;
mod authority;
mod broker;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::get;
use http::uri::Authority;
use tec_core::boot::Pins;
use tec_core::http::ReplyStyle;
use tec_core::port::{Clock, Entropy};
use tec_core::store::Store;
use tec_support::limit::{Limiter, limit};
use tec_support::listen::Counts;
use tec_support::reserve::Reserve;
use tec_support::sparing::Sparing;
use tec_support::tls::LiveCertificate;
use tec_support::{SystemEntropy, listen};
use tec_tpm::combine::MixedStates;
use tec_tpm::verifier::ByTee;
use tec_trustee::guard::{ApprovedBoots, Guard, GuardConfig, Registries};
use tec_trustee::kbs::Authorities;

pub use self::api::{ApiServer, Reachable};
pub use self::authority::authorities;
pub use self::broker::key_broker;

/// Opens the state directory.
/// Errors: `TEC-S…`: it is damaged, or others have access to it.
pub fn open(dir: &Path) -> anyhow::Result<Arc<Store>> {
    let store = Store::open(dir, &SystemEntropy)
        .with_context(|| format!("cannot open the state in {}", dir.display()))?;
    Ok(Arc::new(store))
}

/// The store, which [`Keys`](crate::keys::Keys) keeps in sync with directories. Platforms are not
/// recorded: without approved images, a boot that the Trustee refuses would become a baseline.
pub fn of_store(store: &Arc<Store>, clock: Arc<dyn Clock>) -> Registries {
    Registries {
        aks: Arc::clone(store) as _,
        boots: None,
        clocks: Arc::clone(store) as _,
        platforms: None,
        attempts: Arc::clone(store) as _,
        audit: Arc::clone(store) as _,
        clock,
    }
}

/// The objects of an API server, with the audit log in a store. Each attempt looks up the machine and its key, so
/// revoking a key takes effect immediately; revoking an image takes effect as soon as the watch delivers it. Clocks,
/// platforms and attempts outlive the pod; its directory may not.
pub fn of_cluster(
    api: &ApiServer,
    pins: Pins,
    store: &Arc<Store>,
    clock: Arc<dyn Clock>,
) -> Registries {
    Registries {
        aks: Arc::clone(&api.registry) as _,
        boots: Some(ApprovedBoots {
            images: Arc::clone(&api.images) as _,
            pins,
            states: Arc::new(MixedStates::default()),
        }),
        clocks: Arc::clone(&api.registry) as _,
        platforms: Some(Arc::clone(&api.registry) as _),
        attempts: Arc::clone(&api.attempts) as _,
        audit: Arc::clone(store) as _,
        clock,
    }
}

/// A guard over these registries, on whose disk strangers leave the reserve free. It accepts the types of evidence that
/// `verifier` does. If it knows no approved boots, it leaves the registers to the policies of the Trustee.
/// `authorities` are the CAs that nodes should trust for this server.
pub fn guard(
    upstream: Authority,
    verifier: ByTee,
    registries: Registries,
    reserve: Reserve,
    authorities: Option<Arc<dyn Authorities>>,
) -> Guard {
    let (aks, clock) = (Arc::clone(&registries.aks), Arc::clone(&registries.clock));
    let (attempts, audit) = (registries.attempts, registries.audit);
    let records = Arc::new(Sparing::new(aks, attempts, audit, Arc::new(reserve)));
    let registries =
        Registries { attempts: Arc::clone(&records) as _, audit: records, ..registries };
    let entropy: Arc<dyn Entropy> = Arc::new(SystemEntropy);
    let tees: Vec<_> = verifier.tees().collect();
    let (verifier, gatekeeper) = (Arc::new(verifier), Arc::new(registries));
    let mut config = GuardConfig::new(upstream, verifier, gatekeeper, clock, entropy);
    if let Some(authorities) = authorities {
        config = config.with_authorities(authorities);
    }
    Guard::new(config.with_tees(tees))
}

/// The public endpoints: the guard, with a limit on new sessions.
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

/// The guard's own metrics, those of its listeners, and readiness: 200 while the Trustee answers.
pub fn metrics(
    guard: &Guard,
    connections: Vec<Arc<Counts>>,
    certificate: Option<Arc<LiveCertificate>>,
) -> Router {
    let (guard, probed) = (guard.clone(), guard.clone());
    let all = async move || {
        let expiry = certificate.as_ref().map(|live| live.metrics()).unwrap_or_default();
        guard.metrics() + &listen::render(&connections) + &expiry
    };
    let readiness = async move || {
        if probed.is_ready().await { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
    };
    Router::new().route("/metrics", get(all)).route("/readyz", get(readiness))
}
