//! The port: an anchor as a source and target of trust.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use super::{Authority, Clash, Epoch, Intake, Merged, Transition, TrustUnit, UnitName};
use crate::port::{AuditEvent, PortError};
use crate::time::Timestamp;

/// Result of a change of authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapOutcome {
    /// The record is the new one.
    Swapped,
    /// Another change came first: this is the current record.
    Lost(Authority),
}

/// Result for one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adopted {
    /// It is new here.
    Created,
    /// It was here, and was extended.
    Updated,
    /// It was here already.
    Same,
    /// It contradicts what is here, which was left unchanged.
    Clash(Clash),
}

impl Adopted {
    /// What becomes of a unit that `existed` before or did not.
    pub fn of<T>(merged: &Merged<T>, existed: bool) -> Self {
        match (merged, existed) {
            (Merged::Same, _) => Self::Same,
            (Merged::Clash(clash), _) => Self::Clash(*clash),
            (Merged::Write(_), true) => Self::Updated,
            (Merged::Write(_), false) => Self::Created,
        }
    }
}

/// Consecutive units of another anchor: the list is complete between two names, so anything not in
/// it does not exist.
#[derive(Clone, Debug)]
pub struct AdoptPage {
    /// The pass in which the units were read.
    pub intake: Intake,
    /// The name after which the list begins.
    pub after: Option<UnitName>,
    /// The units, in order. Clones of the page share them.
    pub units: Arc<[TrustUnit]>,
    /// Whether the list continues after the last unit.
    pub more: bool,
    /// The time.
    pub at: Timestamp,
}

impl AdoptPage {
    /// Whether the page covers a name.
    pub fn covers(&self, name: &UnitName) -> bool {
        let begun = self.after.as_ref().is_none_or(|after| name > after);
        let last = self.units.last().map(TrustUnit::name);
        begun && (!self.more || last.is_some_and(|last| *name <= last))
    }

    /// The names of the units in the page.
    pub fn names(&self) -> BTreeSet<UnitName> {
        self.units.iter().map(TrustUnit::name).collect()
    }
}

/// A trust anchor, as migrations and backups see it.
///
/// *Contract*
/// * `swap` is an atomic compare-and-swap of the whole record, durable with its audit line.
/// * Every write of the other ports obeys [`Authority::permit`], with the check and the write in
///   one step if the storage has transactions.
/// * `adopt` obeys [`Authority::admits`] in the same step, merges as
///   [`merge_machine`](super::merge_machine) and [`merge_image`](super::merge_image) specify, and
///   removes what the page [covers](AdoptPage::covers) but does not hold: on standby only what was
///   adopted before, in serve-only everything, since the other anchor had all of it. It answers in
///   unit order. Adopting the same page again changes nothing.
/// * `progress` returns where the last page of a pass at this epoch ended; `None` once the pass is
///   complete.
/// * `export` returns units in name order, and reads committed state.
/// * `shred` removes every disk key, and only at an anchor in the role `Forward`. It may be
///   repeated.
///
/// *Conformance suite*: [`testing::trust_anchor`](crate::testing::trust_anchor).
///
/// # Security
/// `export` returns disk keys, whatever the role: anyone who may call it can read the storage
/// anyway.
#[async_trait]
pub trait TrustAnchor: fmt::Debug + Send + Sync {
    /// The record of authority.
    async fn authority(&self) -> Result<Authority, PortError>;

    /// Changes the record, if it is still the one that the change starts from.
    async fn swap(&self, change: &Transition, line: &AuditEvent) -> Result<SwapOutcome, PortError>;

    /// Returns at most `limit` units with names greater than `after`.
    async fn export(
        &self,
        after: Option<&UnitName>,
        limit: usize,
    ) -> Result<Vec<TrustUnit>, PortError>;

    /// The result of adopting these units, without changing anything.
    async fn weigh(&self, units: &[TrustUnit]) -> Result<Vec<Adopted>, PortError>;

    /// Adopts a page of another anchor's units.
    async fn adopt(&self, page: &AdoptPage) -> Result<Vec<Adopted>, PortError>;

    /// Where a pass at this epoch was interrupted.
    async fn progress(&self, epoch: Epoch) -> Result<Option<UnitName>, PortError>;

    /// Removes every disk key. Returns the number of keys removed.
    async fn shred(&self, line: &AuditEvent) -> Result<u64, PortError>;
}
