//! Attestation attempts as objects: one small record for each machine, one for everyone else.
//!
//! ```text
//!   record ─┬─ of a machine, signed ─► Pace ─► AttestationRecord attempts-<machine>: get, compare and swap
//!           └─ by anyone ────────────► memory ─ run(), one write in QUIET ─► attempts-unknown
//! ```
//! *What it is*: an [`AttemptLog`] that survives the pod, except for what waits, and is shared by all replicas. A record holds at
//! most [`MOST`] attempts of bounded size and is removed with its machine. Recording takes two requests,
//! however many machines and attempts there are.
//!
//! # Floods
//! Anyone can send evidence that no machine signed. Such attempts wait in memory, at most [`MOST`] with a
//! signature and as many without, and cause one write per [`QUIET`] in total. A machine that attests all the
//! time causes a burst of writes, and then one in [`QUIET`].

mod bounded;
mod pace;
mod strangers;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use kube::api::{ListParams, PostParams};
use kube::{Api, Resource as _, ResourceExt as _};
use parking_lot::Mutex;
use tec_core::attest::Attempt;
use tec_core::digest::Sha256Digest;
use tec_core::id::{AttemptId, MachineId};
use tec_core::port::{AttemptLog, PortError, PortErrorKind, chain};
use tokio::sync::Notify;
use tokio::time::Instant;

use self::bounded::bounded;
use self::pace::{Pace, merged};
use self::strangers::Strangers;
use super::error::{is_conflict, is_not_found, port_error};
use super::pages::each;
use super::{ATTEMPTS, KubeRegistry};
use crate::api::{AttestationRecord, RecordedAttempt};

/// Annotation of a record: the SHA-256 digests of the CAs that the machine's pin trusts, separated by
/// commas.
pub const TRUSTED_AUTHORITIES: &str = "trusted-execution-clusters.io/trusted-authorities";
/// Maximum number of attempts in a record; part of the contract of [`AttemptLog`].
const MOST: usize = 16;
/// Interval between two writes of attempts by strangers, and by a machine that attests all the time.
const QUIET: Duration = Duration::from_secs(10);
/// Records per page of a list.
const PAGE: u32 = 100;

/// An [`AttemptLog`] in the namespace of a registry.
#[derive(Clone, Debug)]
pub struct AttemptRecords {
    registry: KubeRegistry,
    /// These two are never held across an await.
    strangers: Arc<Mutex<Strangers>>,
    pace: Arc<Mutex<Pace>>,
    changed: Arc<Notify>,
}

impl AttemptRecords {
    /// The records in the namespace of `registry`. Attempts of strangers, and those that wait, are written
    /// while [`run`](Self::run) is polled.
    pub fn new(registry: KubeRegistry) -> Self {
        Self { registry, strangers: Arc::default(), pace: Arc::default(), changed: Arc::default() }
    }

    /// Writes attempts of strangers, and those that wait, forever.
    ///
    /// # Cancel safety
    /// What waits, and what was being written, is written when it is polled again.
    pub async fn run(&self) {
        loop {
            let is_new = self.strangers.lock().begin();
            if is_new && let Err(error) = self.write_strangers().await {
                self.strangers.lock().failed();
                let error = chain(&error);
                tracing::warn!(error, "attempts of strangers are not written");
            }
            let due = self.pace.lock().due(Instant::now());
            self.write_waiting(due).await;
            if is_new || !self.pace.lock().is_idle() {
                tokio::time::sleep(QUIET).await;
            } else {
                self.changed.notified().await;
            }
        }
    }

    /// Writes all attempts that wait: before the process ends.
    pub async fn flush(&self) {
        let all = self.pace.lock().all();
        self.write_waiting(all).await;
    }

    async fn write_waiting(&self, machines: Vec<MachineId>) {
        for machine in machines {
            let entries = self.pace.lock().take(&machine);
            let mut held = Held { pace: &self.pace, machine, entries };
            if held.entries.is_empty() {
                continue;
            }
            let lost = match self.write(machine, &held.entries).await {
                Ok(Some(())) => false,
                Ok(None) => true,
                Err(error) => {
                    let chain = chain(&error);
                    tracing::warn!(machine.id = %machine, error = chain, "attempts are not written");
                    if !is_unequipped(&error) {
                        continue;
                    }
                    true
                }
            };
            let attempts = std::mem::take(&mut held.entries);
            let attempts = attempts.iter().rev().filter(|_| lost);
            for attempt in attempts.filter_map(|entry| entry.to_core().ok()) {
                self.strangers.lock().add(&attempt);
            }
        }
    }

