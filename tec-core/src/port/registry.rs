//! Registries of machines, attestation keys and images, and the store of secrets.
//!
//! # Audit lines
//! A change that grants or withdraws access carries its `line`: either both the change and the line are
//! written, or neither is. A call that changes nothing writes no line, except that a repeated revocation is
//! written again. *Conformance suite*: [`testing::audited_changes`](crate::testing::audited_changes).

use std::fmt;

use async_trait::async_trait;
#[cfg(any(test, feature = "test-util"))]
use mockall::automock;

use super::{AuditEvent, PortError};
use crate::ak::{AkRecord, ApprovedAk, Fingerprint, SourceNetwork};
use crate::id::{ImageName, MachineId, ResourcePath};
use crate::image::ApprovedImage;
use crate::machine::{Machine, MachineChange};
use crate::secret::SecretBytes;
use crate::time::Timestamp;

/// Whether a create call created something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateOutcome {
    /// It is new.
    Created,
    /// It existed before, and was left unchanged.
    Existed,
}

/// Whether a secret was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// It is stored durably.
    Stored,
    /// There is already a secret at this path; it was left unchanged.
    Existed,
}

/// Result of a compare-and-swap of an attestation key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindOutcome {
    /// The key is now bound to the machine.
    Bound,
    /// The key was already bound to this machine.
    AlreadyBound,
    /// The machine is bound to another key.
    MachineTaken,
    /// The key is bound to another machine, or was revoked.
    KeyTaken,
    /// There is no such machine, or it is not in service: quarantined, revoked or retired.
    NoMachine,
}

/// Maximum number of machines that may wait without an attestation key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnclaimedLimit {
    /// Any number: for machines added by an admin.
    Unlimited,
    /// At most this many, including the new one.
    AtMost(u64),
}

/// Number of machines admitted by trust on first use, that is, whose bound key has a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// Total number.
    pub total: u64,
    /// Number from one network.
    pub of_source: u64,
}

impl Claims {
    /// Counts bound keys by source; keys without a source are left out.
    pub fn of(sources: impl Iterator<Item = SourceNetwork>, source: SourceNetwork) -> Self {
        sources.fold(Self::default(), |claims, from| Self {
            total: claims.total + 1,
            of_source: claims.of_source + u64::from(from == source),
        })
    }
}

/// The machines.
///
/// *Contract*: writes are durable when the call returns. `list` is in ID order. `create` never changes a
/// known machine: neither its origin nor its revocation. *Conformance suite*:
/// [`testing::machine_registry`](crate::testing::machine_registry).
#[cfg_attr(any(test, feature = "test-util"), automock)]
#[async_trait]
pub trait MachineRegistry: fmt::Debug + Send + Sync {
    /// Adds a machine unless its ID is known. A known machine gives `Existed`, even if the limit is reached.
    ///
    /// # Errors
    /// `Denied` if the number of unclaimed machines has reached the limit; machines that are not in
    /// service do not count. Check and insert are atomic.
    async fn create(
        &self,
        machine: &Machine,
        limit: UnclaimedLimit,
    ) -> Result<CreateOutcome, PortError>;

    /// Looks a machine up.
    async fn find(&self, id: &MachineId) -> Result<Option<Machine>, PortError>;

    /// At most `limit` machines with IDs greater than `after`, which need not exist. A limit of zero returns
    /// none.
    async fn list(&self, after: Option<MachineId>, limit: usize)
    -> Result<Vec<Machine>, PortError>;

    /// Marks a machine as revoked; a revoked machine stays revoked.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    async fn revoke(&self, id: &MachineId, line: &AuditEvent) -> Result<(), PortError>;

    /// Quarantines, releases or retires a machine, see [`Machine::state_after`]. Repeating a change
    /// succeeds and writes its line again. A revocation overrides all of them.
    ///
    /// # Errors
    /// `NotFound` if there is none, `Conflict` if its state does not allow the change.
    async fn change(
        &self,
        id: &MachineId,
        change: MachineChange,
        line: &AuditEvent,
    ) -> Result<(), PortError>;

    /// Removes the machine and its attestation keys; succeeds if the machine is already gone.
    async fn remove(&self, id: &MachineId) -> Result<(), PortError>;

    /// Removes machines that registered themselves before `before` and are still unclaimed.
    /// Machines that were added by an admin, have a key, or are not in service stay. Returns the
    /// number of machines removed.
    async fn expire_unclaimed(&self, before: Timestamp) -> Result<u64, PortError>;
}

