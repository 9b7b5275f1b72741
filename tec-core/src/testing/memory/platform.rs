//! Platforms in memory.

use async_trait::async_trait;

use super::{MemoryRegistry, State};
use crate::ak::Fingerprint;
use crate::id::MachineId;
use crate::migrate::Deed;
use crate::platform::{Firmware, Platform};
use crate::port::{
    AuditEvent, PlatformEntry, PlatformLog, PlatformOutcome, PlatformRecord, PortError,
    PortErrorKind,
};
use crate::time::Timestamp;

impl State {
    fn platform(&self, key: &Fingerprint) -> Option<PlatformRecord> {
        let mut record = self.platforms.get(key)?.clone();
        let from = &record.baseline.firmware;
        let approved = self.approvals.iter().filter(|(before, _)| before == from);
        record.approved = approved.map(|(_, after)| after.clone()).collect();
        Some(record)
    }
}

#[async_trait]
impl PlatformLog for MemoryRegistry {
    async fn admit(
        &self,
        key: &Fingerprint,
        machine: MachineId,
        seen: &Platform,
        at: Timestamp,
    ) -> Result<PlatformOutcome, PortError> {
        let mut state = self.0.lock();
        let mut of_machine = state.platforms.iter().filter(|(_, one)| one.machine == machine);
        let last = of_machine.next().map_or(*key, |(last, _)| *last);
        let known = state.platform(key).or_else(|| state.platform(&last));
        let (record, outcome) = match known {
            None => (PlatformRecord::first(machine, seen), PlatformOutcome::Recorded),
            Some(record) => record.after(seen, at),
        };
        state.platforms.retain(|_, one| one.machine != machine);
        state.platforms.insert(*key, record);
        let State { platforms, approvals, .. } = &mut *state;
        let is_used = |from: &Firmware| platforms.values().any(|r| r.baseline.firmware == *from);
        approvals.retain(|(from, _)| is_used(from));
        Ok(outcome)
    }

    async fn find(&self, key: &Fingerprint) -> Result<Option<PlatformRecord>, PortError> {
        Ok(self.0.lock().platform(key))
    }

    async fn list(&self) -> Result<Vec<PlatformEntry>, PortError> {
        let id = |firmware: &Firmware| {
            let failed = |_| PortError::new(PortErrorKind::Internal, "list platforms");
            firmware.id().map_err(failed)
        };
        let state = self.0.lock();
        let entry = |(key, record): (&Fingerprint, &PlatformRecord)| {
            let (baseline, seen) = (id(&record.baseline.firmware)?, id(&record.seen.firmware)?);
            Ok(PlatformEntry::new((record.machine, *key), baseline, seen, record.refused_at))
        };
        let mut entries: Vec<_> =
            state.platforms.iter().map(entry).collect::<Result<_, PortError>>()?;
        entries.sort_by_key(|entry| (entry.machine, entry.key));
        Ok(entries)
    }

    async fn approve(
        &self,
        key: &Fingerprint,
        seen: &Platform,
        line: &AuditEvent,
    ) -> Result<Vec<MachineId>, PortError> {
        let refused = |kind| PortError::new(kind, format!("approve the platform of key {key}"));
        let mut state = self.0.lock();
        state.permit(Deed::Admit, format!("approve the platform of key {key}"))?;
        let record = state.platform(key).ok_or_else(|| refused(PortErrorKind::NotFound))?;
        let record = record.approved(seen).ok_or_else(|| refused(PortErrorKind::Conflict))?;
        let mut machines = vec![record.machine];
        if record.has_other_firmware() {
            let from = &record.baseline.firmware;
            let sharing = state.platforms.values().filter(|one| one.baseline.firmware == *from);
            machines = sharing.map(|one| one.machine).collect();
            machines.sort();
            machines.dedup();
            state.approvals.push((from.clone(), seen.firmware.clone()));
        }
        state.platforms.insert(*key, record);
        let keys: Vec<_> = state.platforms.keys().copied().collect();
        for key in keys {
            if let Some(record) = state.platform(&key) {
                state.platforms.insert(key, record.settled());
            }
        }
        state.events.push(line.clone());
        Ok(machines)
    }
}
