//! Attestation keys as objects, and their binding, which is recorded in the machine.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Resource as _, ResourceExt as _};
use serde_json::json;
use tec_core::ak::{AkRecord, AkState, ApprovedAk, Fingerprint, MAX_WAITING, SourceNetwork};
use tec_core::id::MachineId;
use tec_core::machine::Machine;
use tec_core::migrate::Deed;
use tec_core::port::{
    AkRegistry, AuditEvent, BindOutcome, Claims, CreateOutcome, PortError, PortErrorKind,
};

use super::error::{is_conflict, is_not_found, port_error};
use super::{ATTEMPTS, AUDIT, KubeRegistry, is_terminating, note};
use crate::api;
use crate::api::BoundKey;

/// Outcome of one attempt to bind.
enum Attempt {
    Done(BindOutcome),
    /// Someone else changed one of the objects.
    Again,
}

impl KubeRegistry {
    fn key_name(&self, key: &Fingerprint) -> String {
        match &self.alias {
            Some((aliased, name)) if aliased == key => name.clone(),
            _ => api::AttestationKey::name_of(key),
        }
    }

    async fn key_object(&self, name: &str) -> Result<Option<api::AttestationKey>, PortError> {
        let found = self.keys().get_opt(name).await;
        found.map_err(|error| port_error(format!("look up {name}"), error))
    }

    /// Every key object that was submitted for a machine. Lists all keys.
    pub(super) async fn key_objects(
        &self,
        machine: Option<&MachineId>,
    ) -> Result<Vec<api::AttestationKey>, PortError> {
        let params = ListParams {
            field_selector: machine.map(|id| format!("spec.uuid={id}")),
            ..ListParams::default()
        };
        let list = self.keys().list(&params).await;
        let list = list.map_err(|error| port_error("list the attestation keys", error))?;
        Ok(list.items)
    }

    pub(super) async fn remove_keys_of(&self, machine: &MachineId) -> Result<(), PortError> {
        for object in self.key_objects(Some(machine)).await? {
            self.delete_key(&object).await?;
        }
        Ok(())
    }

    pub(super) async fn delete_key(&self, object: &api::AttestationKey) -> Result<(), PortError> {
        let name = object.name_any();
        let this_one = DeleteParams {
            preconditions: Some(Preconditions { resource_version: None, uid: object.uid() }),
            ..DeleteParams::default()
        };
        match self.keys().delete(&name, &this_one).await {
            Ok(_) => {
                self.rooms.freed();
                Ok(())
            }
            Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(()),
            Err(error) => Err(port_error(format!("remove {name}"), error)),
        }
    }

    /// Names of the keys that wait for a machine or are bound to it: a limit on strangers counts both.
    async fn waiting(
        &self,
        machine: &api::Machine,
        id: &MachineId,
    ) -> Result<BTreeSet<String>, PortError> {
        let objects = self.key_objects(Some(id)).await?;
        let waits = |object: &&api::AttestationKey| match object.to_core(Some(machine)) {
            Ok(record) => record.state == AkState::Pending,
            Err(_) => true,
        };
        Ok(objects.iter().filter(waits).map(kube::ResourceExt::name_any).collect())
    }

    /// Whether the object that a machine is bound to still exists. An edited object counts as existing: its
    /// machine is not free until someone removes or revokes the key.
    async fn is_held(&self, bound: &BoundKey) -> Result<bool, PortError> {
        let object = self.key_object(&bound.name).await?;
        Ok(object
            .is_some_and(|object| object.spec.revoked_at.is_none() && !is_terminating(&object)))
    }

    /// One attempt to bind. `made` is the object that this call or an earlier one created.
    async fn try_bind(
        &self,
        ak: &AkRecord,
        line: &AuditEvent,
        made: &mut Option<api::AttestationKey>,
    ) -> Result<Attempt, PortError> {
        let machine = self.machine_object(&ak.machine).await?;
        // After the machine was read: see the module on authority.
        self.permit(Deed::Admit, || format!("bind key {}", ak.fingerprint())).await?;
        let Some(machine) = machine.filter(|machine| machine.state().takes_keys()) else {
            return Ok(Attempt::Done(BindOutcome::NoMachine));
        };
        let name = self.key_name(&ak.fingerprint());
        let known = self.key_object(&name).await?;
        let mut bound = BoundKey::new(&*name, ak.fingerprint(), line.at).of(ak);
        if let Some(object) = &known {
            let ek = &object.spec.endorsement_key;
            bound.endorsement_key = bound.endorsement_key.or_else(|| ek.clone());
            match object.to_core(Some(&machine)) {
                Ok(known) if known.public != ak.public || known.machine != ak.machine => {
                    return Ok(Attempt::Done(BindOutcome::KeyTaken));
                }
                Ok(known) if known.state == AkState::Bound => {
                    return Ok(Attempt::Done(BindOutcome::AlreadyBound));
                }
                Ok(known) if known.state == AkState::Pending && !is_terminating(object) => {}
                _ => return Ok(Attempt::Done(BindOutcome::KeyTaken)),
            }
        }
        if let Some(held) = machine.bound_key()
            && held.name != name
            && self.is_held(held).await?
        {
            return Ok(Attempt::Done(BindOutcome::MachineTaken));
        }
        match known {
            Some(object) => self.add_endorsement_key(&object, ak).await?,
            None => match self.create_key(&name, ak, line).await? {
                Some(object) => *made = Some(object),
                None => return Ok(Attempt::Again),
            },
        }
        let is_swapped = self.swap(&machine, &bound).await?;
        Ok(if is_swapped { Attempt::Done(BindOutcome::Bound) } else { Attempt::Again })
    }

