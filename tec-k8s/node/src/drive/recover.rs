//! The shell of [`RecoverPlan`].

use async_trait::async_trait;
use tec_core::plan;
use tec_core::plan::Shell;
use tec_core::port::PortError;
use tec_core::secret::SecretBytes;

use crate::derive::{ClusterId, MeasurementSecret};
use crate::lock::{LockError, LockOutcome, NodeLock};
use crate::port::{MappedDisk, NodeStore, Pause, StateDisk};
use crate::recover::{RecoverEffect, RecoverEvent, RecoverOutcome, RecoverPlan, RecoverStep};

/// Ports that recovery acts on.
#[derive(Clone, Copy, Debug)]
pub struct RecoverPorts<'p> {
    /// The lock; its marker is set again.
    pub lock: &'p NodeLock,
    /// The state disk.
    pub disk: &'p dyn StateDisk,
    /// Maps the disk.
    pub mapped: &'p dyn MappedDisk,
    /// Journal, which is on that disk.
    pub store: &'p dyn NodeStore,
    /// Waits between attempts.
    pub pause: &'p dyn Pause,
}

/// Keys for the disk of a member, from a Recover call or a rejoin ticket.
#[derive(Debug)]
pub struct OfferedKeys {
    /// Key of the state disk.
    pub state_disk_key: SecretBytes,
    /// Secret of the cluster ID.
    pub measurement_secret: MeasurementSecret,
}

/// Recovers the node with these keys if they open its disk, and returns the outcome; `None` if they
/// do not. Other keys may then be offered.
///
/// # Cancel safety
/// May be dropped at any await, and called again.
pub async fn drive_recover(ports: RecoverPorts<'_>, keys: &OfferedKeys) -> Option<RecoverOutcome> {
    let mut shell = RecoverShell { ports, keys, cluster: None, outcome: None };
    plan::run(&mut RecoverPlan::new(), RecoverEvent::Offered, &mut shell).await;
    shell.outcome
}

struct RecoverShell<'p> {
    ports: RecoverPorts<'p>,
    keys: &'p OfferedKeys,
    cluster: Option<ClusterId>,
    outcome: Option<RecoverOutcome>,
}

impl RecoverShell<'_> {
    async fn attempt(&mut self, step: RecoverStep) -> Result<RecoverEvent, PortError> {
        let key = &self.keys.state_disk_key;
        match step {
            RecoverStep::TryKey => Ok(if self.ports.disk.opens_with(key).await? {
                RecoverEvent::KeyFits
            } else {
                RecoverEvent::KeyRefused
            }),
            RecoverStep::MapDisk => self.map().await,
            RecoverStep::ReadMarker => {
                let state = self.ports.lock.marker().read().await?;
                Ok(RecoverEvent::Marker(state))
            }
            RecoverStep::SetMarker => self.set_marker().await,
        }
    }

    /// The register is extended only once per boot: a caller that offers a wrong secret with the
    /// right key must not make it name a different cluster than the journal, which the key
    /// protects.
    async fn map(&mut self) -> Result<RecoverEvent, PortError> {
        let state = self.ports.mapped.map(&self.keys.state_disk_key).await?;
        let secret = &self.keys.measurement_secret;
        let cluster = secret.cluster_id(&state.measurement_salt);
        let intent = self.ports.store.read_intent().await?;
        if intent.is_none_or(|intent| intent.cluster != cluster) {
            return Ok(RecoverEvent::Foreign);
        }
        self.cluster = Some(cluster);
        Ok(RecoverEvent::Mapped(cluster))
    }

    /// Goes through the lock, so that nothing else extends the register at the same time.
    async fn set_marker(&self) -> Result<RecoverEvent, PortError> {
        let cluster = self.cluster.ok_or_else(super::unlocked)?;
        match self.ports.lock.lock(cluster).await {
            Ok(LockOutcome::Locked(_)) | Err(LockError::OtherCluster(_)) => {
                Ok(RecoverEvent::MarkerSet)
            }
            Ok(LockOutcome::Taken) => Err(super::unlocked()),
            Err(LockError::Marker(error)) => Err(error),
        }
    }
}

#[async_trait]
impl Shell<RecoverPlan> for RecoverShell<'_> {
    async fn perform(&mut self, effect: RecoverEffect) -> Option<RecoverEvent> {
        let step = match effect {
            RecoverEffect::TryKey => RecoverStep::TryKey,
            RecoverEffect::MapDisk => RecoverStep::MapDisk,
            RecoverEffect::ReadMarker => RecoverStep::ReadMarker,
            RecoverEffect::SetMarker(_) => RecoverStep::SetMarker,
            RecoverEffect::Again(step) => {
                self.ports.pause.pause(0).await;
                step
            }
            RecoverEffect::Finish(outcome) => {
                self.outcome = Some(outcome);
                return None;
            }
        };
        let done = self.attempt(step).await;
        let done = done.inspect_err(|error| self.ports.pause.failed(&step, error));
        Some(done.unwrap_or(RecoverEvent::Failed(step)))
    }
}