    /// Adds attempts to a machine's record: `None` if there is no such machine.
    async fn write(
        &self,
        machine: MachineId,
        entries: &[RecordedAttempt],
    ) -> Result<Option<()>, PortError> {
        let add = |record: &mut AttestationRecord| {
            merged(&mut record.spec.attempts, entries).map_err(unwritable)
        };
        self.change(Some(machine), add).await
    }

    /// The attempts in a record and those that wait for it.
    fn attempts(&self, mut record: AttestationRecord) -> Vec<Attempt> {
        let machine = record.spec.machine.as_deref().and_then(|id| id.parse().ok());
        let waiting = machine.map_or_else(Vec::new, |id| self.pace.lock().waiting(&id).to_vec());
        // What cannot be merged is no attempt.
        let _ = merged(&mut record.spec.attempts, &waiting);
        record.attempts()
    }

    fn records(&self) -> Api<AttestationRecord> {
        self.registry.objects()
    }

    async fn object(
        &self,
        machine: Option<MachineId>,
    ) -> Result<Option<AttestationRecord>, PortError> {
        let found = self.records().get_opt(&AttestationRecord::name_of(machine)).await;
        found.map_err(|error| port_error("read the attempts", error))
    }

    /// Changes a record as a whole, and creates it if it does not exist: `None` if it may not exist.
    async fn change(
        &self,
        machine: Option<MachineId>,
        change: impl Fn(&mut AttestationRecord) -> Result<(), PortError>,
    ) -> Result<Option<()>, PortError> {
        let (name, params) = (AttestationRecord::name_of(machine), PostParams::default());
        let failed = |error| port_error(format!("write {name}"), error);
        for _ in 0..ATTEMPTS {
            let found = self.object(machine).await?;
            let is_new = found.is_none();
            let mut next = match found {
                Some(found) => found,
                None => match self.created(machine).await? {
                    Some(created) => created,
                    None => return Ok(None),
                },
            };
            change(&mut next)?;
            let written = if is_new {
                self.records().create(&params, &next).await
            } else {
                // A compare-and-swap: the object carries the version that was read.
                self.records().replace(&name, &params, &next).await
            };
            match written {
                Ok(_) => return Ok(Some(())),
                Err(error) if is_conflict(&error) => {}
                Err(error) if !is_new && is_not_found(&error) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        let why = format!("write {name}: others were faster each time");
        Err(PortError::new(PortErrorKind::Unavailable, why))
    }

    /// A new record. A machine's record belongs to its object; without the object there is no record, so that
    /// there are never more records than machines.
    async fn created(
        &self,
        machine: Option<MachineId>,
    ) -> Result<Option<AttestationRecord>, PortError> {
        let mut record = AttestationRecord::empty(machine);
        if let Some(id) = machine {
            let Some(owner) = self.registry.machine_object(&id).await? else {
                return Ok(None);
            };
            record.metadata.owner_references = owner.owner_ref(&()).map(|owner| vec![owner]);
        }
        Ok(Some(record))
    }

    /// Records which CAs the pin of an attested machine trusts, replacing its previous report.
    ///
    /// # Errors
    /// The API server's error; `NotFound` if there is no such machine.
    pub async fn trusted_by(
        &self,
        machine: &MachineId,
        authorities: &BTreeSet<Sha256Digest>,
    ) -> Result<(), PortError> {
        let digests: Vec<_> = authorities.iter().map(ToString::to_string).collect();
        let report = digests.join(",");
        let annotate = |record: &mut AttestationRecord| {
            record.annotations_mut().insert(TRUSTED_AUTHORITIES.to_owned(), report.clone());
            Ok(())
        };
        let gone = || PortError::new(PortErrorKind::NotFound, format!("find machine {machine}"));
        self.change(Some(*machine), annotate).await?.ok_or_else(gone)
    }

    async fn write_strangers(&self) -> Result<(), PortError> {
        let merge = |record: &mut AttestationRecord| {
            let all = self.strangers.lock().merged(record.attempts());
            let all: Result<Vec<_>, _> = all.iter().map(|attempt| bounded(attempt, 1)).collect();
            record.spec.attempts = all.map_err(unwritable)?;
            Ok(())
        };
        self.change(None, merge).await.map(drop)
    }

    /// Attempts of strangers that were seen here or written by any replica.
    async fn known_strangers(&self) -> Result<Vec<Attempt>, PortError> {
        let written = self.object(None).await?.map(|record| record.attempts());
        Ok(self.strangers.lock().merged(written.unwrap_or_default()))
    }

    /// The attempts of every machine: lists all records.
    async fn of_all_machines(&self) -> Result<Vec<Attempt>, PortError> {
        let mut all = Vec::new();
        each(self.records(), ListParams::default().limit(PAGE), |record: AttestationRecord| {
            if record.spec.machine.is_some() {
                all.extend(self.attempts(record));
            }
        })
        .await?;
        Ok(all)
    }
}

/// What is being written: it waits again if that fails or is given up.
struct Held<'a> {
    pace: &'a Mutex<Pace>,
    machine: MachineId,
    entries: Vec<RecordedAttempt>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut pace = self.pace.lock();
        pace.failed(self.machine, std::mem::take(&mut self.entries));
    }
}

