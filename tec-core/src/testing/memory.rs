//! Registries, secrets, audit log and attempt log in memory, over one state.

mod platform;
mod rotation;
mod trust;

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use parking_lot::Mutex;
use uuid::Uuid;

use crate::ak::{
    AkRecord, AkState, ApprovedAk, ClockReading, Fingerprint, SourceNetwork, may_wait,
};
use crate::attest::Attempt;
use crate::id::{AttemptId, ImageName, MachineId, ResourcePath};
use crate::image::ApprovedImage;
use crate::machine::{LastBinding, Machine, MachineChange, MachineState, RegisteredBy};
use crate::migrate::{AnchorId, Authority, Deed, Epoch, UnitName};
use crate::platform::Firmware;
use crate::port::{
    AkRegistry, AttemptLog, AuditEvent, AuditSink, BindOutcome, Claims, ClockLog, ClockOutcome,
    CreateOutcome, ImageRegistry, MachineRegistry, PlatformRecord, PortError, PortErrorKind,
    PutOutcome, SecretStore, UnclaimedLimit,
};
use crate::secret::SecretBytes;
use crate::time::Timestamp;

/// Attempts kept per machine; the contract of [`AttemptLog`] asks for 16.
const ATTEMPTS_PER_MACHINE: usize = 32;
/// Attempts kept for unknown machines.
const ATTEMPTS_WITHOUT_MACHINE: usize = 1000;

#[derive(Debug, Default)]
struct State {
    machines: BTreeMap<MachineId, Machine>,
    aks: BTreeMap<Fingerprint, AkRecord>,
    images: BTreeMap<ImageName, ApprovedImage>,
    secrets: BTreeMap<ResourcePath, SecretBytes>,
    events: Vec<AuditEvent>,
    attempts: Vec<Attempt>,
    clocks: BTreeMap<Fingerprint, (MachineId, ClockReading)>,
    platforms: BTreeMap<Fingerprint, PlatformRecord>,
    /// Approved changes: from a baseline to what was seen.
    approvals: Vec<(Firmware, Firmware)>,
    authority: Option<Authority>,
    adopted: BTreeSet<UnitName>,
    progress: Option<(Epoch, UnitName)>,
}

impl State {
    fn authority(&self) -> Authority {
        self.authority.unwrap_or_else(|| Authority::founded(AnchorId::from(Uuid::nil())))
    }

    fn permit(&self, deed: Deed, operation: impl Into<String>) -> Result<(), PortError> {
        let permitted = self.authority().permit(deed);
        permitted.map_err(|refused| refused.during(operation))
    }

    fn is_live(&self, machine: &MachineId) -> bool {
        self.machines.get(machine).is_some_and(|machine| machine.state.takes_keys())
    }

    fn unclaimed(&self) -> usize {
        self.machines.values().filter(|machine| machine.state == MachineState::Unclaimed).count()
    }

    fn bound_to(&self, machine: &MachineId) -> Option<&AkRecord> {
        self.aks.values().find(|ak| ak.machine == *machine && ak.state == AkState::Bound)
    }

    fn remove_machine(&mut self, id: &MachineId) {
        self.machines.remove(id);
        self.aks.retain(|_, ak| ak.machine != *id);
        self.attempts.retain(|attempt| attempt.machine != Some(*id));
        self.clocks.retain(|_, (machine, _)| machine != id);
        self.platforms.retain(|_, record| record.machine != *id);
    }
}

/// Every registry, the secrets, the audit log and the attempt log over one state in memory.
///
/// Behaves like the embedded store, without durability. Several of its traits have methods with the
/// same name: call them through `&dyn MachineRegistry` and so on, or as
/// `MachineRegistry::find(&registry, …)`.
#[derive(Debug, Default)]
pub struct MemoryRegistry(Mutex<State>);

impl MemoryRegistry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty registry, as the anchor with this number.
    pub fn anchor(number: u128) -> Self {
        let anchor = AnchorId::from(Uuid::from_u128(number));
        let registry = Self::default();
        registry.0.lock().authority = Some(Authority::founded(anchor));
        registry
    }

    /// All audit events in order.
    pub fn events(&self) -> Vec<AuditEvent> {
        self.0.lock().events.clone()
    }

    /// Paths of all secrets, in order.
    pub fn secret_paths(&self) -> Vec<ResourcePath> {
        self.0.lock().secrets.keys().cloned().collect()
    }
}