    /// Creates the object; `None` if it exists.
    pub(super) async fn create_key(
        &self,
        name: &str,
        ak: &AkRecord,
        line: &AuditEvent,
    ) -> Result<Option<api::AttestationKey>, PortError> {
        let mut object = api::AttestationKey::from_core(ak);
        object.metadata.name = Some(name.to_owned());
        self.complete(object.meta_mut(), Some(line));
        match self.keys().create(&PostParams::default(), &object).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if is_conflict(&error) => Ok(None),
            Err(error) => Err(port_error(format!("keep the key {name}"), error)),
        }
    }

    /// Adds an endorsement key that was proven later; an existing one stays.
    pub(super) async fn add_endorsement_key(
        &self,
        object: &api::AttestationKey,
        ak: &AkRecord,
    ) -> Result<(), PortError> {
        let Some(ek) = ak.ek.filter(|_| object.spec.endorsement_key.is_none()) else {
            return Ok(());
        };
        let patch = json!({"spec": {"endorsementKey": ek.to_string()}});
        let name = object.name_any();
        self.keys()
            .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map_err(|error| port_error(format!("note the endorsement key of {name}"), error))?;
        Ok(())
    }

    /// The compare-and-swap: false if the machine has changed since it was read.
    async fn swap(&self, machine: &api::Machine, bound: &BoundKey) -> Result<bool, PortError> {
        let patch = json!({
            "metadata": {"resourceVersion": machine.resource_version()},
            "status": {"attestationKey": bound.patch()},
        });
        let params = PatchParams::default();
        let swap =
            self.machines().patch_status(&machine.name_any(), &params, &Patch::Merge(patch)).await;
        match swap {
            Ok(_) => {
                self.rooms.freed();
                Ok(true)
            }
            Err(error) if is_conflict(&error) || is_not_found(&error) => Ok(false),
            Err(error) => Err(port_error(format!("bind the key {}", bound.name), error)),
        }
    }

    /// Stores a key that waits, with a single write request. The caller has checked the machine and the
    /// limit, as [`AkRegistry::submit`] does.
    pub async fn submit_checked(
        &self,
        record: &AkRecord,
        line: &AuditEvent,
    ) -> Result<CreateOutcome, PortError> {
        let mut waiting = record.clone();
        waiting.state = AkState::Pending;
        let key = record.fingerprint();
        let operation = || format!("keep key {key} until it is approved");
        self.permit_soon(Deed::Admit, operation).await?;
        let Some(made) = self.create_key(&self.key_name(&key), &waiting, line).await? else {
            return Ok(CreateOutcome::Existed);
        };
        if let Err(late) = self.permit(Deed::Admit, operation).await {
            // As for machines.
            let _ = self.delete_key(&made).await;
            return Err(late);
        }
        Ok(CreateOutcome::Created)
    }
}

#[async_trait]
impl AkRegistry for KubeRegistry {
    /// Lists keys only once this process receives a third key for the same machine.
    async fn submit(
        &self,
        record: &AkRecord,
        line: &AuditEvent,
    ) -> Result<CreateOutcome, PortError> {
        let key = record.fingerprint();
        let name = self.key_name(&key);
        let operation = || format!("keep key {key} until it is approved");
        let refused = |kind| PortError::new(kind, operation());
        self.permit_soon(Deed::Admit, operation).await?;
        let machine = self.machine_object(&record.machine).await?;
        let machine = machine.filter(|machine| machine.state().takes_keys());
        let Some(machine) = machine else {
            return Err(refused(PortErrorKind::NotFound));
        };
        let room = self.rooms.of_keys(record.machine);
        let list = self.waiting(&machine, &record.machine);
        let place = room.enter(&name, MAX_WAITING, self.clock.now(), list).await?;
        let Some(place) = place else {
            return match self.key_object(&name).await? {
                Some(_) => Ok(CreateOutcome::Existed),
                None => Err(refused(PortErrorKind::Denied)),
            };
        };
        let outcome = self.submit_checked(record, line).await?;
        if outcome == CreateOutcome::Created {
            place.keep();
        }
        Ok(outcome)
    }

