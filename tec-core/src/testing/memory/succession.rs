//! Successors of attestation keys in memory.

use async_trait::async_trait;

use super::{MemoryRegistry, State};
use crate::ak::{AkRecord, AkState, Fingerprint, PublicKey, Successor};
use crate::id::MachineId;
use crate::machine::{LastBinding, MachineState};
use crate::migrate::Deed;
use crate::port::{
    AkSuccession, AuditEvent, NameOutcome, PortError, PortErrorKind, PromoteOutcome,
};

impl State {
    fn is_bound(&self, key: &Fingerprint) -> bool {
        self.aks.get(key).is_some_and(|ak| ak.state == AkState::Bound)
    }

    fn is_active(&self, machine: &MachineId) -> bool {
        self.machines.get(machine).is_some_and(|one| one.state == MachineState::Active)
    }

    /// A successor counts only while its predecessor is bound.
    pub(super) fn successor(&self, key: &Fingerprint) -> Option<Successor> {
        let mut all = self.successors.iter();
        let (predecessor, public) = all.find(|(predecessor, public)| {
            public.fingerprint() == *key && self.is_bound(predecessor)
        })?;
        Some(Successor { public: public.clone(), predecessor: *predecessor })
    }
}

#[async_trait]
impl AkSuccession for MemoryRegistry {
    async fn name_successor(
        &self,
        bound: &Fingerprint,
        successor: &PublicKey,
        line: &AuditEvent,
    ) -> Result<NameOutcome, PortError> {
        let operation = format!("record the successor of key {bound}");
        let key = successor.fingerprint();
        let mut state = self.state();
        state.permit(Deed::Admit, operation.clone())?;
        if !state.authority().is_alone() {
            return Err(PortError::new(PortErrorKind::Conflict, operation));
        }
        let machine = state.aks.get(bound).map(|ak| ak.machine);
        if !state.is_bound(bound) || !machine.is_some_and(|machine| state.is_active(&machine)) {
            return Ok(NameOutcome::NotBound);
        }
        match state.successor(&key) {
            Some(known) if known.predecessor == *bound => return Ok(NameOutcome::Named),
            None if !state.aks.contains_key(&key) => {}
            _ => return Ok(NameOutcome::KeyTaken),
        }
        state.successors.insert(*bound, successor.clone());
        state.events.push(line.clone());
        Ok(NameOutcome::Named)
    }

    async fn find_successor(&self, key: &Fingerprint) -> Result<Option<Successor>, PortError> {
        Ok(self.state().successor(key))
    }

    async fn promote_successor(
        &self,
        key: &Fingerprint,
        line: &AuditEvent,
    ) -> Result<PromoteOutcome, PortError> {
        let mut state = self.state();
        let Some(Successor { public, predecessor }) = state.successor(key) else {
            let is_bound = state.is_bound(key);
            return Ok(if is_bound { PromoteOutcome::AlreadyBound } else { PromoteOutcome::Lost });
        };
        state.permit(Deed::Admit, format!("bind successor {key}"))?;
        let Some(old) = state.aks.get(&predecessor).cloned() else {
            return Ok(PromoteOutcome::Lost);
        };
        if !state.is_active(&old.machine) {
            return Ok(PromoteOutcome::Lost);
        }
        state.successors.remove(&predecessor);
        if let Some(revoked) = state.aks.get_mut(&predecessor) {
            revoked.state = AkState::Revoked;
        }
        if let Some(machine) = state.machines.get_mut(&old.machine) {
            machine.binding = Some(LastBinding::new(*key, old.ek));
        }
        state.aks.insert(*key, AkRecord { public, ..old });
        if let Some(clock) = state.clocks.remove(&predecessor) {
            state.clocks.insert(*key, clock);
        }
        if let Some(platform) = state.platforms.remove(&predecessor) {
            state.platforms.insert(*key, platform);
        }
        state.events.push(line.clone());
        Ok(PromoteOutcome::Promoted)
    }
}