#[async_trait]
impl MachineRegistry for MemoryRegistry {
    async fn create(
        &self,
        machine: &Machine,
        limit: UnclaimedLimit,
    ) -> Result<CreateOutcome, PortError> {
        let mut state = self.0.lock();
        if state.machines.contains_key(&machine.id) {
            return Ok(CreateOutcome::Existed);
        }
        state.permit(Deed::Admit, format!("register machine {}", machine.id))?;
        if let UnclaimedLimit::AtMost(most) = limit
            && machine.state == MachineState::Unclaimed
            && u64::try_from(state.unclaimed()).unwrap_or(u64::MAX) >= most
        {
            let why = format!("register machine {}: {most} wait unclaimed", machine.id);
            return Err(PortError::new(PortErrorKind::Denied, why));
        }
        state.machines.insert(machine.id, machine.clone());
        Ok(CreateOutcome::Created)
    }

    async fn find(&self, id: &MachineId) -> Result<Option<Machine>, PortError> {
        Ok(self.0.lock().machines.get(id).cloned())
    }

    async fn list(
        &self,
        after: Option<MachineId>,
        limit: usize,
    ) -> Result<Vec<Machine>, PortError> {
        let state = self.0.lock();
        let machines = state.machines.values();
        Ok(machines
            .filter(|machine| after.is_none_or(|after| machine.id > after))
            .take(limit)
            .cloned()
            .collect())
    }

    async fn revoke(&self, id: &MachineId, line: &AuditEvent) -> Result<(), PortError> {
        let mut state = self.0.lock();
        state.permit(Deed::ShutOut, format!("revoke machine {id}"))?;
        let machine = state.machines.get_mut(id).ok_or_else(|| {
            PortError::new(PortErrorKind::NotFound, format!("revoke machine {id}"))
        })?;
        machine.state = MachineState::Revoked;
        state.events.push(line.clone());
        Ok(())
    }

    async fn change(
        &self,
        id: &MachineId,
        change: MachineChange,
        line: &AuditEvent,
    ) -> Result<(), PortError> {
        let mut state = self.0.lock();
        let refused = |kind| PortError::new(kind, format!("change the state of machine {id}"));
        state.permit(Deed::of(change), format!("change the state of machine {id}"))?;
        let machine = state.machines.get_mut(id).ok_or_else(|| refused(PortErrorKind::NotFound))?;
        let after = machine.state_after(change);
        machine.state = after.ok_or_else(|| refused(PortErrorKind::Conflict))?;
        state.events.push(line.clone());
        Ok(())
    }

    async fn remove(&self, id: &MachineId) -> Result<(), PortError> {
        let mut state = self.0.lock();
        state.permit(Deed::Remove, format!("remove machine {id}"))?;
        state.remove_machine(id);
        Ok(())
    }

    async fn expire_unclaimed(&self, before: Timestamp) -> Result<u64, PortError> {
        let mut state = self.0.lock();
        if state.authority().permit(Deed::Remove).is_err() {
            return Ok(0);
        }
        let expired: Vec<_> = state
            .machines
            .values()
            .filter(|machine| {
                machine.state == MachineState::Unclaimed
                    && machine.registered_by == RegisteredBy::FirstBoot
                    && machine.registered_at < before
            })
            .map(|machine| machine.id)
            .collect();
        for id in &expired {
            state.remove_machine(id);
        }
        Ok(u64::try_from(expired.len()).unwrap_or(u64::MAX))
    }
}

#[async_trait]
impl AkRegistry for MemoryRegistry {
    async fn submit(
        &self,
        record: &AkRecord,
        line: &AuditEvent,
    ) -> Result<CreateOutcome, PortError> {
        let mut state = self.0.lock();
        let key = record.fingerprint();
        if state.aks.contains_key(&key) {
            return Ok(CreateOutcome::Existed);
        }
        let refused = |kind| PortError::new(kind, format!("keep key {key} until it is approved"));
        state.permit(Deed::Admit, format!("keep key {key} until it is approved"))?;
        if !state.is_live(&record.machine) {
            return Err(refused(PortErrorKind::NotFound));
        }
        if !may_wait(record, state.aks.values()) {
            return Err(refused(PortErrorKind::Denied));
        }
        let waiting = AkRecord { state: AkState::Pending, ..record.clone() };
        state.aks.insert(key, waiting);
        state.events.push(line.clone());
        Ok(CreateOutcome::Created)
    }

