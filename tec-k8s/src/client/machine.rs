//! Machines as objects.

use std::collections::BTreeSet;

use async_trait::async_trait;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Resource as _, ResourceExt as _};
use serde_json::json;
use tec_core::id::MachineId;
use tec_core::machine::{Machine, MachineChange, MachineState, RegisteredBy};
use tec_core::migrate::Deed;
use tec_core::port::{
    AuditEvent, CreateOutcome, MachineRegistry, PortError, PortErrorKind, UnclaimedLimit,
};
use tec_core::time::Timestamp;

use super::error::{is_conflict, is_not_found, port_error};
use super::pages::{each, whole_pages};
use super::{AUDIT, KubeRegistry, is_terminating, note};
use crate::api;

/// Machines that no key was bound to and that were not revoked, including quarantined and retired ones. An
/// unset field is the empty text in a selector.
const UNCLAIMED: &str = "status.attestationKey.name=,spec.revokedAt=";

impl KubeRegistry {
    /// The object of a machine: the one that is named after it, or else the oldest with its ID. Lists objects
    /// only if there is none with that name. An object that is being removed does not count.
    pub async fn machine_object(&self, id: &MachineId) -> Result<Option<api::Machine>, PortError> {
        let failed = |error| port_error(format!("look up machine {id}"), error);
        let named = self.machines().get_opt(&api::Machine::name_of(id)).await;
        let is_it =
            |object: &api::Machine| object.spec.id == id.to_string() && !is_terminating(object);
        if let Some(object) = named.map_err(failed)?.filter(is_it) {
            return Ok(Some(object));
        }
        let by_id = ListParams::default().fields(&format!("spec.id={id}"));
        let mut others = self.machines().list(&by_id).await.map_err(failed)?.items;
        others.retain(is_it);
        Ok(others.into_iter().min_by_key(|object| (object.creation_timestamp(), object.name_any())))
    }

    /// Every machine object that a field selector matches and that is not being removed.
    pub(super) async fn machine_objects(
        &self,
        fields: Option<&str>,
    ) -> Result<Vec<api::Machine>, PortError> {
        let field_selector = fields.map(str::to_owned);
        let params = ListParams { field_selector, ..whole_pages() };
        let mut all = Vec::new();
        each(self.machines(), params, |machine| all.push(machine)).await?;
        Ok(all)
    }

    async fn unclaimed(&self) -> Result<BTreeSet<String>, PortError> {
        let mut objects = self.machine_objects(Some(UNCLAIMED)).await?;
        objects.retain(|object| object.state() == MachineState::Unclaimed);
        Ok(objects.iter().map(kube::ResourceExt::name_any).collect())
    }

    async fn is_known(&self, name: &str) -> Result<bool, PortError> {
        let found = self.machines().get_metadata_opt(name).await;
        let found = found.map_err(|error| port_error(format!("look up {name}"), error))?;
        Ok(found.is_some())
    }

    /// Removes a machine that registered itself before this time and that no key was bound to. Returns
    /// whether it did; a machine that changed since it was read stays.
    pub(crate) async fn expire_object(
        &self,
        object: &api::Machine,
        before: Timestamp,
    ) -> Result<bool, PortError> {
        let Ok(machine) = object.to_core() else {
            return Ok(false);
        };
        let is_stray = object.state() == MachineState::Unclaimed
            && machine.registered_by == RegisteredBy::FirstBoot
            && machine.registered_at < before
            && !is_terminating(object);
        if !is_stray || self.permit_soon(Deed::Remove, String::new).await.is_err() {
            return Ok(false);
        }
        if !self.delete_machine(object).await? {
            return Ok(false);
        }
        self.remove_keys_of(&machine.id).await?;
        Ok(true)
    }

    pub(super) async fn delete_machine(&self, object: &api::Machine) -> Result<bool, PortError> {
        let name = object.name_any();
        let unchanged = DeleteParams {
            preconditions: Some(Preconditions {
                resource_version: object.resource_version(),
                uid: object.uid(),
            }),
            ..DeleteParams::default()
        };
        match self.machines().delete(&name, &unchanged).await {
            Ok(_) => {
                self.rooms.freed();
                Ok(true)
            }
            Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(false),
            Err(error) => Err(port_error(format!("remove {name}"), error)),
        }
    }
}