    async fn bind(&self, ak: &ApprovedAk, line: &AuditEvent) -> Result<BindOutcome, PortError> {
        let mut made = None;
        for _ in 0..ATTEMPTS {
            let Attempt::Done(outcome) = self.try_bind(ak.record(), line, &mut made).await? else {
                continue;
            };
            // Nothing of a refused key is kept. Before that is certain, another binder may bind it.
            let is_bound = matches!(outcome, BindOutcome::Bound | BindOutcome::AlreadyBound);
            if let Some(made) = made.filter(|_| !is_bound) {
                self.delete_key(&made).await?;
            }
            return Ok(outcome);
        }
        let key = ak.record().fingerprint();
        let why = format!("bind the key {key}: others were faster each time");
        Err(PortError::new(PortErrorKind::Unavailable, why))
    }

    async fn find(&self, key: &Fingerprint) -> Result<Option<AkRecord>, PortError> {
        let found = self.find_with_machine(key).await?;
        Ok(found.map(|(record, _)| record))
    }

    async fn find_with_machine(
        &self,
        key: &Fingerprint,
    ) -> Result<Option<(AkRecord, Option<Machine>)>, PortError> {
        let Some(object) = self.key_object(&self.key_name(key)).await? else {
            return Ok(None);
        };
        let machine = match object.machine_id() {
            Ok(id) => self.machine_object(&id).await?,
            Err(_) => None,
        };
        let record = converted(&object, machine.as_ref())?;
        if record.fingerprint() != *key {
            return Ok(None);
        }
        let machine = machine.as_ref().map(super::machine::converted).transpose()?;
        Ok(Some((record, machine)))
    }

    async fn bound_to(&self, machine: &MachineId) -> Result<Option<AkRecord>, PortError> {
        let machine = self.machine_object(machine).await?;
        let Some(bound) = machine.as_ref().and_then(api::Machine::bound_key) else {
            return Ok(None);
        };
        let Some(object) = self.key_object(&bound.name).await? else {
            return Ok(None);
        };
        // An object that was edited into something else is bound to nothing.
        let record = object.to_core(machine.as_ref()).ok();
        Ok(record.filter(|record| record.state == AkState::Bound && !is_terminating(&object)))
    }

    /// Lists all keys; malformed objects are left out.
    async fn list(&self, machine: Option<MachineId>) -> Result<Vec<AkRecord>, PortError> {
        let objects = self.key_objects(machine.as_ref()).await?;
        let machines = match machine {
            Some(id) => self.machine_object(&id).await?.into_iter().collect(),
            None => self.machine_objects(None).await?,
        };
        let by_id: BTreeMap<&str, &api::Machine> =
            machines.iter().map(|machine| (machine.spec.id.as_str(), machine)).collect();
        let record = |object: &api::AttestationKey| {
            let machine = object.spec.uuid.as_deref().and_then(|id| by_id.get(id));
            object.to_core(machine.copied()).ok()
        };
        let live = objects.iter().filter(|object| !is_terminating(*object));
        Ok(live.filter_map(record).collect())
    }

    /// Lists all machines and keys; the operator instead counts the objects that it already knows.
    async fn claims(&self, source: &SourceNetwork) -> Result<Claims, PortError> {
        let keys = AkRegistry::list(self, None).await?;
        let bound = keys.iter().filter(|key| key.state == AkState::Bound);
        Ok(Claims::of(bound.filter_map(|key| key.source), *source))
    }

    async fn revoke(&self, key: &Fingerprint, line: &AuditEvent) -> Result<(), PortError> {
        let operation = || format!("revoke key {key}");
        self.permit(Deed::ShutOut, operation).await?;
        let name = self.key_name(key);
        let object = self.key_object(&name).await?;
        let object = object.ok_or_else(|| PortError::new(PortErrorKind::NotFound, operation()))?;
        let since = object.spec.revoked_at.unwrap_or_else(|| line.at.to_string());
        let patch = json!({
            "metadata": {"annotations": {AUDIT: note(line)}},
            "spec": {"revokedAt": since},
        });
        self.keys()
            .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map_err(|error| port_error(operation(), error))?;
        self.rooms.freed();
        Ok(())
    }
}

fn converted(
    object: &api::AttestationKey,
    machine: Option<&api::Machine>,
) -> Result<AkRecord, PortError> {
    object.to_core(machine).map_err(|error| {
        PortError::new(PortErrorKind::Invalid, format!("read {}", object.name_any())).because(error)
    })
}

#[cfg(test)]
mod tests;