    async fn bind(&self, ak: &ApprovedAk, line: &AuditEvent) -> Result<BindOutcome, PortError> {
        let mut state = self.0.lock();
        let mut record = ak.record().clone();
        if !state.is_live(&record.machine) {
            return Ok(BindOutcome::NoMachine);
        }
        if let Some(known) = state.aks.get(&record.fingerprint()) {
            if known.machine != record.machine || known.state == AkState::Revoked {
                return Ok(BindOutcome::KeyTaken);
            }
            if known.state == AkState::Bound {
                return Ok(BindOutcome::AlreadyBound);
            }
            record.submitted_at = known.submitted_at;
            record.ek = record.ek.or(known.ek);
        }
        state.permit(Deed::Admit, format!("bind key {}", record.fingerprint()))?;
        if state.bound_to(&record.machine).is_some() {
            return Ok(BindOutcome::MachineTaken);
        }
        if let Some(machine) = state.machines.get_mut(&record.machine) {
            machine.state = MachineState::Active;
            machine.binding = Some(LastBinding::new(record.fingerprint(), record.ek));
        }
        state.aks.insert(record.fingerprint(), record);
        state.events.push(line.clone());
        Ok(BindOutcome::Bound)
    }

    async fn find(&self, key: &Fingerprint) -> Result<Option<AkRecord>, PortError> {
        Ok(self.0.lock().aks.get(key).cloned())
    }

    async fn find_with_machine(
        &self,
        key: &Fingerprint,
    ) -> Result<Option<(AkRecord, Option<Machine>)>, PortError> {
        let state = self.0.lock();
        let found = state.aks.get(key).cloned();
        Ok(found.map(|ak| {
            let machine = state.machines.get(&ak.machine).cloned();
            (ak, machine)
        }))
    }

    async fn bound_to(&self, machine: &MachineId) -> Result<Option<AkRecord>, PortError> {
        Ok(self.0.lock().bound_to(machine).cloned())
    }

    async fn list(&self, machine: Option<MachineId>) -> Result<Vec<AkRecord>, PortError> {
        let state = self.0.lock();
        let aks = state.aks.values();
        Ok(aks.filter(|ak| machine.is_none_or(|machine| ak.machine == machine)).cloned().collect())
    }

    async fn claims(&self, source: &SourceNetwork) -> Result<Claims, PortError> {
        let state = self.0.lock();
        let bound = state.aks.values().filter(|ak| ak.state == AkState::Bound);
        Ok(Claims::of(bound.filter_map(|ak| ak.source), *source))
    }

    async fn revoke(&self, key: &Fingerprint, line: &AuditEvent) -> Result<(), PortError> {
        let mut state = self.0.lock();
        state.permit(Deed::ShutOut, format!("revoke key {key}"))?;
        let ak = state
            .aks
            .get_mut(key)
            .ok_or_else(|| PortError::new(PortErrorKind::NotFound, format!("revoke key {key}")))?;
        ak.state = AkState::Revoked;
        state.events.push(line.clone());
        Ok(())
    }
}

#[async_trait]
impl ImageRegistry for MemoryRegistry {
    async fn put(&self, image: &ApprovedImage) -> Result<(), PortError> {
        let mut state = self.0.lock();
        state.permit(Deed::Admit, format!("store image {}", image.name))?;
        state.images.insert(image.name.clone(), image.clone());
        Ok(())
    }

    async fn find(&self, name: &ImageName) -> Result<Option<ApprovedImage>, PortError> {
        Ok(self.0.lock().images.get(name).cloned())
    }

    async fn list(&self) -> Result<Vec<ApprovedImage>, PortError> {
        Ok(self.0.lock().images.values().cloned().collect())
    }

    async fn revoke(&self, name: &ImageName, line: &AuditEvent) -> Result<(), PortError> {
        let mut state = self.0.lock();
        state.permit(Deed::ShutOut, format!("revoke image {name}"))?;
        let image = state.images.get_mut(name).ok_or_else(|| {
            PortError::new(PortErrorKind::NotFound, format!("revoke image {name}"))
        })?;
        image.revoked_at.get_or_insert(line.at);
        state.events.push(line.clone());
        Ok(())
    }
}

#[async_trait]
impl SecretStore for MemoryRegistry {
    async fn put_new(
        &self,
        path: &ResourcePath,
        secret: &SecretBytes,
        line: &AuditEvent,
    ) -> Result<PutOutcome, PortError> {
        let mut state = self.0.lock();
        if state.secrets.contains_key(path) {
            return Ok(PutOutcome::Existed);
        }
        state.permit(Deed::Admit, format!("store the secret at {path}"))?;
        let copy = secret.duplicate("the store keeps it");
        state.secrets.insert(path.clone(), copy);
        state.events.push(line.clone());
        Ok(PutOutcome::Stored)
    }

    async fn find(&self, path: &ResourcePath) -> Result<Option<SecretBytes>, PortError> {
        let state = self.0.lock();
        state.permit(Deed::Release, format!("read the secret at {path}"))?;
        let secret = state.secrets.get(path);
        Ok(secret.map(|secret| secret.duplicate("the caller gets a copy")))
    }

