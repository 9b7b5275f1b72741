//! A namespace as a trust anchor.
//!
//! ```text
//!   export   seal after giving up ─► list machines, keys, Secrets, images ─► units, in order
//!   adopt    list what is here ─► merge ─► create what is missing, with owners of this cluster
//! ```
//! A pass lists everything once, page by page, and keeps the relevant parts in memory: about one kilobyte for
//! a machine with its key. UIDs, owner references and finalizers stay behind; objects created here get those
//! of this cluster.

mod belonging;
mod demand;
mod log;
mod meet;
mod pass;
mod seal;
mod snapshot;
mod write;

use std::collections::BTreeSet;

use async_trait::async_trait;
use futures::{FutureExt as _, StreamExt as _, TryFutureExt as _, TryStreamExt as _};
use tec_core::code::Code;
use tec_core::id::ResourcePath;
use tec_core::machine::MachineState;
use tec_core::migrate::{
    AdoptPage, Adopted, Authority, Epoch, Merged, Role, SwapOutcome, Transition, TrustAnchor,
    TrustUnit, UnitName,
};
use tec_core::port::{AuditAction, AuditEvent, PortError, PortErrorKind};

pub use self::belonging::{CA_SECRET, ISSUED_AT, ISSUED_FOR, RENEW_AT};
pub use self::demand::pinned_of;
pub use self::log::AUDIT_OF;
pub(super) use self::pass::Passes;
use self::pass::{Progress, pause, resume};
use self::snapshot::Snapshot;
use super::KubeRegistry;
use crate::api::{ConditionKind, Machine};

/// The epoch at which an object was adopted; absent on objects created here.
const ADOPTED: &str = "trusted-execution-clusters.io/adopted-at-epoch";
/// The epoch at which the anchor gave up its authority, on what it sealed.
const SEALED: &str = "trusted-execution-clusters.io/sealed-at-epoch";
/// Entry of the record's object: where a pass was interrupted, as JSON.
const PROGRESS: &str = "progress";
/// Number of concurrent requests.
const AT_ONCE: usize = 24;

fn refuse_lost(record: &Authority, snapshot: &Snapshot) -> Result<(), PortError> {
    // If the keys were shredded, none is expected.
    let gives = matches!(record.role(), Role::Active | Role::ServeOnly);
    let Some(id) = snapshot.lost_secret().filter(|_| gives) else {
        return Ok(());
    };
    let why = format!(
        "export machine {id}: the Secret of its disk key is gone; restore it, or remove the machine"
    );
    Err(PortError::new(PortErrorKind::Invalid, why).with_code(Code::TrustIncomplete))
}

impl KubeRegistry {
    /// Refuses a write that comes after another pass began or the role changed. Checked before each write of
    /// a page, and after reading what it depends on: nothing locks the record while a page is written.
    async fn admitted(&self, page: &AdoptPage) -> Result<(), PortError> {
        let record = self.passes.fence.look(self.record_now()).await?;
        let admitted = record.admits(page.intake);
        admitted.map_err(|refused| refused.during("adopt what another anchor has"))
    }

    async fn record_now(&self) -> Result<Authority, PortError> {
        self.authority_of(&self.authority_object().await?).await
    }

    /// Removes what the page covers and does not contain; see the contract of the port.
    async fn prune(
        &self,
        page: &AdoptPage,
        role: Role,
        snapshot: &Snapshot,
    ) -> Result<(), PortError> {
        let stays: BTreeSet<UnitName> = page.names();
        let gone = snapshot
            .names(role == Role::ServeOnly)
            .filter(|name| page.covers(name) && !stays.contains(name));
        for name in gone {
            self.admitted(page).await?;
            let machine = match &name {
                UnitName::Machine(id) => Some(*id),
                _ => None,
            };
            let action = AuditAction::TrustPruned;
            self.tell(&AuditEvent::new(page.at, action, machine, name.to_string())).await;
            match &name {
                UnitName::Machine(id) => {
                    self.remove_machine(id).await?;
                    let disk = ResourcePath::luks_root(id);
                    for path in [vec![disk], snapshot.recovery_paths(id)].concat() {
                        self.delete_at(&path, None).await?;
                    }
                }
                UnitName::Image(image) => self.delete_image(image).await?,
                _ => {}
            }
        }
        Ok(())
    }

    async fn take(&self, page: &AdoptPage, snapshot: &Snapshot) -> Result<Vec<Adopted>, PortError> {
        let take = |(place, unit)| {
            let taken = self.take_one(unit, snapshot, page);
            taken.map_ok(move |adopted| (place, adopted)).boxed()
        };
        let units: Vec<_> = page.units.iter().enumerate().map(take).collect();
        // In order of completion: one that waits for the disk does not hold up the others.
        let units = futures::stream::iter(units).buffer_unordered(AT_ONCE);
        let mut adopted: Vec<_> = units.try_collect().await?;
        adopted.sort_unstable_by_key(|(place, _)| *place);
        Ok(adopted.into_iter().map(|(_, adopted)| adopted).collect())
    }

    async fn take_one(
        &self,
        unit: &TrustUnit,
        snapshot: &Snapshot,
        page: &AdoptPage,
    ) -> Result<Adopted, PortError> {
        let met = snapshot.meet(unit);
        if matches!(met.merged, Merged::Write(_)) {
            self.admitted(page).await?;
        }
        self.write(&met, snapshot, page).await?;
        Ok(Adopted::of(&met.merged, met.existed))
    }

    async fn shred_secrets(&self, paths: Vec<ResourcePath>) -> Result<(), PortError> {
        futures::stream::iter(paths.into_iter().map(Ok))
            .try_for_each_concurrent(AT_ONCE, async |path| self.delete_at(&path, None).await)
            .await
    }
}

