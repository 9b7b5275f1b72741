//! Platforms as objects: one for each key, swapped as a whole, and one for the approved changes of each
//! baseline, which only admins write.
//!
//! ```text
//!   boot ─► PlatformBaseline platform-<key> ── label: baseline ──► PlatformApproval platform-<baseline>
//!            the guard, the key broker                              admins; removed once nobody has the baseline
//! ```
//! What a boot showed of its image is approved in the PlatformBaseline itself: it is this machine's alone.

use std::collections::BTreeSet;

use async_trait::async_trait;
use futures::TryStreamExt as _;
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use kube::{Api, Error, Resource, ResourceExt as _};
use tec_core::ak::Fingerprint;
use tec_core::digest::Sha256Digest;
use tec_core::id::MachineId;
use tec_core::migrate::Deed;
use tec_core::platform::{Firmware, Platform};
use tec_core::port::{
    AuditEvent, PlatformEntry, PlatformLog, PlatformOutcome, PlatformRecord, PortError,
    PortErrorKind,
};
use tec_core::time::Timestamp;

use super::error::{is_conflict, is_not_found, port_error};
use super::pages::{list_all, metadata_pages};
use super::{ATTEMPTS, AUDIT, KubeRegistry, note};
use crate::api::{
    BASELINE, ConvertError, PLATFORM_OF, PlatformApproval, PlatformBaseline, platform_entry,
};

/// Shortest interval between two writes about the same refused boot, in seconds: a refused node asks again
/// and again.
const QUIET: i64 = 60;

#[async_trait]
impl PlatformLog for KubeRegistry {
    /// Two requests for a boot that changes nothing. One that does costs three more at most, unless approved
    /// changes of a baseline are left over.
    async fn admit(
        &self,
        key: &Fingerprint,
        machine: MachineId,
        seen: &Platform,
        at: Timestamp,
    ) -> Result<PlatformOutcome, PortError> {
        let what = || format!("record the platform of key {key}");
        for _ in 0..ATTEMPTS {
            let found = self.platform_object(key).await?;
            let former = if found.is_none() { self.last_platform(machine).await? } else { None };
            let (mut record, outcome) = match found.as_ref().or(former.as_ref()) {
                None => (PlatformRecord::first(machine, seen), PlatformOutcome::Recorded),
                Some(object) => after(self.record_of(object).await?, seen, at),
            };
            record.machine = machine;
            let next = self.next_platform(key, &record, found.as_ref()).await?;
            if found.as_ref().is_some_and(|found| found.spec == next.spec) {
                return Ok(outcome);
            }
            if matches!(outcome, PlatformOutcome::Recorded | PlatformOutcome::Moved) {
                self.end_unused(&id_of(&record.baseline.firmware)?).await?;
            }
            let (platforms, params) = (self.platforms(), PostParams::default());
            let written = match &found {
                None => platforms.create(&params, &next).await,
                // A compare-and-swap: the object carries the version that was read.
                Some(_) => platforms.replace(&PlatformBaseline::name_of(key), &params, &next).await,
            };
            match written {
                Ok(_) => return Ok(outcome),
                // Someone else was faster, or removed it.
                Err(error) if is_conflict(&error) => {}
                Err(error) if found.is_some() && is_not_found(&error) => {}
                Err(error) => return Err(port_error(what(), error)),
            }
        }
        Err(too_busy(&what()))
    }

    async fn find(&self, key: &Fingerprint) -> Result<Option<PlatformRecord>, PortError> {
        match self.platform_object(key).await? {
            Some(object) => self.record_of(&object).await.map(Some),
            None => Ok(None),
        }
    }

    /// Reads the metadata of every object, and every approval.
    async fn list(&self) -> Result<Vec<PlatformEntry>, PortError> {
        let mut entries = Vec::new();
        let mut pages = std::pin::pin!(metadata_pages(self.platforms()));
        while let Some(page) = pages.try_next().await? {
            entries.extend(page.iter().filter_map(|object| platform_entry(&object.metadata)));
        }
        let approved = self.all_approved().await?;
        for entry in &mut entries {
            if entry.refused_at.is_some() && approved.contains(&(entry.baseline, entry.seen)) {
                // It may still be refused for what it showed of its image.
                let record = PlatformLog::find(self, &entry.key).await?;
                entry.refused_at = record.and_then(|record| record.refused_at);
            }
        }
        entries.sort_by_key(|entry| (entry.machine, entry.key));
        Ok(entries)
    }

