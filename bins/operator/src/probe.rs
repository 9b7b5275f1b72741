//! Probes and metrics.

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tec_k8s::controller::{Health, Metrics};

/// `/livez`, `/readyz` and `/metrics`. Readiness does not depend on any Trustee.
pub(crate) fn router(metrics: Arc<Metrics>, health: Health) -> Router {
    let readiness = async move || {
        if health.is_ready() {
            (StatusCode::OK, "ready")
        } else {
            let why = "not everything was read yet";
            (StatusCode::SERVICE_UNAVAILABLE, why)
        }
    };
    Router::new()
        .route("/livez", get(async || "alive"))
        .route("/readyz", get(readiness))
        .route("/metrics", get(async move || metrics.render()))
}
