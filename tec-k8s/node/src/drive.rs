//! The shells of the plans: they turn effects into calls of ports.
//!
//! They need no runtime, start no tasks, and may be dropped at any await.

mod init;
mod join;
mod recover;

use tec_core::port::{PortError, PortErrorKind};
use tec_core::secret::SecretBytes;

pub use self::init::{InitPorts, InitReport, check_init, drive_init};
pub use self::join::{JoinPorts, drive_join};
pub use self::recover::{OfferedKeys, RecoverPorts, drive_recover};

use super::derive::{DataKeyId, DiskId, MeasurementSecret};
use super::journal::Intent;
use super::lock::{LockError, LockOutcome, LockedNode, NodeLock};
use super::port::{DataKeys, NodeStore, StateDisk};

/// Length of a state disk's key and of the measurement secret.
const KEY: usize = 32;

/// Whether no further attempt can succeed.
fn is_final(error: &PortError) -> bool {
    matches!(error.kind(), PortErrorKind::Invalid | PortErrorKind::Denied)
}

async fn measurement_secret(keys: &dyn DataKeys) -> Result<MeasurementSecret, PortError> {
    let key = keys.data_key(&DataKeyId::measurement_secret(), KEY).await?;
    MeasurementSecret::from_data_key(&key).map_err(|error| {
        PortError::new(PortErrorKind::Invalid, "take the measurement secret").because(error)
    })
}

async fn disk_key(keys: &dyn DataKeys, disk: DiskId) -> Result<SecretBytes, PortError> {
    keys.data_key(&DataKeyId::state_disk(disk), KEY).await
}

/// A lock is held at this point, unless the plan has a defect.
fn unlocked() -> PortError {
    PortError::new(PortErrorKind::Internal, "act on a node that is not locked")
}

/// A disk that opens with neither key can never be re-keyed, and the lock cannot be undone.
async fn check_disk(disk: &dyn StateDisk, key: &SecretBytes) -> Result<(), PortError> {
    if disk.opens_with(key).await? || disk.is_new().await? {
        return Ok(());
    }
    let operation = "open the state disk: neither its first passphrase nor the cluster's key does";
    Err(PortError::new(PortErrorKind::Conflict, operation))
}

/// Locks the node for the cluster of this intent; `None` if it is locked for another caller.
async fn lock(lock: &NodeLock, intent: Option<&Intent>) -> Result<Option<LockedNode>, PortError> {
    let cluster = intent.ok_or_else(unlocked)?.cluster;
    match lock.lock(cluster).await {
        Ok(LockOutcome::Locked(node)) => Ok(Some(node)),
        Ok(LockOutcome::Taken) | Err(LockError::OtherCluster(_)) => Ok(None),
        Err(LockError::Marker(error)) => Err(error),
    }
}

/// Only the caller that will lock writes the intent. Returns false if another caller will.
async fn write_intent(
    lock: &NodeLock,
    store: &dyn NodeStore,
    intent: &Intent,
) -> Result<bool, PortError> {
    if !lock.reserve(intent.cluster) {
        return Ok(false);
    }
    let written = store.write_intent(intent).await;
    written.inspect_err(|_| lock.release())?;
    Ok(true)
}

#[cfg(test)]
mod tests;