#[async_trait]
impl MachineRegistry for KubeRegistry {
    /// The limit is exact within one process; see the module on limits.
    async fn create(
        &self,
        machine: &Machine,
        limit: UnclaimedLimit,
    ) -> Result<CreateOutcome, PortError> {
        let operation = || format!("register machine {}", machine.id);
        self.permit_soon(Deed::Admit, operation).await?;
        let mut object = api::Machine::from_core(machine);
        object.spec.node_name.clone_from(&self.node_name);
        self.complete(object.meta_mut(), None);
        let name = object.name_any();
        let place = match limit {
            UnclaimedLimit::AtMost(most) if machine.state == MachineState::Unclaimed => {
                let room = self.rooms.of_machines();
                let now = self.clock.now();
                let place = room.enter(&name, most, now, self.unclaimed()).await?;
                if place.is_none() {
                    if self.is_known(&name).await? {
                        return Ok(CreateOutcome::Existed);
                    }
                    let why = format!("{}: {most} wait unclaimed", operation());
                    return Err(PortError::new(PortErrorKind::Denied, why));
                }
                place
            }
            _ => None,
        };
        match self.machines().create(&PostParams::default(), &object).await {
            Ok(made) => {
                if let Err(late) = self.permit(Deed::Admit, operation).await {
                    // The registration server may not remove it; nobody was told about it.
                    let _ = self.delete_machine(&made).await;
                    return Err(late);
                }
                if let Some(place) = place {
                    place.keep();
                }
                Ok(CreateOutcome::Created)
            }
            Err(error) if is_conflict(&error) => Ok(CreateOutcome::Existed),
            Err(error) => Err(port_error(operation(), error)),
        }
    }

    async fn find(&self, id: &MachineId) -> Result<Option<Machine>, PortError> {
        let object = self.machine_object(id).await?;
        object.as_ref().map(converted).transpose()
    }

    /// Reads every machine, whatever `limit` is: names sort like IDs only if nobody created objects manually.
    /// Malformed objects are left out.
    async fn list(
        &self,
        after: Option<MachineId>,
        limit: usize,
    ) -> Result<Vec<Machine>, PortError> {
        let objects = self.machine_objects(None).await?;
        let known = objects.iter().filter_map(|object| object.to_core().ok());
        let mut machines: Vec<Machine> = known.collect();
        machines.retain(|machine| after.is_none_or(|after| machine.id > after));
        machines.sort_by_key(|machine| machine.id);
        machines.dedup_by_key(|machine| machine.id);
        machines.truncate(limit);
        Ok(machines)
    }

    async fn revoke(&self, id: &MachineId, line: &AuditEvent) -> Result<(), PortError> {
        let operation = format!("revoke machine {id}");
        self.permit(Deed::ShutOut, || operation.clone()).await?;
        let object = self.machine_object(id).await?;
        let object = object.ok_or_else(|| PortError::new(PortErrorKind::NotFound, &operation))?;
        self.put_state(&object, MachineState::Revoked, line, operation).await
    }

    async fn change(
        &self,
        id: &MachineId,
        change: MachineChange,
        line: &AuditEvent,
    ) -> Result<(), PortError> {
        let operation = format!("change the state of machine {id}");
        let refused = |kind| PortError::new(kind, &operation);
        self.permit(Deed::of(change), || operation.clone()).await?;
        let object = self.machine_object(id).await?;
        let object = object.ok_or_else(|| refused(PortErrorKind::NotFound))?;
        let state = converted(&object)?.state_after(change);
        let state = state.ok_or_else(|| refused(PortErrorKind::Conflict))?;
        self.put_state(&object, state, line, operation).await
    }

    async fn remove(&self, id: &MachineId) -> Result<(), PortError> {
        self.permit(Deed::Remove, || format!("remove machine {id}")).await?;
        self.remove_machine(id).await
    }

    async fn expire_unclaimed(&self, before: Timestamp) -> Result<u64, PortError> {
        let mut removed = 0;
        for object in self.machine_objects(Some(UNCLAIMED)).await? {
            removed += u64::from(self.expire_object(&object, before).await?);
        }
        Ok(removed)
    }
}

impl KubeRegistry {
    async fn put_state(
        &self,
        object: &api::Machine,
        state: MachineState,
        line: &AuditEvent,
        operation: String,
    ) -> Result<(), PortError> {
        let mut spec = object.spec.patch_to(state, line.at);
        let is_reasoned = state == MachineState::Quarantined && !line.subject.is_empty();
        if let Some(fields) = spec.as_object_mut().filter(|_| is_reasoned) {
            fields.insert("quarantineReason".to_owned(), json!(line.subject));
        }
        let patch = json!({ "metadata": {"annotations": {AUDIT: note(line)}}, "spec": spec });
        self.machines()
            .patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map_err(|error| port_error(operation, error))?;
        self.rooms.freed();
        Ok(())
    }

    pub(super) async fn remove_machine(&self, id: &MachineId) -> Result<(), PortError> {
        self.remove_keys_of(id).await?;
        while let Some(object) = self.machine_object(id).await? {
            self.delete_machine(&object).await?;
        }
        Ok(())
    }
}

pub(super) fn converted(object: &api::Machine) -> Result<Machine, PortError> {
    let failed = |error| {
        PortError::new(PortErrorKind::Invalid, format!("read {}", object.name_any())).because(error)
    };
    object.to_core().map_err(failed)
}
