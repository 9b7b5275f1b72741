//! The registry in memory as a trust anchor.

use std::collections::BTreeMap;

use async_trait::async_trait;

use super::{MemoryRegistry, State};
use crate::ak::AkRecord;
use crate::id::{MachineId, ResourcePath};
use crate::migrate::{
    AdoptPage, Adopted, Authority, Epoch, MachineUnit, Merged, Role, SwapOutcome, Transition,
    TrustAnchor, TrustUnit, UnitName, merge_image, merge_machine,
};
use crate::port::{AuditAction, AuditEvent, PortError, PortErrorKind};
use crate::secret::SecretBytes;

impl State {
    fn names(&self) -> Vec<UnitName> {
        let images = self.images.keys().cloned().map(UnitName::Image);
        let machines = self.machines.keys().copied().map(UnitName::Machine);
        images.chain(machines).collect()
    }

    fn machine_unit(&self, id: &MachineId) -> Option<MachineUnit> {
        let machine = self.machines.get(id)?.clone();
        let keys = self.aks.values().filter(|key| key.machine == *id);
        let secret = self.secrets.get(&ResourcePath::luks_root(id));
        let secret = secret.map(|secret| secret.duplicate("the other anchor keeps it"));
        let unit = MachineUnit::new(machine, keys.cloned().collect(), secret);
        Some(unit.with_escrows(self.escrows(id)))
    }

    fn escrows(&self, id: &MachineId) -> BTreeMap<u32, SecretBytes> {
        let number = |path: &ResourcePath| {
            let (of, number) = path.recovery_of()?;
            (of == *id).then_some(number)
        };
        let copy = |key: &SecretBytes| key.duplicate("the other anchor keeps it");
        let found = self.secrets.iter();
        found.filter_map(|(path, key)| Some((number(path)?, copy(key)))).collect()
    }

    fn unit(&self, name: &UnitName) -> Option<TrustUnit> {
        match name {
            UnitName::Image(name) => self.images.get(name).cloned().map(TrustUnit::Image),
            UnitName::Machine(id) => self.machine_unit(id).map(TrustUnit::Machine),
        }
    }

    fn meet(&self, comes: &TrustUnit) -> (bool, Merged<TrustUnit>) {
        match comes {
            TrustUnit::Image(image) => {
                let here = self.images.get(&image.name);
                let adopted = self.adopted.contains(&comes.name());
                let merged = merge_image(here, image, adopted);
                (here.is_some(), merged.map(TrustUnit::Image))
            }
            TrustUnit::Machine(unit) => {
                let here = self.machine_unit(&unit.machine.id);
                let known = |key: &AkRecord| self.aks.get(&key.fingerprint()).cloned();
                let others: Vec<_> = unit.keys.iter().filter_map(known).collect();
                let merged = merge_machine(here.as_ref(), unit, &others);
                (here.is_some(), merged.map(TrustUnit::Machine))
            }
        }
    }

    fn write(&mut self, unit: TrustUnit) {
        match unit {
            TrustUnit::Image(image) => {
                self.images.insert(image.name.clone(), image);
            }
            TrustUnit::Machine(unit) => {
                let id = unit.machine.id;
                for key in unit.keys {
                    self.aks.insert(key.fingerprint(), key);
                }
                if let Some(secret) = unit.secret {
                    self.secrets.insert(ResourcePath::luks_root(&id), secret);
                }
                for (number, key) in unit.escrows {
                    self.secrets.insert(ResourcePath::recovery(&id, number), key);
                }
                self.machines.insert(id, unit.machine);
            }
        }
    }

