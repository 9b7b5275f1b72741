//! The registration server.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll};

use http::header::AUTHORIZATION;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use parking_lot::Mutex;

use super::reply::{ReplyBody, ReplyStyle, code_of, json, refusal};
use crate::ak::{Shares, SourceNetwork, fair_limit};
use crate::code::Code;
use crate::flow::{RegisterError, RegisterPorts, Registration, register};
use crate::ignition::PinGenerator;
use crate::port::{AuditSink, Clock, Entropy, MachineRegistry, UnclaimedLimit};
use crate::secret::SecretBytes;
use crate::time::Timestamp;

/// The path and its aliases, as used by documents and clients of the existing operator.
const PATHS: [&str; 4] =
    ["/ignition-clevis-pin-trustee", "/ignition", "/register", "/ignitioni-clevis-pin-trustee"];

/// Parts of the service.
#[derive(Debug)]
#[non_exhaustive]
pub struct RegisterServiceConfig {
    /// Where machines are kept.
    pub machines: Arc<dyn MachineRegistry>,
    /// Where registrations are recorded.
    pub audit: Arc<dyn AuditSink>,
    /// Renders the configs.
    pub pins: Arc<dyn PinGenerator>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Randomness for IDs.
    pub entropy: Arc<dyn Entropy>,
    /// Token that a node must send as `Authorization: Bearer`; `None` lets anyone register.
    pub token: Option<SecretBytes>,
    /// How many machines may wait unclaimed.
    pub limit: UnclaimedLimit,
    /// How long they may wait; older ones are removed when the limit is reached.
    pub unclaimed_seconds: i64,
}

impl RegisterServiceConfig {
    /// Bundles the ports. `token` is what a node must send as `Authorization: Bearer`; with `None`,
    /// anyone who reaches the service may register machines, up to the limit.
    ///
    /// 1,000 machines may wait unclaimed, each for an hour.
    pub fn new(
        machines: Arc<dyn MachineRegistry>,
        audit: Arc<dyn AuditSink>,
        pins: Arc<dyn PinGenerator>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        token: Option<SecretBytes>,
    ) -> Self {
        let limit = UnclaimedLimit::AtMost(1000);
        Self { machines, audit, pins, clock, entropy, token, limit, unclaimed_seconds: 3600 }
    }

    /// Sets how many machines may wait unclaimed.
    pub fn with_limit(self, limit: UnclaimedLimit) -> Self {
        Self { limit, ..self }
    }

    /// Sets how long each of them may wait.
    pub fn with_unclaimed_seconds(self, unclaimed_seconds: i64) -> Self {
        Self { unclaimed_seconds, ..self }
    }
}

/// `GET /ignition-clevis-pin-trustee` and its aliases. The network that a request comes from is a
/// [`SourceNetwork`] in its extensions, as for [`AkService`](super::AkService): the more machines a network
/// registers, the fewer may wait when it registers one more, see [`fair_limit`]. Without one, only the limit
/// of all counts.
#[derive(Clone, Debug)]
pub struct RegisterService(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: RegisterServiceConfig,
    /// Time of the last search for expired machines, in seconds: refused callers must not trigger a
    /// registry search with each request.
    swept: AtomicI64,
    /// What each network registered, until it is counted anew. A restart forgets it, but not how many wait.
    recent: Mutex<(Timestamp, Shares)>,
}

impl RegisterService {
    /// Creates the service.
    pub fn new(config: RegisterServiceConfig) -> Self {
        let swept = AtomicI64::new(i64::MIN);
        let recent = Mutex::new((Timestamp::from_unix_seconds(i64::MIN), Shares::default()));
        Self(Arc::new(Inner { config, swept, recent }))
    }

    /// Answers one request. The body is not read.
    pub async fn respond<B>(&self, request: Request<B>) -> Response<ReplyBody> {
        match self.try_respond(&request).await {
            Ok(response) => response,
            Err(code) => refusal(ReplyStyle::Registration, code),
        }
    }

    async fn try_respond<B>(&self, request: &Request<B>) -> Result<Response<ReplyBody>, Code> {
        if !PATHS.contains(&request.uri().path()) {
            return Err(Code::RegisterNotFound);
        }
        if request.method() != Method::GET {
            return Err(Code::RegisterMethod);
        }
        if !self.token_fits(request.headers()) {
            return Err(Code::RegisterToken);
        }
        let source: Option<SourceNetwork> = request.extensions().get().copied();
        let source = source.map(SourceNetwork::customer);
        let registered = self.register(self.count(source)).await;
        if registered.is_err() {
            self.0.recent.lock().1.give_back(source);
        }
        Ok(json(StatusCode::OK, registered?.ignition))
    }

    /// Counts a machine of this network before it is registered, since a client may not wait for the answer.
    /// Returns the limit for it.
    fn count(&self, source: Option<SourceNetwork>) -> UnclaimedLimit {
        let config = &self.0.config;
        let UnclaimedLimit::AtMost(most) = config.limit else { return config.limit };
        let (now, mut recent) = (config.clock.now(), self.0.recent.lock());
        if now >= recent.0 {
            *recent = (now.plus_seconds(config.unclaimed_seconds), Shares::default());
        }
        let (_, own) = recent.1.take(source);
        UnclaimedLimit::AtMost(fair_limit(most, own))
    }

    /// Registers a machine, if need be in place of those that waited too long.
    async fn register(&self, limit: UnclaimedLimit) -> Result<Registration, Code> {
        let config = &self.0.config;
        let ports = RegisterPorts {
            machines: &*config.machines,
            audit: &*config.audit,
            pins: &*config.pins,
            clock: &*config.clock,
            entropy: &*config.entropy,
        };
        let refused = |error| match error {
            RegisterError::Store(error) => code_of(&error, Code::RegisterFull),
            RegisterError::Render(_) => Code::RegisterUnavailable,
        };
        match register(ports, limit).await.map_err(refused) {
            Err(Code::RegisterFull) => {
                self.expire().await?;
                register(ports, limit).await.map_err(refused)
            }
            other => other,
        }
    }

    /// Makes room: removes machines that waited too long, at most once a second.
    async fn expire(&self) -> Result<(), Code> {
        let config = &self.0.config;
        let now = config.clock.now();
        let second = now.unix_seconds();
        if self.0.swept.swap(second, Ordering::Relaxed) == second {
            return Err(Code::RegisterFull);
        }
        let before = now.plus_seconds(-config.unclaimed_seconds);
        match config.machines.expire_unclaimed(before).await {
            Ok(0) => Err(Code::RegisterFull),
            Ok(_) => Ok(()),
            Err(error) => Err(code_of(&error, Code::RegisterFull)),
        }
    }

    fn token_fits(&self, headers: &HeaderMap) -> bool {
        let Some(token) = &self.0.config.token else {
            return true;
        };
        headers
            .get(AUTHORIZATION)
            .and_then(|value| value.as_bytes().strip_prefix(b"Bearer "))
            .is_some_and(|given| SecretBytes::new(given.to_vec()).ct_eq(token))
    }
}

impl<B: Send + 'static> tower_service::Service<Request<B>> for RegisterService {
    type Response = Response<ReplyBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let service = self.clone();
        // The body is dropped here: it is not needed, and may not be Sync.
        let request = request.map(drop);
        Box::pin(async move { Ok(service.respond(request).await) })
    }
}
