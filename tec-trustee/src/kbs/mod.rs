//! A small embeddable KBS with its own attestation service, wire-compatible with Trustee
//! (KBS attestation protocol 0.4.0).
//!
//! *What it is*: the endpoints of the attestation handshake, resources, and the admin API, over a
//! [`Backend`]. *What it is not*: it opens no socket and terminates no TLS; a program serves the router.
//! `resource` is the only plugin.
//!
//! ```text
//! POST /kbs/v0/auth                nonce, cookie
//! POST /kbs/v0/attest              Verifier ─► Backend::admit ─► attestation policy ─► token
//! GET  /kbs/v0/resource/a/b/c      token ─► resource policy ─► Backend::release ─► JWE
//! PUT  /kbs/v0/escrow              token ─► Backend::escrow: a sealed recovery key; ours alone
//! GET  /kbs/v0/authorities         CAs of this server; PUT: those that a machine trusts; ours alone
//! GET  /kbs/v0/rotation            keys of a rotation; PUT: confirms a step; ours alone
//! PUT  /kbs/v0/next-boot           would this boot be accepted? ours alone
//! POST, DELETE …                   admin API, with a bearer token
//! GET  /healthz
//! GET  /metrics                    counters for Prometheus, none of them by machine
//! ```
//!
//! # Replicas
//! Sessions live in the memory of the process. With [`KbsConfig::with_shared_sessions`] any number of
//! replicas over the same registries serve the same clients: each request may reach a different replica, and
//! a replica may be lost between any two of them. Nothing is written for that; cookies and tokens carry the
//! state.
//!
//! # When to use Trustee instead
//! If you need other types of evidence, or plugins, run Trustee: the same policies bind machines to their
//! keys there, and the guard of this crate, in front of it, checks what they cannot.
//!
//! # Limits
//! The number of sessions, one client's share of them, the size of bodies, the time they take and the memory
//! they hold are bounded here. Rates are up to the program: a layer around [`Kbs::router`] that refuses with
//! 429.
//!
//! # Where to mount it
//! Serve it at the root of a host and port. The paths are part of the protocol, and the address of a server
//! ([`BaseUrl`](tec_core::endpoint::BaseUrl), the pin of a node) has no path: a router nested below a prefix
//! never receives a request.
//!
//! # Differences from Trustee, on purpose
//! - Without policies, everything is denied.
//! - Tokens count only if they are signed by this server's key or by keys that it was configured with.
//! - A nonce is valid for one request, regardless of its outcome.
//! - The number of sessions is bounded; beyond it, `auth` answers 503. The body of `auth` has at most 64 KiB.
//! - JSON in which a member occurs twice is refused, since parsers differ in which one they use.
//! - Denials carry a code (`TEC-A4xx`) and the number of the attempt in `detail`.
//! - `RSA1_5` session keys, additional devices, and init-data digests of SM3 are refused.

mod admin;
mod attest;
pub(crate) mod authority;
mod backend;
pub(crate) mod budget;
pub(crate) mod check;
mod config;
mod cookie;
mod escrow;
mod init_data;
pub(crate) mod intake;
mod live;
mod memory;
pub(crate) mod metrics;
mod next_boot;
pub(crate) mod reply;
pub(crate) mod resource;
mod rotation;
mod sample;
mod seal;
pub(crate) mod session;
pub(crate) mod session_id;
mod shared;
pub(crate) mod strict;
pub(crate) mod table;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Request, Response};
use parking_lot::Mutex;
use tec_core::code::Code;

pub use self::admin::{AdminAuth, AdminKeyError};
pub use self::authority::Authorities;
#[cfg(feature = "guard")]
pub(crate) use self::backend::code_of;
pub use self::backend::{Admission, Backend, PolicyDecision};
pub use self::config::{
    DEFAULT_MAX_PAYLOAD, DEFAULT_MAX_SESSIONS, DEFAULT_SESSION_SECONDS, DEFAULT_TOKEN_SECONDS,
    KbsConfig,
};
use self::intake::{HELD, Intake, Received, announced};
pub use self::live::{LiveBackend, LivePorts};
pub use self::memory::MemoryBackend;
use self::metrics::Metrics;
use self::reply::{Refusal, Reply, no_such_plugin, no_token};
use self::session::Sessions;
use self::shared::Shared;
use self::table::peer;
use crate::authority::{MAX_BODY, PLACE};
use crate::policy::{AttestationPolicy, PolicyError, ResourcePolicy};
use crate::wire::{BASE_PATH, ErrorKind};

/// Bytes of all sessions, half of them for one client network: 65,536 sessions that proved nothing take a
/// quarter of it, the rest is for tokens and records of machines.
const SESSION_BYTES: usize = 128 * 1024 * 1024;

/// A key broker service. Cheap to clone; all clones share their sessions.
#[derive(Clone, Debug)]
pub struct Kbs(Arc<Inner>);

#[derive(derive_more::Debug)]
#[debug("Kbs {{ .. }}")]
struct Inner {
    config: KbsConfig,
    sessions: Sessions,
    shared: Option<Shared>,
    intake: Intake,
    metrics: Metrics,
    attestation: Cached<AttestationPolicy>,
    resource: Cached<ResourcePolicy>,
}

/// A parsed policy, as long as its text stays the same.
struct Cached<P>(Mutex<Option<(Arc<str>, Arc<P>)>>);