#[async_trait]
impl TrustAnchor for KubeRegistry {
    async fn authority(&self) -> Result<Authority, PortError> {
        self.record_now().await
    }

    async fn swap(&self, change: &Transition, line: &AuditEvent) -> Result<SwapOutcome, PortError> {
        self.swap_authority(change, line).await
    }

    async fn export(
        &self,
        after: Option<&UnitName>,
        limit: usize,
    ) -> Result<Vec<TrustUnit>, PortError> {
        let record = self.record_now().await?;
        let goes_on = |at: &UnitName| after == Some(at);
        let known = resume(&self.passes.export, &record, goes_on);
        let snapshot = if let Some(snapshot) = known {
            snapshot
        } else {
            self.seal(&record).await?;
            let snapshot = Snapshot::read(self).await?;
            refuse_lost(&record, &snapshot)?;
            snapshot
        };
        let units = snapshot.units(after, limit);
        if let Some(last) = units.last().filter(|_| units.len() == limit) {
            pause(&self.passes.export, record, last.name(), snapshot);
        }
        Ok(units)
    }

    async fn weigh(&self, units: &[TrustUnit]) -> Result<Vec<Adopted>, PortError> {
        let record = self.record_now().await?;
        let first = units.first().map(TrustUnit::name);
        let goes_on = |at: &UnitName| first.is_some_and(|first| first > *at);
        let snapshot = match resume(&self.passes.weigh, &record, goes_on) {
            Some(snapshot) => snapshot,
            None => Snapshot::read(self).await?,
        };
        let weighed = units.iter().map(|unit| snapshot.meet(unit));
        let weighed = weighed.map(|met| Adopted::of(&met.merged, met.existed)).collect();
        if let Some(last) = units.last() {
            pause(&self.passes.weigh, record, last.name(), snapshot);
        }
        Ok(weighed)
    }

    async fn adopt(&self, page: &AdoptPage) -> Result<Vec<Adopted>, PortError> {
        let operation = "adopt what another anchor has";
        let object = self.authority_object().await?;
        let record = self.authority_of(&object).await?;
        let admitted = record.admits(page.intake);
        admitted.map_err(|refused| refused.during(operation))?;
        let goes_on = |at: &UnitName| page.after.as_ref() == Some(at);
        let snapshot = match resume(&self.passes.adopt, &record, goes_on) {
            Some(snapshot) => snapshot,
            None => Snapshot::read(self).await?,
        };
        self.prune(page, record.role(), &snapshot).await?;
        let adopted = self.take(page, &snapshot).await?;
        let last = page.units.last().map(TrustUnit::name);
        let last = last.filter(|_| page.more);
        let mut entries = object.data.clone().unwrap_or_default();
        entries.remove(PROGRESS);
        if let Some(unit) = last.clone() {
            let epoch = page.intake.epoch();
            let text = serde_json::to_string(&Progress { epoch, unit });
            let failed = |error| PortError::new(PortErrorKind::Internal, operation).because(error);
            entries.insert(PROGRESS.to_owned(), text.map_err(failed)?);
        }
        // The version of the object that was read first: nobody began another pass in the meantime.
        if !self.replace_authority(&object, entries, None).await? {
            let why = "adopt what another anchor has: the record of authority changed meanwhile";
            return Err(PortError::new(PortErrorKind::Conflict, why));
        }
        if let Some(last) = last {
            pause(&self.passes.adopt, record, last, snapshot);
        }
        Ok(adopted)
    }

    async fn progress(&self, epoch: Epoch) -> Result<Option<UnitName>, PortError> {
        let object = self.authority_object().await?;
        let text = object.data.as_ref().and_then(|data| data.get(PROGRESS));
        // If it cannot be read, the pass merely starts over.
        let progress = text.and_then(|text| serde_json::from_str::<Progress>(text).ok());
        Ok(progress.filter(|progress| progress.epoch == epoch).map(|progress| progress.unit))
    }

    /// What an API server deletes may remain in its etcd until the next compaction, and in backups.
    async fn shred(&self, line: &AuditEvent) -> Result<u64, PortError> {
        let object = self.authority_object().await?;
        let role = self.authority_of(&object).await?.role();
        if role != Role::Forward {
            let why = format!("shred the keys of an anchor that is {role}");
            return Err(PortError::new(PortErrorKind::Conflict, why));
        }
        let entries = object.data.clone().unwrap_or_default();
        if !self.replace_authority(&object, entries, Some(line)).await? {
            let why = "shred the keys: the record of authority changed meanwhile";
            return Err(PortError::new(PortErrorKind::Conflict, why));
        }
        self.tell(line).await;
        let paths = Snapshot::read(self).await?.paths();
        let count = u64::try_from(paths.len()).unwrap_or(u64::MAX);
        self.shred_secrets(paths).await?;
        Ok(count)
    }
}

impl KubeRegistry {
    /// Number of machines that wait for their keys to reach every Trustee; counts only machines with a bound
    /// key that are not revoked.
    pub async fn unpublished(&self) -> Result<u64, PortError> {
        let waits = |machine: &&Machine| {
            let conditions = machine.status.iter().flat_map(|status| &status.conditions);
            let said = conditions.filter(|condition| condition.status == "True");
            let published = ConditionKind::KeyPublished.as_str();
            machine.state() == MachineState::Active
                && !said.map(|condition| &condition.type_).any(|kind| kind == published)
        };
        let machines = self.machine_objects(None).await?;
        let count = machines.iter().filter(waits).count();
        Ok(u64::try_from(count).unwrap_or(u64::MAX))
    }
}
