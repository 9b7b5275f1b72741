//! The keys of a rotation.

use std::fmt;

use async_trait::async_trait;

use super::{AuditEvent, PortError};
use crate::id::MachineId;
use crate::rotation::{Confirmation, Confirmed, Forget, KeyMark, Keys};
use crate::secret::SecretBytes;

/// Whether a rotation was begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BeginOutcome {
    /// The new key is pending, durably.
    Begun(KeyMark),
    /// A rotation is under way; it was left unchanged.
    UnderWay(Keys<KeyMark>),
}

/// Whether a rotation was canceled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CancelOutcome {
    /// The key is forgotten, durably; these are kept.
    Canceled(Keys<KeyMark>),
    /// The rotation is in another state, or none is under way; it was left unchanged.
    Unchanged(Keys<KeyMark>),
}

/// The disk keys of a machine while one replaces the other.
///
/// *Contract*: each change is one durable step, as [`crate::rotation`] specifies, together with its audit
/// line; a call that changes nothing writes no line. The keys themselves are read through
/// [`SecretStore`](super::SecretStore), under the paths of
/// [`ResourcePath::disk_key_of`](crate::id::ResourcePath::disk_key_of). *Implemented by* the embedded store.
/// *Conformance suite*: [`testing::disk_keys`](crate::testing::disk_keys).
#[async_trait]
pub trait DiskKeys: fmt::Debug + Send + Sync {
    /// The keys that are kept for a machine; `None` if it has no disk key.
    async fn rotation(&self, machine: &MachineId) -> Result<Option<Keys<KeyMark>>, PortError>;

    /// Keeps a new key as pending, unless a rotation is under way.
    ///
    /// # Errors
    /// `NotFound` if there is no such machine in service, or it has no disk key. `Denied` if the anchor has no
    /// authority.
    async fn begin(
        &self,
        machine: &MachineId,
        pending: &SecretBytes,
        line: &AuditEvent,
    ) -> Result<BeginOutcome, PortError>;

    /// Takes a confirmation of the machine.
    ///
    /// # Errors
    /// `NotFound` if the machine has no disk key. `Denied` if the anchor has no authority: two anchors never
    /// disagree about the current key.
    async fn confirm(
        &self,
        machine: &MachineId,
        confirmation: Confirmation,
        key: &KeyMark,
        line: &AuditEvent,
    ) -> Result<Confirmed<KeyMark>, PortError>;

    /// Forgets a key of a rotation, of a machine in any state.
    async fn cancel(
        &self,
        machine: &MachineId,
        forget: Forget,
        line: &AuditEvent,
    ) -> Result<CancelOutcome, PortError>;
}
