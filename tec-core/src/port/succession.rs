//! Attestation keys that follow one another.

use std::fmt;

use async_trait::async_trait;

use super::{AuditEvent, PortError};
use crate::ak::{Fingerprint, PublicKey, Successor};

/// Whether a successor was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "callers must handle every outcome")]
pub enum NameOutcome {
    /// It is recorded durably, in place of an earlier one that was never used.
    Named,
    /// The naming key is not bound to a machine in service.
    NotBound,
    /// The key is known already: bound, waiting, revoked, or the successor of another key.
    KeyTaken,
}

/// Whether a successor took the place of its predecessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "callers must handle every outcome")]
pub enum PromoteOutcome {
    /// It is bound now.
    Promoted,
    /// It was bound before.
    AlreadyBound,
    /// It is no successor: its predecessor is no longer bound, or named another key since.
    Lost,
}

/// The successors of bound attestation keys.
///
/// *Contract*: a bound key has at most one successor, which counts only while that key is bound: revoking the
/// key, or removing its machine, leaves no heir. While it counts, no machine can submit or bind it. Each change is
/// one durable step, together with its audit line; a call that changes nothing writes no line. *Implemented by*
/// the embedded store. *Conformance suite*: [`testing::ak_succession`](crate::testing::ak_succession).
#[async_trait]
pub trait AkSuccession: fmt::Debug + Send + Sync {
    /// Records the successor of a bound key.
    ///
    /// # Errors
    /// `Denied` if the anchor has no authority, `Conflict` if it takes part in a migration: the other anchor
    /// would not know the successor.
    async fn name_successor(
        &self,
        bound: &Fingerprint,
        successor: &PublicKey,
        line: &AuditEvent,
    ) -> Result<NameOutcome, PortError>;

    /// Looks up a successor whose predecessor is bound.
    async fn find_successor(&self, key: &Fingerprint) -> Result<Option<Successor>, PortError>;

    /// Binds a successor in place of its predecessor, which is revoked. The new record has the machine, the
    /// endorsement key, the source and the time of the old one; the clock and the platform recorded for the old
    /// key are those of the new one from now on.
    ///
    /// # Errors
    /// `Denied` if the anchor has no authority.
    async fn promote_successor(
        &self,
        key: &Fingerprint,
        line: &AuditEvent,
    ) -> Result<PromoteOutcome, PortError>;
}