impl<P> Cached<P> {
    fn new() -> Self {
        Self(Mutex::new(None))
    }

    fn parsed(
        &self,
        text: &Arc<str>,
        parse: impl FnOnce(&str) -> Result<P, PolicyError>,
    ) -> Result<Arc<P>, PolicyError> {
        let mut cached = self.0.lock();
        if let Some((known, policy)) = &*cached
            && (Arc::ptr_eq(known, text) || known == text)
        {
            return Ok(Arc::clone(policy));
        }
        let policy = Arc::new(parse(text)?);
        *cached = Some((Arc::clone(text), Arc::clone(&policy)));
        Ok(policy)
    }
}

impl Kbs {
    /// A KBS without sessions.
    pub fn new(mut config: KbsConfig) -> Self {
        let seconds = config.session_seconds;
        let sessions = Sessions::new(config.max_sessions, seconds.into(), SESSION_BYTES);
        let shared = config.shared.take().map(|secret| Shared::new(secret, seconds));
        Self(Arc::new(Inner {
            intake: Intake::new(config.body_timeout, HELD),
            metrics: Metrics::new("tec_kbs"),
            config,
            sessions,
            shared,
            attestation: Cached::new(),
            resource: Cached::new(),
        }))
    }

    /// Counters in the Prometheus text format, as served by `GET /metrics`.
    pub fn metrics(&self) -> String {
        self.0.metrics.render(self.0.sessions.len())
    }

    /// All endpoints, for a server that the caller runs.
    ///
    /// One handler handles every request, since unknown paths and methods follow the rules of
    /// docs/reference/trustee.md and not those of a router.
    pub fn router(&self) -> Router {
        Router::new().fallback(serve).with_state(self.clone())
    }
}

async fn serve(State(kbs): State<Kbs>, request: Request<Body>) -> Response<Body> {
    kbs.dispatch(request).await.unwrap_or_else(|refusal| {
        kbs.0.metrics.refused(refusal.code());
        refusal.into_response()
    })
}

impl Kbs {
    async fn dispatch(&self, request: Request<Body>) -> Reply {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path();
        match (&parts.method, path) {
            (&Method::GET, "/healthz") => return Ok(reply::empty(None)),
            (&Method::GET, "/metrics") => {
                return Ok(reply::metrics(self.metrics()));
            }
            _ => {}
        }
        let rest = path
            .strip_prefix(BASE_PATH)
            .and_then(|rest| rest.strip_prefix('/'))
            .ok_or_else(|| Refusal::bare(404))?;
        if ![Method::GET, Method::POST, Method::PUT, Method::DELETE].contains(&parts.method) {
            return Err(Refusal::bare(405));
        }
        let (verb, tail) = rest.split_once('/').unwrap_or((rest, ""));
        let headers = &parts.headers;
        match (&parts.method, verb, tail) {
            (&Method::POST, "auth", "") => self.auth(&parts, body).await,
            (&Method::POST, "attest", "") => self.attest(&parts, body).await,
            (&Method::GET, "resource", tail) => {
                self.resource(headers, tail, parts.uri.query().unwrap_or_default()).await
            }
            (&Method::PUT, "escrow", "") => self.escrow(&parts, body).await,
            (&Method::GET, PLACE, "") => authority::hand_out(self.0.config.authorities.as_ref()),
            (&Method::PUT, PLACE, "") => self.trusts(&parts, body).await,
            (&Method::GET, crate::rotation::PLACE, "") => self.rotation(headers).await,
            (&Method::PUT, crate::rotation::PLACE, "") => self.confirm_rotation(&parts, body).await,
            (&Method::PUT, crate::next_boot::PLACE, "") => self.next_boot(&parts, body).await,
            // Trustee asks for an attestation here too, and has nothing to serve for it.
            (&Method::PUT, "resource", _) => Err(no_token()),
            (method @ (&Method::POST | &Method::DELETE), "resource", _)
            | (method @ &Method::POST, "attestation-policy", _)
            | (method @ (&Method::GET | &Method::POST), "resource-policy" | "reference-value", _) =>
            {
                self.authorize_admin(headers)?;
                let body = self.receive(&parts, body, self.0.config.max_payload).await?;
                self.admin(method, verb, tail, body.bytes).await
            }
            _ => Err(no_such_plugin()),
        }
    }

    /// `PUT authorities`: for attested machines, whose reports delay a replacement of the CA.
    async fn trusts(&self, parts: &Parts, body: Body) -> Reply {
        let (_, admission) = self.authenticate(&parts.headers)?;
        let Some(attested) = &admission.attested else {
            let code = admission.refused.unwrap_or(Code::ReleaseDenied);
            let attempt = Some(admission.attempt);
            return Err(Refusal::with_code(&ErrorKind::PolicyDeny, code, attempt));
        };
        let body = self.receive(parts, body, MAX_BODY).await?;
        let authorities = self.0.config.authorities.as_ref();
        authority::take(authorities, attested.machine(), &body.bytes).await
    }

    /// A body of at most `max` bytes, never more than the limit for any body.
    async fn receive(&self, parts: &Parts, body: Body, max: usize) -> Result<Received, Refusal> {
        let max = max.min(self.0.config.max_payload);
        announced(&parts.headers, max)?;
        let peer = peer(&parts.extensions);
        self.0.intake.receive(body, peer, max).await
    }
}

pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
