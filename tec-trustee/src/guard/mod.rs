//! A strict check in front of an unmodified Trustee.
//!
//! *What it is*: a reverse proxy. The Trustee listens on loopback, the guard on the public port of the same
//! pod. Evidence passes only if our own verifier accepts it and its key is bound to a machine; everything
//! else passes untouched, byte for byte, in both directions. *What it is not*: a second key broker. It holds
//! no key and no policy, opens no socket and terminates no TLS; the program that uses it serves the router
//! and also limits rates.
//!
//! Why: a verifier that takes register values by their position in a list, without checking the quoted
//! selection, can be made to see any value for any register, and no policy over the claims can detect it
//! (Trustee, verifiers; seen with Trustee v0.21).
//!
//! ```text
//! POST auth ────────► Trustee      the nonce is remembered with the session
//! POST attest ─ strict verifier ─ Registries::admit ─► Trustee     the token is remembered
//! GET resource ─ session or its token ─ Registries::permit ─► Trustee
//!      ◄─ body streams ─ Registries::settle, durable before the first byte ─┘
//! authorities           answered here: CAs of this server, reports of what machines trust
//! anything else ────► Trustee      admin API, health, metrics
//! ```
//!
//! # Security
//! - One answer, one reading: paths with percent signs, dot segments or empty segments, encoded bodies, JSON
//!   with repeated members, several or encoded session cookies, and headers that `Connection` would remove
//!   are refused, since the Trustee might read them differently.
//! - A session has one token, for one piece of evidence. If a request has both a cookie and a token, they
//!   must belong to the same session.
//! - Plugins other than `resource` are refused: they release data too.
//! - A bearer token obtains a resource only if it was issued through this guard, so a self-signed token is
//!   worthless, regardless of the Trustee's configuration.
//! - After a restart the guard knows no sessions; clients repeat the handshake by themselves.

mod credentials;
mod exchange;
mod gate;
mod proxy;
mod route;
mod session;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::uri::Authority;
use axum::http::{Request, Response};
use tec_core::attest::Tee;
use tec_core::port::{Clock, Entropy, Verifier};

pub use self::gate::{ApprovedBoots, BrokerAnswer, Passage, Registries};
use self::proxy::Upstream;
use self::route::Route;
use self::session::Sessions;
use crate::kbs::authority;
use crate::kbs::intake::{BODY_TIMEOUT, Intake, WORK};
use crate::kbs::metrics::Metrics;
use crate::kbs::{
    Authorities, DEFAULT_MAX_PAYLOAD, DEFAULT_MAX_SESSIONS, DEFAULT_SESSION_SECONDS,
    DEFAULT_TOKEN_SECONDS,
};

/// Maximum number of bytes of all bodies, in both directions, that a guard holds at a time.
const HELD: usize = 32 * 1024 * 1024;
/// Maximum number of bytes of all sessions of a guard.
const SESSION_BYTES: usize = 40 * 1024 * 1024;

/// Maximum number of bytes that a guard with the default limits keeps for its clients, however many
/// there are and whatever they send: bodies, evidence that is being verified, and sessions. The
/// server around it bounds the connections.
pub const MAX_KEPT: usize = HELD + WORK + SESSION_BYTES;

/// Configuration of a [`Guard`].
#[derive(Debug)]
pub struct GuardConfig {
    upstream: Authority,
    verifier: Arc<dyn Verifier>,
    gatekeeper: Arc<Registries>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    tees: BTreeSet<Tee>,
    max_sessions: usize,
    max_payload: usize,
    body_timeout: Duration,
    authorities: Option<Arc<dyn Authorities>>,
}

impl GuardConfig {
    /// Accepts TPM evidence. `upstream` is the host and port of the Trustee, which is reached over plain
    /// HTTP: it belongs on the loopback interface of the same pod.
    pub fn new(
        upstream: Authority,
        verifier: Arc<dyn Verifier>,
        gatekeeper: Arc<Registries>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        Self {
            upstream,
            verifier,
            gatekeeper,
            clock,
            entropy,
            tees: BTreeSet::from([Tee::Tpm]),
            max_sessions: DEFAULT_MAX_SESSIONS,
            max_payload: DEFAULT_MAX_PAYLOAD,
            body_timeout: BODY_TIMEOUT,
            authorities: None,
        }
    }

    /// Accepts evidence of these types; other types never reach the Trustee, and neither does `Sample`.
    pub fn with_tees(mut self, tees: impl IntoIterator<Item = Tee>) -> Self {
        self.tees = tees.into_iter().filter(|tee| *tee != Tee::Sample).collect();
        self
    }

    /// Reports to nodes which CAs to trust for this server, and accepts their reports.
    pub fn with_authorities(mut self, authorities: Arc<dyn Authorities>) -> Self {
        self.authorities = Some(authorities);
        self
    }

    /// Bounds on sessions, on bytes of evidence, and on the time to send it. One client gets at most a
    /// quarter of the sessions; see [`KbsConfig::with_limits`](crate::kbs::KbsConfig).
    pub fn with_limits(
        mut self,
        max_sessions: usize,
        max_payload: usize,
        body_timeout: Duration,
    ) -> Self {
        self.max_sessions = max_sessions;
        self.max_payload = max_payload;
        self.body_timeout = body_timeout;
        self
    }
}

/// The guard. Cheap to clone; all clones share their sessions.
#[derive(Clone, Debug)]
pub struct Guard(Arc<Inner>);

#[derive(derive_more::Debug)]
#[debug("Guard {{ upstream: {:?}, .. }}", config.upstream)]
struct Inner {
    config: GuardConfig,
    upstream: Upstream,
    sessions: Sessions,
    intake: Intake,
    metrics: Metrics,
}

impl Guard {
    /// A guard without sessions.
    pub fn new(config: GuardConfig) -> Self {
        let lifetimes = (DEFAULT_SESSION_SECONDS.into(), DEFAULT_TOKEN_SECONDS.into());
        Self(Arc::new(Inner {
            upstream: Upstream::new(config.upstream.clone()),
            sessions: Sessions::new(config.max_sessions, lifetimes, SESSION_BYTES),
            intake: Intake::new(config.body_timeout, HELD),
            metrics: Metrics::new("tec_guard"),
            config,
        }))
    }

    /// The proxy, for a server that the caller runs.
    pub fn router(&self) -> Router {
        Router::new().fallback(serve).with_state(self.clone())
    }

    /// Whether the Trustee answers requests, whatever its version; for probes.
    pub async fn is_ready(&self) -> bool {
        self.0.upstream.answers().await
    }

    /// Counters in the Prometheus text format. Not part of [`router`](Self::router), whose `/metrics` are the
    /// Trustee's.
    pub fn metrics(&self) -> String {
        self.0.metrics.render(self.0.sessions.len())
    }
}

async fn serve(State(guard): State<Guard>, request: Request<Body>) -> Response<Body> {
    let answered = match Route::of(&request) {
        Ok(Route::Auth) => guard.auth(request).await,
        Ok(Route::Attest) => guard.attest(request).await,
        Ok(Route::Resource(path)) => guard.resource(request, &path).await,
        Ok(Route::Authorities) => authority::hand_out(guard.0.config.authorities.as_ref()),
        Ok(Route::Trusts) => guard.trusts(request).await,
        Ok(Route::Other) => guard.0.upstream.stream(request).await,
        Err(refusal) => Err(refusal),
    };
    answered.unwrap_or_else(|refusal| {
        guard.0.metrics.refused(refusal.code());
        refusal.into_response()
    })
}
