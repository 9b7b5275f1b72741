//! One leader at a time, by a Lease (coordination.k8s.io/v1).
//!
//! Clocks of different hosts are not compared: a lease has expired once it has been seen unchanged for as
//! long as it is valid.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, ResourceExt as _};
use tec_core::port::{PortError, chain};
use tec_core::time::Timestamp;
use tokio::time::Instant;

use crate::api::FIELD_MANAGER;
use crate::client::port_error;

/// How long a lease is valid, how often it is renewed, and when a leader that cannot renew it gives up,
/// before anyone else may take over.
const VALID: Duration = Duration::from_secs(15);
const RENEW: Duration = Duration::from_secs(3);
const GIVE_UP: Duration = Duration::from_secs(10);

/// The lease of a namespace, as one replica sees it.
pub(super) struct Leadership {
    leases: Api<Lease>,
    identity: String,
    /// The version seen last, and when it was first seen.
    seen: Option<(String, Instant)>,
}

impl Leadership {
    pub(super) fn new(leases: Api<Lease>, identity: String) -> Self {
        Self { leases, identity, seen: None }
    }

    /// Waits until this replica leads.
    pub(super) async fn acquire(&mut self, now: impl Fn() -> Timestamp) {
        loop {
            match tokio::time::timeout(GIVE_UP, self.attempt(now())).await {
                Ok(Ok(true)) => return,
                Ok(Ok(false)) => {}
                Ok(Err(error)) => {
                    tracing::warn!(error = chain(&error), "the lease cannot be read");
                }
                Err(_) => {
                    tracing::warn!("the lease cannot be read: the API server does not answer");
                }
            }
            tokio::time::sleep(RENEW).await;
        }
    }

    /// Renews the lease; returns when it is lost.
    pub(super) async fn hold(&mut self, now: impl Fn() -> Timestamp) {
        let mut renewed = Instant::now();
        loop {
            tokio::time::sleep(RENEW).await;
            let attempt = tokio::time::timeout_at(renewed + GIVE_UP, self.attempt(now())).await;
            match attempt {
                Ok(Ok(true)) => renewed = Instant::now(),
                Ok(Ok(false)) | Err(_) => return,
                Ok(Err(error)) => {
                    tracing::warn!(error = chain(&error), "the lease is not renewed");
                    if renewed.elapsed() >= GIVE_UP {
                        return;
                    }
                }
            }
        }
    }

    /// Lets the next replica lead immediately.
    pub(super) async fn release(&self) {
        let Ok(Some(mut lease)) = self.leases.get_opt(FIELD_MANAGER).await else {
            return;
        };
        if let Some(spec) = lease.spec.as_mut()
            && spec.holder_identity.as_ref() == Some(&self.identity)
        {
            spec.holder_identity = None;
            // If it fails, the lease expires by itself.
            let _ = self.replace(&lease).await;
        }
    }

    /// Takes or renews the lease, if nobody else has it.
    async fn attempt(&mut self, now: Timestamp) -> Result<bool, PortError> {
        let failed = |error| port_error("read the lease", error);
        let Some(mut lease) = self.leases.get_opt(FIELD_MANAGER).await.map_err(failed)? else {
            return self.create(now).await;
        };
        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
        let is_free = holder.is_none_or(|holder| holder.is_empty() || holder == self.identity);
        if !is_free && !self.has_run_out(&lease) {
            return Ok(false);
        }
        let is_ours = holder == Some(self.identity.as_str());
        let spec = lease.spec.get_or_insert_default();
        let acquired = spec.acquire_time.clone().filter(|_| is_ours);
        let transitions = spec.lease_transitions.unwrap_or(0);
        *spec = self.spec(now)?;
        if is_ours {
            spec.acquire_time = acquired;
        }
        spec.lease_transitions = Some(transitions.saturating_add(i32::from(!is_ours)));
        self.replace(&lease).await
    }

    fn has_run_out(&mut self, lease: &Lease) -> bool {
        let version = lease.resource_version().unwrap_or_default();
        match &self.seen {
            Some((seen, since)) if *seen == version => since.elapsed() >= VALID,
            _ => {
                self.seen = Some((version, Instant::now()));
                false
            }
        }
    }

    fn spec(&self, now: Timestamp) -> Result<LeaseSpec, PortError> {
        let time = jiff::Timestamp::from_second(now.unix_seconds()).map_err(|error| {
            let kind = tec_core::port::PortErrorKind::Invalid;
            PortError::new(kind, "write the lease").because(error)
        })?;
        Ok(LeaseSpec {
            acquire_time: Some(MicroTime(time)),
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(VALID.as_secs()).ok(),
            renew_time: Some(MicroTime(time)),
            ..LeaseSpec::default()
        })
    }

    async fn create(&self, now: Timestamp) -> Result<bool, PortError> {
        let lease = Lease {
            metadata: ObjectMeta { name: Some(FIELD_MANAGER.to_owned()), ..ObjectMeta::default() },
            spec: Some(self.spec(now)?),
        };
        taken(self.leases.create(&PostParams::default(), &lease).await)
    }

    /// A compare-and-swap: the object carries the version that was read.
    async fn replace(&self, lease: &Lease) -> Result<bool, PortError> {
        let params = PostParams::default();
        taken(self.leases.replace(FIELD_MANAGER, &params, lease).await)
    }
}

fn taken(answer: Result<Lease, kube::Error>) -> Result<bool, PortError> {
    match answer {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(port_error("take the lease", error)),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use tower::service_fn;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_waits_asks_again_although_the_api_server_never_answers() {
        let asked = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&asked);
        let service = service_fn(move |_: Request<Body>| {
            counted.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<Result<Response<Body>, Infallible>>()
        });
        let leases = Api::namespaced(Client::new(service, "n"), "n");
        let mut leadership = Leadership::new(leases, "one".to_owned());
        let waits = leadership.acquire(|| Timestamp::EPOCH);
        assert!(tokio::time::timeout(Duration::from_mins(1), waits).await.is_err());
        assert!(asked.load(Ordering::SeqCst) >= 4);
    }
}