    async fn exists(&self, path: &ResourcePath) -> Result<bool, PortError> {
        Ok(self.0.lock().secrets.contains_key(path))
    }

    async fn remove(&self, path: &ResourcePath) -> Result<(), PortError> {
        let mut state = self.0.lock();
        state.permit(Deed::Remove, format!("remove the secret at {path}"))?;
        state.secrets.remove(path);
        if let Some(machine) = path.machine() {
            state.secrets.remove(&ResourcePath::luks_pending(&machine));
            state.secrets.remove(&ResourcePath::luks_previous(&machine));
        }
        Ok(())
    }
}

#[async_trait]
impl AuditSink for MemoryRegistry {
    async fn append(&self, event: &AuditEvent) -> Result<(), PortError> {
        self.0.lock().events.push(event.clone());
        Ok(())
    }
}

#[async_trait]
impl ClockLog for MemoryRegistry {
    async fn advance(
        &self,
        key: &Fingerprint,
        machine: MachineId,
        reading: &ClockReading,
    ) -> Result<ClockOutcome, PortError> {
        let mut state = self.0.lock();
        let kept = match state.clocks.get(key) {
            None => {
                let of_machine = state.clocks.values().filter(|(of, _)| *of == machine);
                Ok(reading.after_other_keys(of_machine.map(|(_, reading)| *reading)))
            }
            Some((_, last)) => reading.succeeding(last),
        };
        match kept {
            Ok(kept) => {
                state.clocks.insert(*key, (machine, kept));
                Ok(ClockOutcome::Follows)
            }
            Err(fault) => Ok(ClockOutcome::Refused(fault)),
        }
    }

    async fn last(&self, key: &Fingerprint) -> Result<Option<ClockReading>, PortError> {
        Ok(self.0.lock().clocks.get(key).map(|(_, reading)| *reading))
    }

    async fn forget(&self, machine: &MachineId, line: &AuditEvent) -> Result<(), PortError> {
        let operation = format!("forget the clock of machine {machine}");
        let mut state = self.0.lock();
        state.permit(Deed::Admit, operation.clone())?;
        let known = state.clocks.len();
        state.clocks.retain(|_, (of, _)| of != machine);
        if state.clocks.len() == known {
            return Err(PortError::new(PortErrorKind::NotFound, operation));
        }
        state.events.push(line.clone());
        Ok(())
    }
}

#[async_trait]
impl AttemptLog for MemoryRegistry {
    async fn record(&self, attempt: &Attempt) -> Result<(), PortError> {
        let mut state = self.0.lock();
        let place = |attempt: &Attempt| (attempt.machine, attempt.unsigned);
        let known = state.attempts.iter().position(|old| old.id == attempt.id);
        let last = state.attempts.iter().rposition(|old| place(old) == place(attempt));
        let last =
            last.filter(|at| state.attempts.get(*at).is_some_and(|old| attempt.repeats(old)));
        match (known, last) {
            (Some(at), _) => {
                if let Some(old) = state.attempts.get_mut(at) {
                    *old = attempt.in_place_of(old);
                }
            }
            // A repetition is the latest of all, whenever the first one was.
            (None, Some(at)) => {
                let old = state.attempts.remove(at);
                state.attempts.push(attempt.in_place_of(&old));
            }
            (None, None) => state.attempts.push(attempt.clone()),
        }
        let most = match (attempt.machine, attempt.unsigned) {
            (Some(_), false) => ATTEMPTS_PER_MACHINE,
            (None, false) => ATTEMPTS_WITHOUT_MACHINE,
            (Some(_), true) => ATTEMPTS_PER_MACHINE / 4,
            (None, true) => ATTEMPTS_WITHOUT_MACHINE / 4,
        };
        let same = |old: &Attempt| place(old) == place(attempt);
        let kept = state.attempts.iter().filter(|old| same(old)).count();
        let mut excess = kept.saturating_sub(most);
        state.attempts.retain(|old| {
            let drop = excess > 0 && same(old);
            excess -= usize::from(drop);
            !drop
        });
        Ok(())
    }

    async fn find(&self, id: &AttemptId) -> Result<Option<Attempt>, PortError> {
        let state = self.0.lock();
        Ok(state.attempts.iter().rfind(|old| old.is_known_as(id)).cloned())
    }

    async fn latest(
        &self,
        machine: Option<MachineId>,
        limit: usize,
    ) -> Result<Vec<Attempt>, PortError> {
        let state = self.0.lock();
        let attempts = state.attempts.iter().rev();
        Ok(attempts
            .filter(|old| machine.is_none() || old.machine == machine)
            .take(limit)
            .cloned()
            .collect())
    }
}
