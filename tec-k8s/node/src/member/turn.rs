//! One control plane joins at a time: each changes the members of etcd, and two at the same time can cost its
//! majority.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::ticket::NodeName;
use async_trait::async_trait;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt as _};
use tokio::time::Instant;

use crate::rpc::ControlPlaneTurns;
use tec_core::port::{Clock, PortError, PortErrorKind};
use tec_k8s::client::{is_conflict, port_error};

const NAMESPACE: &str = "kube-system";
const NAME: &str = "tec-control-plane-join";
/// A node that has not joined by then gives up its turn (Constellation).
const VALID: Duration = Duration::from_mins(10);
/// How long into its turn a node may still begin to join: the join may take five minutes (Constellation), and
/// must end before another node gets the turn.
const BEGINS: Duration = Duration::from_mins(4);
/// The label that kubeadm sets on a control plane in its last step.
const MARK: &str = "node-role.kubernetes.io/control-plane";

/// Assigns turns by a lease. As in leader election, clocks of different hosts are not compared: a turn has
/// expired once it has been seen unchanged for as long as it is valid.
#[derive(Clone, derive_more::Debug)]
#[debug("KubeTurns {{ .. }}")]
pub struct KubeTurns {
    leases: Api<Lease>,
    nodes: Api<Node>,
    clock: Arc<dyn Clock>,
    seen: Arc<Mutex<Option<(String, Instant)>>>,
}

impl KubeTurns {
    /// Assigns turns in this cluster.
    pub fn new(client: Client, clock: Arc<dyn Clock>) -> Self {
        Self {
            leases: Api::namespaced(client.clone(), NAMESPACE),
            nodes: Api::all(client),
            clock,
            seen: Arc::default(),
        }
    }

    fn spec(&self, node: &NodeName) -> Result<LeaseSpec, PortError> {
        let now = self.clock.now().unix_seconds();
        let now = jiff::Timestamp::from_second(now).map_err(|error| {
            PortError::new(PortErrorKind::Invalid, "write the lease").because(error)
        })?;
        Ok(LeaseSpec {
            acquire_time: Some(MicroTime(now)),
            holder_identity: Some(node.to_string()),
            lease_duration_seconds: i32::try_from(VALID.as_secs()).ok(),
            renew_time: Some(MicroTime(now)),
            ..LeaseSpec::default()
        })
    }

    /// How long the lease has been seen unchanged.
    fn seen_for(&self, lease: &Lease) -> Duration {
        let version = lease.resource_version().unwrap_or_default();
        let mut seen = self.seen.lock();
        match &*seen {
            Some((known, since)) if *known == version => since.elapsed(),
            _ => {
                *seen = Some((version, Instant::now()));
                Duration::ZERO
            }
        }
    }

    /// Whether the holder has time left for a join. Another instance may have seen the turn begin earlier, so
    /// the start time in the lease counts too: a wrong clock can only make the holder wait.
    fn may_begin(&self, lease: &Lease) -> bool {
        let begin = lease.spec.as_ref().and_then(|spec| spec.acquire_time.as_ref());
        let now = self.clock.now().unix_seconds();
        let age = begin.map_or(0, |begin| now.saturating_sub(begin.0.as_second()));
        let age = Duration::from_secs(u64::try_from(age).unwrap_or_default());
        self.seen_for(lease).max(age) < BEGINS
    }

    async fn has_joined(&self, node: &str) -> Result<bool, PortError> {
        let found = self.nodes.get_opt(node).await;
        let found = found.map_err(|error| port_error(format!("look up node {node}"), error))?;
        Ok(found.is_some_and(|node| node.labels().contains_key(MARK)))
    }

    async fn is_free(&self, lease: &Lease) -> Result<bool, PortError> {
        match holder(lease) {
            None | Some("") => Ok(true),
            Some(_) if self.seen_for(lease) >= VALID => Ok(true),
            Some(holder) => self.has_joined(holder).await,
        }
    }
}

fn is_holder(lease: &Lease, node: &NodeName) -> bool {
    holder(lease) == Some(node.as_str())
}

fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref()
}

#[async_trait]
impl ControlPlaneTurns for KubeTurns {
    async fn take(&self, node: &NodeName) -> Result<(), PortError> {
        let waits = || {
            let operation = format!("give the turn to {node}: it is another's, or nearly over");
            PortError::new(PortErrorKind::Unavailable, operation)
        };
        let failed = |error| port_error("read whose turn it is", error);
        let spec = self.spec(node)?;
        let params = PostParams::default();
        let taken = match self.leases.get_opt(NAME).await.map_err(failed)? {
            // Not renewed: a node that asks again and again, and never joins, would keep it. One that is late
            // waits until it has expired, and takes a new one.
            Some(lease) if is_holder(&lease, node) && self.may_begin(&lease) => return Ok(()),
            Some(lease) if is_holder(&lease, node) && self.seen_for(&lease) < VALID => {
                return Err(waits());
            }
            Some(lease) if !self.is_free(&lease).await? => return Err(waits()),
            Some(mut lease) => {
                lease.spec = Some(spec);
                self.leases.replace(NAME, &params, &lease).await
            }
            None => {
                let lease = Lease {
                    metadata: ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() },
                    spec: Some(spec),
                };
                self.leases.create(&params, &lease).await
            }
        };
        match taken {
            Ok(lease) => {
                self.seen_for(&lease);
                Ok(())
            }
            Err(error) if is_conflict(&error) => Err(waits()),
            Err(error) => Err(port_error("give a turn", error)),
        }
    }
}

#[cfg(test)]
mod tests;