    async fn approve(
        &self,
        key: &Fingerprint,
        seen: &Platform,
        line: &AuditEvent,
    ) -> Result<Vec<MachineId>, PortError> {
        let what = || format!("approve the platform of key {key}");
        self.permit(Deed::Admit, what).await?;
        for _ in 0..ATTEMPTS {
            let object = self.platform_object(key).await?;
            let object = object.ok_or_else(|| PortError::new(PortErrorKind::NotFound, what()))?;
            let record = self.record_of(&object).await?;
            let boots = record.baseline.boots.clone();
            let record = record.approved(seen);
            let record = record.ok_or_else(|| PortError::new(PortErrorKind::Conflict, what()))?;
            let mut machines = vec![record.machine];
            if record.has_other_firmware() {
                let baseline = id_of(&record.baseline.firmware)?;
                machines = self.sharing(&baseline).await?;
                if !self.approve_firmware(&baseline, seen, line).await? {
                    continue;
                }
            }
            // Afterwards, so that it counts as refused until both are written.
            if record.baseline.boots == boots
                || self.approve_boot(key, &record, &object, line).await?
            {
                self.tell(line).await;
                return Ok(machines);
            }
        }
        Err(too_busy(&what()))
    }
}

impl KubeRegistry {
    fn platforms(&self) -> Api<PlatformBaseline> {
        self.objects()
    }

    fn platform_approvals(&self) -> Api<PlatformApproval> {
        self.objects()
    }

    async fn platform_object(
        &self,
        key: &Fingerprint,
    ) -> Result<Option<PlatformBaseline>, PortError> {
        let found = self.platforms().get_opt(&PlatformBaseline::name_of(key)).await;
        let what = || format!("look up the platform of key {key}");
        found.map_err(|error| unserved::<PlatformBaseline>(what(), error))
    }

    /// The object of the last key that a machine had.
    async fn last_platform(
        &self,
        machine: MachineId,
    ) -> Result<Option<PlatformBaseline>, PortError> {
        let of_machine = ListParams::default().labels(&format!("{PLATFORM_OF}={machine}"));
        let all = list_all(&self.platforms(), of_machine).await?;
        Ok(all.into_iter().max_by_key(PlatformBaseline::creation_timestamp))
    }

    async fn approval(
        &self,
        baseline: &Sha256Digest,
    ) -> Result<Option<PlatformApproval>, PortError> {
        let found = self.platform_approvals().get_opt(&PlatformApproval::name_of(baseline)).await;
        let what = || format!("look up what replaces baseline {baseline}");
        found.map_err(|error| unserved::<PlatformApproval>(what(), error))
    }

    /// What an object records, with the approved changes of its baseline. A boot that was refused and is
    /// approved now does not count as refused.
    async fn record_of(&self, object: &PlatformBaseline) -> Result<PlatformRecord, PortError> {
        let failed = |error| invalid(format!("read {}", object.name_any()), error);
        let mut record = object.to_core().map_err(failed)?;
        if let Some(approval) = self.approval(&id_of(&record.baseline.firmware)?).await? {
            record.approved = approval.approved().map_err(failed)?;
        }
        Ok(record.settled())
    }

    /// Adds a change to those that replace a baseline; `false` if someone else was faster.
    async fn approve_firmware(
        &self,
        baseline: &Sha256Digest,
        seen: &Platform,
        line: &AuditEvent,
    ) -> Result<bool, PortError> {
        let what = || format!("approve what replaces baseline {baseline}");
        let found = self.approval(baseline).await?;
        let is_new = found.is_none();
        let mut next = found.unwrap_or_else(|| PlatformApproval::empty(baseline));
        next.add(&seen.firmware).map_err(|error| invalid(what(), error))?;
        if let Some(text) = note(line) {
            next.annotations_mut().insert(AUDIT.to_owned(), text);
        }
        let (approvals, params) = (self.platform_approvals(), PostParams::default());
        let written = if is_new {
            approvals.create(&params, &next).await
        } else {
            approvals.replace(&next.name_any(), &params, &next).await
        };
        match written {
            Ok(_) => Ok(true),
            Err(error) if is_conflict(&error) => Ok(false),
            Err(error) if !is_new && is_not_found(&error) => Ok(false),
            Err(error) => Err(port_error(what(), error)),
        }
    }

    /// Writes the record with an approved boot of an image; `false` if someone else was faster.
    async fn approve_boot(
        &self,
        key: &Fingerprint,
        record: &PlatformRecord,
        object: &PlatformBaseline,
        line: &AuditEvent,
    ) -> Result<bool, PortError> {
        let mut next = self.next_platform(key, record, Some(object)).await?;
        if let Some(text) = note(line) {
            next.annotations_mut().insert(AUDIT.to_owned(), text);
        }
        let name = PlatformBaseline::name_of(key);
        match self.platforms().replace(&name, &PostParams::default(), &next).await {
            Ok(_) => Ok(true),
            Err(error) if is_conflict(&error) || is_not_found(&error) => Ok(false),
            Err(error) => Err(port_error(format!("approve the platform of key {key}"), error)),
        }
    }

