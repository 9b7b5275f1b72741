//! The port: an anchor as a source and target of trust.

use std::collections::BTreeSet;
use std::fmt;

use async_trait::async_trait;

use super::{Authority, Clash, Epoch, Intake, Transition, TrustUnit, UnitName};
use crate::port::{AuditEvent, PortError};
use crate::time::Timestamp;

/// How a change of authority went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "callers must handle every outcome")]
pub enum SwapOutcome {
    /// The record is the new one.
    Swapped,
    /// Somebody else was first: the record is this.
    Lost(Authority),
}

/// What came of one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "callers must handle every outcome")]
pub enum Adopted {
    /// It is new here.
    Created,
    /// It was here, and knows more now.
    Updated,
    /// It was here.
    Same,
    /// It contradicts what is here, which was left as it is.
    Clash(Clash),
}

/// Consecutive units of another anchor: between two names the list is complete, so that what is not
/// in it is not there.
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "callers write all of it out")]
pub struct AdoptPage<'a> {
    /// The pass in which the units were read.
    pub intake: Intake,
    /// The name that the list begins after.
    pub after: Option<UnitName>,
    /// The units, in order.
    pub units: &'a [TrustUnit],
    /// Whether the list goes on after the last unit.
    pub more: bool,
    /// When.
    pub at: Timestamp,
}

impl AdoptPage<'_> {
    /// Whether the page says something about a name.
    pub fn covers(&self, name: &UnitName) -> bool {
        let begun = self.after.as_ref().is_none_or(|after| name > after);
        let last = self.units.last().map(TrustUnit::name);
        begun && (!self.more || last.is_some_and(|last| *name <= last))
    }

    /// The names in it.
    pub fn names(&self) -> BTreeSet<UnitName> {
        self.units.iter().map(TrustUnit::name).collect()
    }
}

/// A trust anchor, as migrations and backups see it.
///
/// *Contract*
/// * `swap` is an atomic compare and swap of the whole record, durable with its audit line.
/// * Every write of the other ports obeys [`Authority::permit`], with the check and the write in
///   one step where the storage has transactions.
/// * `adopt` obeys [`Authority::admits`] in the same step, merges as
///   [`merge_machine`](super::merge_machine) and [`merge_image`](super::merge_image) say, and
///   removes what the page [covers](AdoptPage::covers) and does not hold: on standby only what was
///   adopted before, in serve-only everything, since the other anchor had it all. It answers in
///   order of the units. Adopting the same page again changes nothing.
/// * `progress` is where the last page of a pass at this epoch ended; nothing once the pass ended.
/// * `export` is in order of the names, and a read of committed state.
/// * `shred` removes every disk key, and only of an anchor that forwards. Doing it again is fine.
///
/// *Conformance suite*: [`testing::trust_anchor`](crate::testing::trust_anchor).
///
/// # Security
/// `export` hands out disk keys, whatever the role: who may call it may read the storage anyway.
#[async_trait]
pub trait TrustAnchor: fmt::Debug + Send + Sync {
    /// The record of authority.
    async fn authority(&self) -> Result<Authority, PortError>;

    /// Changes the record, if it is still what the change begins with.
    async fn swap(&self, change: &Transition, line: &AuditEvent) -> Result<SwapOutcome, PortError>;

    /// At most `limit` units with names greater than `after`.
    async fn export(
        &self,
        after: Option<&UnitName>,
        limit: usize,
    ) -> Result<Vec<TrustUnit>, PortError>;

    /// What adopting these units would come to, without a change.
    async fn weigh(&self, units: &[TrustUnit]) -> Result<Vec<Adopted>, PortError>;

    /// Takes a page of another anchor's units.
    async fn adopt(&self, page: &AdoptPage<'_>) -> Result<Vec<Adopted>, PortError>;

    /// Where a pass at this epoch was interrupted.
    async fn progress(&self, epoch: Epoch) -> Result<Option<UnitName>, PortError>;

    /// Removes every disk key. Returns how many there were.
    async fn shred(&self, line: &AuditEvent) -> Result<u64, PortError>;
}
