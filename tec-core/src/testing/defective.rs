//! Stores with one defect each, and the suites that catch them: a suite that misses a defect proves nothing
//! to the author of a store.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use async_trait::async_trait;

use super::{MemoryRegistry, block_on};
use crate::ak::{AkRecord, AkState, ApprovedAk, Fingerprint, SourceNetwork};
use crate::id::{ImageName, MachineId, ResourcePath};
use crate::image::ApprovedImage;
use crate::machine::{Machine, MachineChange, MachineState};
use crate::migrate::{
    AdoptPage, Adopted, Authority, Epoch, SwapOutcome, Transition, TrustAnchor, TrustUnit, UnitName,
};
use crate::port::{
    AkRegistry, AuditEvent, BindOutcome, Claims, CreateOutcome, ImageRegistry, MachineRegistry,
    PortError, PortErrorKind, PutOutcome, SecretStore, UnclaimedLimit,
};
use crate::secret::SecretBytes;
use crate::time::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    ListIgnoresAfter,
    ListBackwards,
    ListIgnoresLimit,
    CreateOverwrites,
    CreateIgnoresLimit,
    CreateAlwaysCreates,
    RevokeForgets,
    QuarantineForgets,
    RevokeOfUnknown,
    RemoveOnce,
    RemoveNothing,
    ExpireNothing,
    SubmitBinds,
    SubmitWithoutEnd,
    BindReplaces,
    BindWithoutMachine,
    BoundToNobody,
    MachineOfYesterday,
    AkRevokeForgets,
    AkListIgnoresMachine,
    ClaimsNothing,
    ImageStays,
    ImageRevokeForgets,
    PutOverwrites,
    PutForgets,
    SecretStays,
    LineOfNothing,
    ExportIgnoresAfter,
}

/// The suite that must catch it.
#[derive(Clone, Copy, Debug)]
enum Suite {
    Machines,
    Keys,
    Images,
    Secrets,
    Audited,
    Anchor,
}

use self::Suite::{Anchor, Audited, Images, Keys, Machines, Secrets};

const TABLE: [(Defect, Suite); 28] = [
    (Defect::ListIgnoresAfter, Machines),
    (Defect::ListBackwards, Machines),
    (Defect::ListIgnoresLimit, Machines),
    (Defect::CreateOverwrites, Machines),
    (Defect::CreateIgnoresLimit, Machines),
    (Defect::CreateAlwaysCreates, Machines),
    (Defect::RevokeForgets, Machines),
    (Defect::QuarantineForgets, Machines),
    (Defect::RevokeOfUnknown, Machines),
    (Defect::RemoveOnce, Machines),
    (Defect::RemoveNothing, Keys),
    (Defect::ExpireNothing, Machines),
    (Defect::SubmitBinds, Keys),
    (Defect::SubmitWithoutEnd, Keys),
    (Defect::BindReplaces, Keys),
    (Defect::BindWithoutMachine, Keys),
    (Defect::BoundToNobody, Keys),
    (Defect::MachineOfYesterday, Keys),
    (Defect::AkRevokeForgets, Keys),
    (Defect::AkListIgnoresMachine, Keys),
    (Defect::ClaimsNothing, Keys),
    (Defect::ImageStays, Images),
    (Defect::ImageRevokeForgets, Images),
    (Defect::PutOverwrites, Secrets),
    (Defect::PutForgets, Secrets),
    (Defect::SecretStays, Secrets),
    (Defect::LineOfNothing, Audited),
    (Defect::ExportIgnoresAfter, Anchor),
];

#[derive(Debug)]
struct Defective {
    inner: MemoryRegistry,
    defect: Option<Defect>,
}

impl Defective {
    fn is(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    async fn machine(&self, id: &MachineId) -> Option<Machine> {
        MachineRegistry::find(&self.inner, id).await.ok()?
    }
}

#[async_trait]
impl MachineRegistry for Defective {
    async fn create(
        &self,
        machine: &Machine,
        limit: UnclaimedLimit,
    ) -> Result<CreateOutcome, PortError> {
        if self.is(Defect::CreateOverwrites) {
            MachineRegistry::remove(&self.inner, &machine.id).await?;
        }
        let limit = match self.defect {
            Some(Defect::CreateIgnoresLimit) => UnclaimedLimit::Unlimited,
            _ => limit,
        };
        let outcome = self.inner.create(machine, limit).await?;
        Ok(match self.defect {
            Some(Defect::CreateAlwaysCreates) => CreateOutcome::Created,
            _ => outcome,
        })
    }

    async fn find(&self, id: &MachineId) -> Result<Option<Machine>, PortError> {
        MachineRegistry::find(&self.inner, id).await
    }