    /// The object as it should be; its machine owns it.
    async fn next_platform(
        &self,
        key: &Fingerprint,
        record: &PlatformRecord,
        found: Option<&PlatformBaseline>,
    ) -> Result<PlatformBaseline, PortError> {
        let what = || format!("record the platform of key {key}");
        let next = PlatformBaseline::from_core(key, record);
        let mut next = next.map_err(|error| invalid(what(), error))?;
        next.metadata.resource_version = found.and_then(PlatformBaseline::resource_version);
        if let Some(same) = found.filter(|found| found.spec.machine == next.spec.machine) {
            next.metadata.owner_references.clone_from(&same.metadata.owner_references);
            return Ok(next);
        }
        let owner = self.machine_object(&record.machine).await?;
        // Without an owner it would outlive the machine.
        let owner = owner.ok_or_else(|| PortError::new(PortErrorKind::NotFound, what()))?;
        next.metadata.owner_references = owner.owner_ref(&()).map(|owner| vec![owner]);
        Ok(next)
    }

    /// The machines with a baseline.
    async fn sharing(&self, baseline: &Sha256Digest) -> Result<Vec<MachineId>, PortError> {
        let entries = PlatformLog::list(self).await?;
        let same = entries.iter().filter(|entry| entry.baseline == *baseline);
        let mut machines: Vec<_> = same.map(|entry| entry.machine).collect();
        machines.dedup();
        Ok(machines)
    }

    /// From which firmware to which, for everything that is approved.
    async fn all_approved(&self) -> Result<BTreeSet<(Sha256Digest, Sha256Digest)>, PortError> {
        let mut all = BTreeSet::new();
        for approval in list_all(&self.platform_approvals(), ListParams::default()).await? {
            let failed = |error| invalid(format!("read {}", approval.name_any()), error);
            let Ok(baseline) = approval.spec.baseline.parse() else { continue };
            for firmware in approval.approved().map_err(failed)? {
                all.insert((baseline, id_of(&firmware)?));
            }
        }
        Ok(all)
    }

    /// Removes the approved changes of a baseline that a machine is about to get, if no machine has it: an
    /// approval ends with the last machine that it was given for.
    async fn end_unused(&self, baseline: &Sha256Digest) -> Result<(), PortError> {
        let Some(approval) = self.approval(baseline).await? else { return Ok(()) };
        let what = || format!("end the approvals of baseline {baseline}");
        let same = format!("{BASELINE}={}", PlatformBaseline::label_of(baseline));
        let one = ListParams::default().labels(&same).limit(1);
        let used = self.platforms().list_metadata(&one).await;
        let used = used.map_err(|error| port_error(what(), error))?;
        if !used.items.is_empty() || used.metadata.continue_.is_some_and(|next| !next.is_empty()) {
            return Ok(());
        }
        let this_one = DeleteParams {
            preconditions: Some(Preconditions {
                resource_version: approval.resource_version(),
                uid: approval.uid(),
            }),
            ..DeleteParams::default()
        };
        match self.platform_approvals().delete(&approval.name_any(), &this_one).await {
            Ok(_) => Ok(()),
            Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(()),
            Err(error) => Err(port_error(what(), error)),
        }
    }
}

/// The record after a boot. The time of a refusal stays if the same boot was refused recently.
fn after(
    known: PlatformRecord,
    seen: &Platform,
    at: Timestamp,
) -> (PlatformRecord, PlatformOutcome) {
    let is_recent = |before: &Timestamp| *before <= at && at < before.plus_seconds(QUIET);
    let before = known.refused_at.filter(is_recent).filter(|_| known.seen == *seen);
    let (mut record, outcome) = known.after(seen, at);
    record.refused_at = record.refused_at.map(|at| before.unwrap_or(at));
    (record, outcome)
}

fn id_of(firmware: &Firmware) -> Result<Sha256Digest, PortError> {
    let failed = |error| PortError::new(PortErrorKind::Internal, "name a firmware").because(error);
    firmware.id().map_err(failed)
}

fn invalid(what: String, error: ConvertError) -> PortError {
    PortError::new(PortErrorKind::Invalid, what).because(error)
}

/// The error of a look-up. An object that is missing is none, so what was not found is its kind.
fn unserved<K: Resource<DynamicType = ()>>(what: String, error: Error) -> PortError {
    let kind = K::kind(&());
    let why = format!("the API server has no kind {kind} (apply the definitions of this release)");
    port_error(if is_not_found(&error) { format!("{what}: {why}") } else { what }, error)
}

fn too_busy(what: &str) -> PortError {
    let why = format!("{what}: others were faster each time");
    PortError::new(PortErrorKind::Unavailable, why)
}