    fn prune(&mut self, page: &AdoptPage) {
        let stays = page.names();
        let everything = self.authority().role() == Role::ServeOnly;
        for name in self.names() {
            let ours = !everything && !self.adopted.contains(&name);
            if ours || stays.contains(&name) || !page.covers(&name) {
                continue;
            }
            match &name {
                UnitName::Image(image) => {
                    self.images.remove(image);
                }
                UnitName::Machine(id) => {
                    self.remove_machine(id);
                    self.secrets.remove(&ResourcePath::luks_root(id));
                    for number in self.escrows(id).into_keys() {
                        self.secrets.remove(&ResourcePath::recovery(id, number));
                    }
                }
            }
            self.adopted.remove(&name);
            let (action, subject) = (AuditAction::TrustPruned, name.to_string());
            let line = AuditEvent::new(page.at, action, None, subject);
            self.events.push(line);
        }
    }

    fn adopt_one(&mut self, unit: &TrustUnit, page: &AdoptPage) -> Adopted {
        let name = unit.name();
        let (existed, merged) = self.meet(unit);
        match merged {
            Merged::Clash(clash) => return Adopted::Clash(clash),
            Merged::Same => return Adopted::Same,
            Merged::Write(unit) => self.write(unit),
        }
        let (action, subject) = (AuditAction::TrustAdopted, name.to_string());
        self.events.push(AuditEvent::new(page.at, action, None, subject));
        if existed {
            return Adopted::Updated;
        }
        self.adopted.insert(name);
        Adopted::Created
    }
}

#[async_trait]
impl TrustAnchor for MemoryRegistry {
    async fn authority(&self) -> Result<Authority, PortError> {
        Ok(self.0.lock().authority())
    }

    async fn swap(&self, change: &Transition, line: &AuditEvent) -> Result<SwapOutcome, PortError> {
        let mut state = self.0.lock();
        let now = state.authority();
        if now != *change.from() {
            return Ok(SwapOutcome::Lost(now));
        }
        state.authority = Some(*change.to());
        state.events.push(line.clone());
        Ok(SwapOutcome::Swapped)
    }

    async fn export(
        &self,
        after: Option<&UnitName>,
        limit: usize,
    ) -> Result<Vec<TrustUnit>, PortError> {
        let state = self.0.lock();
        let names = state.names();
        let names = names.iter().filter(|name| after.is_none_or(|after| *name > after));
        Ok(names.take(limit).filter_map(|name| state.unit(name)).collect())
    }

    async fn weigh(&self, units: &[TrustUnit]) -> Result<Vec<Adopted>, PortError> {
        let state = self.0.lock();
        let weigh = |unit| match state.meet(unit) {
            (_, Merged::Same) => Adopted::Same,
            (_, Merged::Clash(clash)) => Adopted::Clash(clash),
            (true, Merged::Write(_)) => Adopted::Updated,
            (false, Merged::Write(_)) => Adopted::Created,
        };
        Ok(units.iter().map(weigh).collect())
    }

    async fn adopt(&self, page: &AdoptPage) -> Result<Vec<Adopted>, PortError> {
        let mut state = self.0.lock();
        let admitted = state.authority().admits(page.intake);
        admitted.map_err(|refused| refused.during("adopt what another anchor has"))?;
        state.prune(page);
        let adopted = page.units.iter().map(|unit| state.adopt_one(unit, page));
        let adopted = adopted.collect();
        let last = page.units.last().map(TrustUnit::name);
        state.progress = last.filter(|_| page.more).map(|last| (page.intake.epoch(), last));
        Ok(adopted)
    }

    async fn progress(&self, epoch: Epoch) -> Result<Option<UnitName>, PortError> {
        let state = self.0.lock();
        let at = state.progress.as_ref().filter(|(of, _)| *of == epoch);
        Ok(at.map(|(_, name)| name.clone()))
    }

    async fn shred(&self, line: &AuditEvent) -> Result<u64, PortError> {
        let mut state = self.0.lock();
        let role = state.authority().role();
        if role != Role::Forward {
            let why = format!("shred the keys of an anchor that is {role}");
            return Err(PortError::new(PortErrorKind::Conflict, why));
        }
        let count = u64::try_from(state.secrets.len()).unwrap_or(u64::MAX);
        state.secrets.clear();
        state.events.push(line.clone());
        Ok(count)
    }
}