    async fn list(
        &self,
        after: Option<MachineId>,
        limit: usize,
    ) -> Result<Vec<Machine>, PortError> {
        let (after, limit) = match self.defect {
            Some(Defect::ListIgnoresAfter) => (None, limit),
            Some(Defect::ListIgnoresLimit) => (after, usize::MAX),
            _ => (after, limit),
        };
        let mut page = MachineRegistry::list(&self.inner, after, limit).await?;
        if self.is(Defect::ListBackwards) {
            page.reverse();
        }
        Ok(page)
    }

    async fn revoke(&self, id: &MachineId, line: &AuditEvent) -> Result<(), PortError> {
        match self.defect {
            Some(Defect::RevokeForgets) if self.machine(id).await.is_some() => Ok(()),
            Some(Defect::RevokeOfUnknown) if self.machine(id).await.is_none() => Ok(()),
            _ => MachineRegistry::revoke(&self.inner, id, line).await,
        }
    }

    async fn change(
        &self,
        id: &MachineId,
        change: MachineChange,
        line: &AuditEvent,
    ) -> Result<(), PortError> {
        match (self.defect, change) {
            (Some(Defect::QuarantineForgets), MachineChange::Quarantine)
                if self.machine(id).await.is_some() =>
            {
                Ok(())
            }
            _ => self.inner.change(id, change, line).await,
        }
    }

    async fn remove(&self, id: &MachineId) -> Result<(), PortError> {
        match self.defect {
            Some(Defect::RemoveNothing) => Ok(()),
            Some(Defect::RemoveOnce) if self.machine(id).await.is_none() => {
                Err(PortError::new(PortErrorKind::NotFound, "remove"))
            }
            _ => MachineRegistry::remove(&self.inner, id).await,
        }
    }

    async fn expire_unclaimed(&self, before: Timestamp) -> Result<u64, PortError> {
        match self.defect {
            Some(Defect::ExpireNothing) => Ok(0),
            _ => self.inner.expire_unclaimed(before).await,
        }
    }
}

#[async_trait]
impl AkRegistry for Defective {
    async fn submit(
        &self,
        record: &AkRecord,
        line: &AuditEvent,
    ) -> Result<CreateOutcome, PortError> {
        if self.is(Defect::SubmitBinds) && record.state == AkState::Bound {
            let ak = ApprovedAk::dangerous_assume_approved(record.clone());
            self.inner.bind(&ak, line).await?;
            return Ok(CreateOutcome::Created);
        }
        let outcome = self.inner.submit(record, line).await;
        match self.defect {
            Some(Defect::SubmitWithoutEnd) => Ok(outcome.unwrap_or(CreateOutcome::Created)),
            _ => outcome,
        }
    }

    async fn bind(&self, ak: &ApprovedAk, line: &AuditEvent) -> Result<BindOutcome, PortError> {
        let outcome = self.inner.bind(ak, line).await?;
        match (self.defect, outcome) {
            (Some(Defect::BindReplaces), BindOutcome::MachineTaken) => {
                let before = self.inner.bound_to(&ak.record().machine).await?;
                if let Some(record) = before {
                    AkRegistry::revoke(&self.inner, &record.fingerprint(), line).await?;
                }
                self.inner.bind(ak, line).await
            }
            (Some(Defect::BindWithoutMachine), BindOutcome::NoMachine) => Ok(BindOutcome::Bound),
            (_, outcome) => Ok(outcome),
        }
    }

    async fn find(&self, key: &Fingerprint) -> Result<Option<AkRecord>, PortError> {
        AkRegistry::find(&self.inner, key).await
    }

    async fn find_with_machine(
        &self,
        key: &Fingerprint,
    ) -> Result<Option<(AkRecord, Option<Machine>)>, PortError> {
        let found = self.inner.find_with_machine(key).await?;
        if !self.is(Defect::MachineOfYesterday) {
            return Ok(found);
        }
        Ok(found.map(|(ak, machine)| {
            let before = machine.map(|machine| Machine { state: MachineState::Active, ..machine });
            (ak, before)
        }))
    }

    async fn bound_to(&self, machine: &MachineId) -> Result<Option<AkRecord>, PortError> {
        match self.defect {
            Some(Defect::BoundToNobody) => Ok(None),
            _ => self.inner.bound_to(machine).await,
        }
    }

    async fn list(&self, machine: Option<MachineId>) -> Result<Vec<AkRecord>, PortError> {
        let machine = machine.filter(|_| !self.is(Defect::AkListIgnoresMachine));
        AkRegistry::list(&self.inner, machine).await
    }

    async fn claims(&self, source: &SourceNetwork) -> Result<Claims, PortError> {
        match self.defect {
            Some(Defect::ClaimsNothing) => Ok(Claims::default()),
            _ => self.inner.claims(source).await,
        }
    }

