//! Machines and attestation keys in one JSON file: a store of your own behind the ports of tec-core.
//!
//! A change writes a complete new file beside the old one and then replaces the old one, so that a change and
//! its audit line are either both present or both absent. The conformance suites of tec-core check the rules.

use std::collections::BTreeMap;
use std::fs;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tec_core::ak::{AkRecord, AkState, ApprovedAk, Fingerprint, SourceNetwork, may_wait};
use tec_core::id::MachineId;
use tec_core::machine::{LastBinding, Machine, MachineChange, MachineState, RegisteredBy};
use tec_core::port::{
    AkRegistry, AuditEvent, AuditSink, BindOutcome, Claims, CreateOutcome, MachineRegistry,
    PortError, PortErrorKind, UnclaimedLimit,
};
use tec_core::time::Timestamp;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct State {
    machines: BTreeMap<MachineId, Machine>,
    keys: Vec<AkRecord>,
    audit: Vec<AuditEvent>,
}

impl State {
    fn machine(&mut self, id: &MachineId) -> Option<&mut Machine> {
        let machine = self.machines.get_mut(id)?;
        machine.state.takes_keys().then_some(machine)
    }

    fn key(&self, key: &Fingerprint) -> Option<&AkRecord> {
        self.keys.iter().find(|record| record.fingerprint() == *key)
    }

    fn bound_to(&self, machine: &MachineId) -> Option<&AkRecord> {
        let bound = |key: &&AkRecord| key.machine == *machine && key.state == AkState::Bound;
        self.keys.iter().find(bound)
    }

    fn remove(&mut self, id: &MachineId) {
        self.machines.remove(id);
        self.keys.retain(|key| key.machine != *id);
    }
}

/// The store.
#[derive(Debug)]
pub struct FileStore {
    path: PathBuf,
    state: Mutex<State>,
}

impl FileStore {
    /// Opens the store in an existing directory, or creates an empty one there.
    pub fn open(directory: &Path) -> std::io::Result<Self> {
        let path = directory.join("trust.json");
        let state = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => State::default(),
            Err(error) => return Err(error),
        };
        Ok(Self { path, state: Mutex::new(state) })
    }

    /// The audit log, in order.
    pub fn audit(&self) -> Vec<AuditEvent> {
        self.read(|state| state.audit.clone())
    }

    fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes a copy; a change that failed, or could not be written, has no effect.
    fn update<T>(
        &self,
        operation: &str,
        work: impl FnOnce(&mut State) -> Result<T, PortErrorKind>,
    ) -> Result<T, PortError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = state.clone();
        let done = work(&mut next).map_err(|kind| PortError::new(kind, operation))?;
        self.write(&next)
            .map_err(|error| PortError::new(PortErrorKind::Internal, operation).because(error))?;
        *state = next;
        Ok(done)
    }

    fn write(&self, state: &State) -> std::io::Result<()> {
        let new = self.path.with_extension("new");
        let mut file = File::create(&new)?;
        file.write_all(&serde_json::to_vec(state)?)?;
        file.sync_all()?;
        fs::rename(new, &self.path)?;
        // Only then is the name in its directory durable.
        self.path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
    }
}

#[async_trait]
impl MachineRegistry for FileStore {
    async fn create(
        &self,
        machine: &Machine,
        limit: UnclaimedLimit,
    ) -> Result<CreateOutcome, PortError> {
        self.update("register the machine", |state| {
            if state.machines.contains_key(&machine.id) {
                return Ok(CreateOutcome::Existed);
            }
            let waiting = state.machines.values();
            let waiting = waiting.filter(|known| known.state == MachineState::Unclaimed).count();
            if matches!(limit, UnclaimedLimit::AtMost(most) if waiting as u64 >= most) {
                return Err(PortErrorKind::Denied);
            }
            state.machines.insert(machine.id, machine.clone());
            Ok(CreateOutcome::Created)
        })
    }

    async fn find(&self, id: &MachineId) -> Result<Option<Machine>, PortError> {
        Ok(self.read(|state| state.machines.get(id).cloned()))
    }

    async fn list(
        &self,
        after: Option<MachineId>,
        limit: usize,
    ) -> Result<Vec<Machine>, PortError> {
        let follows = |machine: &&Machine| after.is_none_or(|after| machine.id > after);
        Ok(self
            .read(|state| state.machines.values().filter(follows).take(limit).cloned().collect()))
    }

    async fn revoke(&self, id: &MachineId, line: &AuditEvent) -> Result<(), PortError> {
        self.update("revoke the machine", |state| {
            let machine = state.machines.get_mut(id).ok_or(PortErrorKind::NotFound)?;
            machine.state = MachineState::Revoked;
            state.audit.push(line.clone());
            Ok(())
        })
    }