/// The attestation keys.
///
/// *Contract*: a key has one record, found by its fingerprint; a machine has at most one bound key;
/// a revoked key stays known. `bind` is an atomic compare-and-swap, so that the first use wins with
/// any number of replicas, and also moves the machine to `Active`. Writes are durable.
/// *Conformance suite*: [`testing::ak_registry`](crate::testing::ak_registry).
#[cfg_attr(any(test, feature = "test-util"), automock)]
#[async_trait]
pub trait AkRegistry: fmt::Debug + Send + Sync {
    /// Stores a key that waits for approval. The record of a known key is left unchanged, whichever machine
    /// it belongs to. The state of the stored record is always `Pending`, whatever `record` says: submitting
    /// never binds.
    ///
    /// # Errors
    /// `NotFound` if the machine is unknown or not in service. `Denied` if four keys of the machine
    /// are waiting, so that a stranger cannot fill the store; revoked keys do not count. Check and insert are
    /// atomic. Where strangers submit keys, fewer from one network, see [`may_wait`](crate::ak::may_wait).
    async fn submit(
        &self,
        record: &AkRecord,
        line: &AuditEvent,
    ) -> Result<CreateOutcome, PortError>;

    /// Binds an approved key to the machine of its record, with the source of that record, and stores it as
    /// the machine's last binding. The key need not have been submitted; a waiting key keeps its
    /// `submitted_at`, and its `ek` if the approved record has none. An outcome other than `Bound` changes
    /// nothing.
    async fn bind(&self, ak: &ApprovedAk, line: &AuditEvent) -> Result<BindOutcome, PortError>;

    /// Looks a key up by fingerprint.
    async fn find(&self, key: &Fingerprint) -> Result<Option<AkRecord>, PortError>;

    /// Looks a key up with its machine, which is `None` if it was removed. Both are read in one step, so a
    /// machine revoked before the call is returned as revoked.
    async fn find_with_machine(
        &self,
        key: &Fingerprint,
    ) -> Result<Option<(AkRecord, Option<Machine>)>, PortError>;

    /// The key bound to a machine.
    async fn bound_to(&self, machine: &MachineId) -> Result<Option<AkRecord>, PortError>;

    /// All keys submitted for a machine, or all keys.
    async fn list(&self, machine: Option<MachineId>) -> Result<Vec<AkRecord>, PortError>;

    /// Number of bound keys that have a source: in total and from this source. Waiting and revoked
    /// keys do not count.
    async fn claims(&self, source: &SourceNetwork) -> Result<Claims, PortError>;

    /// Revokes a key; its machine may then bind another one. The record stays, so that the key itself
    /// is never bound again while its machine exists.
    ///
    /// # Errors
    /// `NotFound` if the key is unknown.
    async fn revoke(&self, key: &Fingerprint, line: &AuditEvent) -> Result<(), PortError>;
}

/// The approved images.
///
/// *Conformance suite*: [`testing::image_registry`](crate::testing::image_registry).
#[cfg_attr(any(test, feature = "test-util"), automock)]
#[async_trait]
pub trait ImageRegistry: fmt::Debug + Send + Sync {
    /// Adds the image, or replaces the one with the same name.
    async fn put(&self, image: &ApprovedImage) -> Result<(), PortError>;

    /// Looks an image up.
    async fn find(&self, name: &ImageName) -> Result<Option<ApprovedImage>, PortError>;

    /// All images, including revoked and expired ones, in name order.
    async fn list(&self) -> Result<Vec<ApprovedImage>, PortError>;

    /// Marks an image as revoked, at the time of the line. Fails with `NotFound` if there is none.
    async fn revoke(&self, name: &ImageName, line: &AuditEvent) -> Result<(), PortError>;
}

/// The disk keys.
///
/// *Contract*: `put_new` never overwrites, and what it stored is durable when it returns.
/// *Conformance suite*: [`testing::secret_store`](crate::testing::secret_store).
#[cfg_attr(any(test, feature = "test-util"), automock)]
#[async_trait]
pub trait SecretStore: fmt::Debug + Send + Sync {
    /// Stores a secret unless there is one at the path.
    async fn put_new(
        &self,
        path: &ResourcePath,
        secret: &SecretBytes,
        line: &AuditEvent,
    ) -> Result<PutOutcome, PortError>;

    /// Reads a secret.
    async fn find(&self, path: &ResourcePath) -> Result<Option<SecretBytes>, PortError>;

    /// Whether there is a secret, without reading it.
    async fn exists(&self, path: &ResourcePath) -> Result<bool, PortError>;

    /// Removes a secret; succeeds if it is already gone.
    async fn remove(&self, path: &ResourcePath) -> Result<(), PortError>;
}
