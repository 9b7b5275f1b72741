//! The registries, as used by the attestation key server.

use std::sync::Arc;

use async_trait::async_trait;
use kube::{Api, Client};
use tec_core::ak::{AkRecord, ApprovedAk, Fingerprint, MAX_WAITING, SourceNetwork, fair_limit};
use tec_core::id::MachineId;
use tec_core::machine::{Machine, MachineChange, MachineState};
use tec_core::port::{
    AkRegistry, AuditEvent, BindOutcome, Claims, CreateOutcome, MachineRegistry, PortError,
    PortErrorKind, UnclaimedLimit,
};
use tec_core::time::Timestamp;

use super::known::Known;
use crate::api;
use crate::client::{KubeRegistry, port_error};

/// Machines and keys of a namespace for a server that may only read, and submit keys: known objects are
/// answered from memory, and submitting costs one request. Everything else is refused.
#[derive(Debug)]
pub struct Intake {
    registry: KubeRegistry,
    machines: Api<api::Machine>,
    known: Arc<Known>,
}

impl Intake {
    /// Uses the registries of a namespace, and what is known about the namespace.
    pub fn new(registry: KubeRegistry, client: Client, namespace: &str, known: Arc<Known>) -> Self {
        Self { registry, machines: Api::namespaced(client, namespace), known }
    }

    fn refused<T>(operation: &str) -> Result<T, PortError> {
        Err(PortError::new(PortErrorKind::Denied, operation))
    }
}

#[async_trait]
impl MachineRegistry for Intake {
    async fn create(
        &self,
        _machine: &Machine,
        _limit: UnclaimedLimit,
    ) -> Result<CreateOutcome, PortError> {
        Self::refused("register a machine")
    }

    /// A machine that is not known yet is looked up by the name that registration gives it.
    async fn find(&self, id: &MachineId) -> Result<Option<Machine>, PortError> {
        if let Some(machine) = self.known.machine(id) {
            return Ok(Some(machine));
        }
        let failed = |error| port_error(format!("look up machine {id}"), error);
        let object = self.machines.get_opt(&api::Machine::name_of(id)).await;
        let object = object.map_err(failed)?;
        let live = object.filter(|object| object.metadata.deletion_timestamp.is_none());
        let machine = live.and_then(|object| object.to_core().ok());
        Ok(machine.filter(|machine| machine.id == *id))
    }

    async fn list(&self, _: Option<MachineId>, _: usize) -> Result<Vec<Machine>, PortError> {
        Self::refused("list the machines")
    }

    async fn revoke(&self, _: &MachineId, _: &AuditEvent) -> Result<(), PortError> {
        Self::refused("revoke a machine")
    }

    async fn change(
        &self,
        _: &MachineId,
        _: MachineChange,
        _: &AuditEvent,
    ) -> Result<(), PortError> {
        Self::refused("change the state of a machine")
    }

    async fn remove(&self, _: &MachineId) -> Result<(), PortError> {
        Self::refused("remove a machine")
    }

    async fn expire_unclaimed(&self, _: Timestamp) -> Result<u64, PortError> {
        Self::refused("remove machines")
    }
}

#[async_trait]
impl AkRegistry for Intake {
    /// The bound key of a machine counts, too. Requests at the same moment may exceed the limit by their number;
    /// the operator removes the excess.
    async fn submit(
        &self,
        record: &AkRecord,
        line: &AuditEvent,
    ) -> Result<CreateOutcome, PortError> {
        let name = api::AttestationKey::name_of(&record.fingerprint());
        let (all, own) = self.known.keys_beside(record);
        if all >= fair_limit(MAX_WAITING, own) && !self.known.has_key(&name) {
            return Self::refused("keep a further key of the machine");
        }
        let outcome = self.registry.submit_checked(record, line).await?;
        if outcome == CreateOutcome::Created {
            self.known.add_key(name, record);
        }
        Ok(outcome)
    }

    async fn bind(&self, _: &ApprovedAk, _: &AuditEvent) -> Result<BindOutcome, PortError> {
        Self::refused("bind a key")
    }

    /// A key that is not known yet has no object, or the API server reports one when it is created.
    async fn find(&self, key: &Fingerprint) -> Result<Option<AkRecord>, PortError> {
        if !self.known.has_key(&api::AttestationKey::name_of(key)) {
            return Ok(None);
        }
        AkRegistry::find(&self.registry, key).await
    }

    async fn find_with_machine(
        &self,
        _: &Fingerprint,
    ) -> Result<Option<(AkRecord, Option<Machine>)>, PortError> {
        Self::refused("look a key up for an attestation")
    }

    async fn bound_to(&self, machine: &MachineId) -> Result<Option<AkRecord>, PortError> {
        match MachineRegistry::find(self, machine).await? {
            Some(machine) if machine.state == MachineState::Active => {
                self.registry.bound_to(&machine.id).await
            }
            _ => Ok(None),
        }
    }

    async fn list(&self, _: Option<MachineId>) -> Result<Vec<AkRecord>, PortError> {
        Self::refused("list the keys")
    }

    async fn claims(&self, _: &SourceNetwork) -> Result<Claims, PortError> {
        Self::refused("count the machines that first use let in")
    }

    async fn revoke(&self, _: &Fingerprint, _: &AuditEvent) -> Result<(), PortError> {
        Self::refused("revoke a key")
    }
}