    async fn change(
        &self,
        id: &MachineId,
        change: MachineChange,
        line: &AuditEvent,
    ) -> Result<(), PortError> {
        self.update("change the state of the machine", |state| {
            let machine = state.machines.get_mut(id).ok_or(PortErrorKind::NotFound)?;
            machine.state = machine.state_after(change).ok_or(PortErrorKind::Conflict)?;
            state.audit.push(line.clone());
            Ok(())
        })
    }

    async fn remove(&self, id: &MachineId) -> Result<(), PortError> {
        self.update("remove the machine", |state| {
            state.remove(id);
            Ok(())
        })
    }

    async fn expire_unclaimed(&self, before: Timestamp) -> Result<u64, PortError> {
        self.update("remove machines that never came", |state| {
            let strays = state.machines.values().filter(|machine| {
                machine.state == MachineState::Unclaimed
                    && machine.registered_by == RegisteredBy::FirstBoot
                    && machine.registered_at < before
            });
            let strays: Vec<_> = strays.map(|machine| machine.id).collect();
            strays.iter().for_each(|id| state.remove(id));
            Ok(strays.len() as u64)
        })
    }
}

#[async_trait]
impl AkRegistry for FileStore {
    async fn submit(
        &self,
        record: &AkRecord,
        line: &AuditEvent,
    ) -> Result<CreateOutcome, PortError> {
        self.update("keep the key until it is approved", |state| {
            if state.key(&record.fingerprint()).is_some() {
                return Ok(CreateOutcome::Existed);
            }
            state.machine(&record.machine).ok_or(PortErrorKind::NotFound)?;
            if !may_wait(record, state.keys.iter()) {
                return Err(PortErrorKind::Denied);
            }
            let mut record = record.clone();
            record.state = AkState::Pending;
            state.keys.push(record);
            state.audit.push(line.clone());
            Ok(CreateOutcome::Created)
        })
    }

    async fn bind(&self, ak: &ApprovedAk, line: &AuditEvent) -> Result<BindOutcome, PortError> {
        self.update("bind the key", |state| {
            let mut record = ak.record().clone();
            let key = record.fingerprint();
            if state.machine(&record.machine).is_none() {
                return Ok(BindOutcome::NoMachine);
            }
            match state.key(&key) {
                Some(known) if known.machine != record.machine => return Ok(BindOutcome::KeyTaken),
                Some(known) if known.state == AkState::Revoked => return Ok(BindOutcome::KeyTaken),
                Some(known) if known.state == AkState::Bound => {
                    return Ok(BindOutcome::AlreadyBound);
                }
                Some(waits) => {
                    record.submitted_at = waits.submitted_at;
                    record.ek = record.ek.or(waits.ek);
                }
                None => {}
            }
            if state.bound_to(&record.machine).is_some() {
                return Ok(BindOutcome::MachineTaken);
            }
            if let Some(machine) = state.machine(&record.machine) {
                machine.state = MachineState::Active;
                machine.binding = Some(LastBinding::new(key, record.ek));
            }
            state.keys.retain(|known| known.fingerprint() != key);
            state.keys.push(record);
            state.audit.push(line.clone());
            Ok(BindOutcome::Bound)
        })
    }

    async fn find(&self, key: &Fingerprint) -> Result<Option<AkRecord>, PortError> {
        Ok(self.read(|state| state.key(key).cloned()))
    }

    async fn find_with_machine(
        &self,
        key: &Fingerprint,
    ) -> Result<Option<(AkRecord, Option<Machine>)>, PortError> {
        Ok(self.read(|state| {
            let ak = state.key(key)?.clone();
            let machine = state.machines.get(&ak.machine).cloned();
            Some((ak, machine))
        }))
    }

    async fn bound_to(&self, machine: &MachineId) -> Result<Option<AkRecord>, PortError> {
        Ok(self.read(|state| state.bound_to(machine).cloned()))
    }

    async fn list(&self, machine: Option<MachineId>) -> Result<Vec<AkRecord>, PortError> {
        let wanted = |key: &&AkRecord| machine.is_none_or(|machine| key.machine == machine);
        Ok(self.read(|state| state.keys.iter().filter(wanted).cloned().collect()))
    }

    async fn claims(&self, source: &SourceNetwork) -> Result<Claims, PortError> {
        Ok(self.read(|state| {
            let bound = state.keys.iter().filter(|key| key.state == AkState::Bound);
            Claims::of(bound.filter_map(|key| key.source), *source)
        }))
    }

    async fn revoke(&self, key: &Fingerprint, line: &AuditEvent) -> Result<(), PortError> {
        self.update("revoke the key", |state| {
            let known = state.keys.iter_mut().find(|known| known.fingerprint() == *key);
            known.ok_or(PortErrorKind::NotFound)?.state = AkState::Revoked;
            state.audit.push(line.clone());
            Ok(())
        })
    }
}

#[async_trait]
impl AuditSink for FileStore {
    async fn append(&self, event: &AuditEvent) -> Result<(), PortError> {
        self.update("write the audit log", |state| {
            state.audit.push(event.clone());
            Ok(())
        })
    }
}