    async fn revoke(&self, key: &Fingerprint, line: &AuditEvent) -> Result<(), PortError> {
        let known = AkRegistry::find(&self.inner, key).await?.is_some();
        match self.defect {
            Some(Defect::AkRevokeForgets) if known => Ok(()),
            _ => AkRegistry::revoke(&self.inner, key, line).await,
        }
    }
}

#[async_trait]
impl ImageRegistry for Defective {
    async fn put(&self, image: &ApprovedImage) -> Result<(), PortError> {
        let known = ImageRegistry::find(&self.inner, &image.name).await?;
        match self.defect {
            Some(Defect::ImageStays) if known.is_some() => Ok(()),
            _ => self.inner.put(image).await,
        }
    }

    async fn find(&self, name: &ImageName) -> Result<Option<ApprovedImage>, PortError> {
        ImageRegistry::find(&self.inner, name).await
    }

    async fn list(&self) -> Result<Vec<ApprovedImage>, PortError> {
        ImageRegistry::list(&self.inner).await
    }

    async fn revoke(&self, name: &ImageName, line: &AuditEvent) -> Result<(), PortError> {
        let known = ImageRegistry::find(&self.inner, name).await?.is_some();
        match self.defect {
            Some(Defect::ImageRevokeForgets) if known => Ok(()),
            _ => ImageRegistry::revoke(&self.inner, name, line).await,
        }
    }
}

#[async_trait]
impl SecretStore for Defective {
    async fn put_new(
        &self,
        path: &ResourcePath,
        secret: &SecretBytes,
        line: &AuditEvent,
    ) -> Result<PutOutcome, PortError> {
        match self.defect {
            Some(Defect::PutOverwrites) => {
                let existed = self.inner.exists(path).await?;
                SecretStore::remove(&self.inner, path).await?;
                let stored = self.inner.put_new(path, secret, line).await?;
                Ok(if existed { PutOutcome::Existed } else { stored })
            }
            Some(Defect::PutForgets) => Ok(PutOutcome::Stored),
            Some(Defect::LineOfNothing) => {
                let outcome = self.inner.put_new(path, secret, line).await?;
                if outcome == PutOutcome::Existed {
                    crate::port::AuditSink::append(&self.inner, line).await?;
                }
                Ok(outcome)
            }
            _ => self.inner.put_new(path, secret, line).await,
        }
    }

    async fn find(&self, path: &ResourcePath) -> Result<Option<SecretBytes>, PortError> {
        SecretStore::find(&self.inner, path).await
    }

    async fn exists(&self, path: &ResourcePath) -> Result<bool, PortError> {
        self.inner.exists(path).await
    }

    async fn remove(&self, path: &ResourcePath) -> Result<(), PortError> {
        match self.defect {
            Some(Defect::SecretStays) => Ok(()),
            _ => SecretStore::remove(&self.inner, path).await,
        }
    }
}

#[async_trait]
impl TrustAnchor for Defective {
    async fn authority(&self) -> Result<Authority, PortError> {
        self.inner.authority().await
    }

    async fn swap(&self, change: &Transition, line: &AuditEvent) -> Result<SwapOutcome, PortError> {
        self.inner.swap(change, line).await
    }

    async fn export(
        &self,
        after: Option<&UnitName>,
        limit: usize,
    ) -> Result<Vec<TrustUnit>, PortError> {
        let after = after.filter(|_| !self.is(Defect::ExportIgnoresAfter));
        self.inner.export(after, limit).await
    }

    async fn weigh(&self, units: &[TrustUnit]) -> Result<Vec<Adopted>, PortError> {
        self.inner.weigh(units).await
    }

    async fn adopt(&self, page: &AdoptPage) -> Result<Vec<Adopted>, PortError> {
        self.inner.adopt(page).await
    }

    async fn progress(&self, epoch: Epoch) -> Result<Option<UnitName>, PortError> {
        self.inner.progress(epoch).await
    }

    async fn shred(&self, line: &AuditEvent) -> Result<u64, PortError> {
        self.inner.shred(line).await
    }
}

/// Whether the suite passes.
fn passes(defect: Option<Defect>, suite: Suite) -> bool {
    let number = Cell::new(0);
    let make = async || {
        number.set(number.get() + 1);
        let inner = MemoryRegistry::anchor(number.get());
        Defective { inner, defect }
    };
    let run = async {
        match suite {
            Machines => super::machine_registry(make).await,
            Keys => super::ak_registry(make).await,
            Images => super::image_registry(make).await,
            Secrets => super::secret_store(make).await,
            Audited => {
                super::audited_changes(make, async |log: &Defective| log.inner.events()).await;
            }
            Anchor => super::trust_anchor(make).await,
        }
    };
    catch_unwind(AssertUnwindSafe(|| block_on(run))).is_ok()
}

#[test]
fn each_defect_of_a_store_is_caught_by_its_suite_and_a_good_store_is_not() {
    let mut missed = Vec::new();
    for (defect, suite) in TABLE {
        assert!(passes(None, suite), "{suite:?}");
        if passes(Some(defect), suite) {
            missed.push(defect);
        }
    }
    assert_eq!(missed, []);
}