/// The digests in [`TRUSTED_AUTHORITIES`]; invalid ones are left out.
pub fn read_authorities(report: &str) -> BTreeSet<Sha256Digest> {
    report.split(',').filter_map(|digest| digest.parse().ok()).collect()
}

fn is_unequipped(error: &PortError) -> bool {
    matches!(error.kind(), PortErrorKind::NotFound | PortErrorKind::Denied)
}

fn unwritable(error: crate::api::ConvertError) -> PortError {
    PortError::new(PortErrorKind::Internal, "write an attempt").because(error)
}

#[async_trait]
impl AttemptLog for AttemptRecords {
    async fn record(&self, attempt: &Attempt) -> Result<(), PortError> {
        self.strangers.lock().forget(&attempt.id);
        if let Some(id) = attempt.machine.filter(|_| !attempt.unsigned) {
            let (before, due) = {
                let mut pace = self.pace.lock();
                let before = pace.waiting(&id).to_vec();
                (before, pace.add(id, attempt, Instant::now()).map_err(unwritable)?)
            };
            self.changed.notify_one();
            let Some(entries) = due else {
                return Ok(());
            };
            let written = self.write(id, &entries).await;
            if written.as_ref().is_err_and(|error| !is_unequipped(error)) {
                // All but this one, of which the caller learns that it was not recorded.
                self.pace.lock().failed(id, before);
            }
            match written {
                Ok(Some(())) => return Ok(()),
                Ok(None) => {}
                // Definitions or permissions are those of an older release. No boot is refused because it
                // could not be explained later.
                Err(error) if is_unequipped(&error) => {
                    let error = chain(&error);
                    tracing::warn!(machine.id = %id, error, "an attempt is not written");
                }
                Err(error) => return Err(error),
            }
        }
        self.strangers.lock().add(attempt);
        self.changed.notify_one();
        Ok(())
    }

    /// Attempts seen here are found in memory; others need a list of all records.
    async fn find(&self, id: &AttemptId) -> Result<Option<Attempt>, PortError> {
        if let Some(found) = self.strangers.lock().find(id) {
            return Ok(Some(found));
        }
        let waits_for = self.pace.lock().machine_of(id);
        let mut all = match waits_for {
            Some(_) => self.latest(waits_for, usize::MAX).await?,
            None => self.of_all_machines().await?,
        };
        all.extend(self.known_strangers().await?);
        Ok(all.into_iter().find(|attempt| attempt.is_known_as(id)))
    }

    /// Lists all records if no machine is given.
    async fn latest(
        &self,
        machine: Option<MachineId>,
        limit: usize,
    ) -> Result<Vec<Attempt>, PortError> {
        let mut all = match machine {
            Some(_) => self.object(machine).await?.map(|record| self.attempts(record)),
            None => Some(self.of_all_machines().await?),
        }
        .unwrap_or_default();
        let strangers = self.known_strangers().await?;
        let is_asked = |attempt: &Attempt| machine.is_none() || attempt.machine == machine;
        all.extend(strangers.into_iter().filter(is_asked));
        // Stable: attempts in the same second stay in the order of their record.
        all.sort_by_key(|attempt| std::cmp::Reverse(attempt.at));
        all.truncate(limit);
        Ok(all)
    }
}
