//! Registration: a machine gets an ID and an Ignition config.

use crate::id::{MachineId, ResourcePath};
use crate::ignition::{PinGenerator, RenderError};
use crate::machine::{Machine, MachineChange, RegisteredBy};
use crate::port::{
    AuditAction, AuditEvent, AuditSink, Clock, ClockLog, Entropy, EntropyRng, MachineRegistry,
    PortError, SecretStore, UnclaimedLimit,
};

/// Ports for registration.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RegisterPorts<'a> {
    /// Where machines are stored.
    pub machines: &'a dyn MachineRegistry,
    /// Where the registration is recorded.
    pub audit: &'a dyn AuditSink,
    /// Renders the config.
    pub pins: &'a dyn PinGenerator,
    /// The clock.
    pub clock: &'a dyn Clock,
    /// Randomness for the ID.
    pub entropy: &'a dyn Entropy,
}

impl<'a> RegisterPorts<'a> {
    /// Bundles the ports.
    pub fn new(
        machines: &'a dyn MachineRegistry,
        audit: &'a dyn AuditSink,
        pins: &'a dyn PinGenerator,
        clock: &'a dyn Clock,
        entropy: &'a dyn Entropy,
    ) -> Self {
        Self { machines, audit, pins, clock, entropy }
    }
}

/// A registered machine.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Registration {
    /// Its ID.
    pub machine: MachineId,
    /// Its Ignition config, JSON.
    pub ignition: Vec<u8>,
}

/// Registration failed; nothing was stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The config cannot be rendered.
    #[error("cannot render the config")]
    Render(#[source] RenderError),
    /// The registry or the audit log returned an error.
    #[error("cannot store the machine")]
    Store(#[source] PortError),
}

/// Registers a machine whose first boot asks for a config.
///
/// The machine is created last, after its config is rendered, so that a failure leaves no stray
/// machine behind. A node that loses the answer asks again and gets another ID; the first one
/// expires unclaimed.
///
/// # Errors
/// `Store` with kind `Denied` when `limit` is reached.
pub async fn register(
    ports: RegisterPorts<'_>,
    limit: UnclaimedLimit,
) -> Result<Registration, RegisterError> {
    let machine = MachineId::random(&mut EntropyRng::new(ports.entropy));
    create(ports, machine, RegisteredBy::FirstBoot, limit).await
}

/// Registers a machine manually; repeating it gives the same config.
pub async fn register_by_admin(
    ports: RegisterPorts<'_>,
    machine: Option<MachineId>,
) -> Result<Registration, RegisterError> {
    let machine = machine.unwrap_or_else(|| MachineId::random(&mut EntropyRng::new(ports.entropy)));
    create(ports, machine, RegisteredBy::Admin, UnclaimedLimit::Unlimited).await
}

async fn create(
    ports: RegisterPorts<'_>,
    id: MachineId,
    by: RegisteredBy,
    limit: UnclaimedLimit,
) -> Result<Registration, RegisterError> {
    let ignition = ports.pins.render_ignition(&id).map_err(RegisterError::Render)?;
    let machine = Machine::unclaimed(id, by, ports.clock.now());
    // First boots are not audited one by one, since strangers could fill the log. The binding of
    // the attestation key is audited.
    if by == RegisteredBy::Admin {
        announce(ports, &machine).await.map_err(RegisterError::Store)?;
    }
    ports.machines.create(&machine, limit).await.map_err(RegisterError::Store)?;
    Ok(Registration { machine: id, ignition })
}

/// Writes an audit record for a machine that an admin is about to add.
async fn announce(ports: RegisterPorts<'_>, machine: &Machine) -> Result<(), PortError> {
    let id = machine.id;
    if ports.machines.find(&id).await?.is_some() {
        return Ok(());
    }
    let (at, action) = (machine.registered_at, AuditAction::MachineRegistered);
    let line = AuditEvent::new(at, action, Some(id), "by an admin");
    ports.audit.append(&line).await
}

/// Revokes a machine: it can no longer attest; its disk key is kept for an admin.
pub async fn revoke_machine(
    machines: &dyn MachineRegistry,
    clock: &dyn Clock,
    id: MachineId,
) -> Result<(), PortError> {
    let line = AuditEvent::new(clock.now(), AuditAction::MachineRevoked, Some(id), "");
    machines.revoke(&id, &line).await
}

/// Quarantines, releases or retires a machine; `reason` goes into the audit log.
///
/// # Errors
/// Kind `NotFound` if there is no such machine, `Conflict` if it is revoked or retired.
pub async fn change_machine(
    machines: &dyn MachineRegistry,
    clock: &dyn Clock,
    id: MachineId,
    change: MachineChange,
    reason: &str,
) -> Result<(), PortError> {
    let action = match change {
        MachineChange::Quarantine => AuditAction::MachineQuarantined,
        MachineChange::Release => AuditAction::MachineReleased,
        MachineChange::Retire => AuditAction::MachineRetired,
    };
    let line = AuditEvent::new(clock.now(), action, Some(id), reason);
    machines.change(&id, change, &line).await
}

/// Forgets the last clock reading of a machine's TPM, so that its next quote counts as the first.
/// For a TPM whose state an admin restored on purpose.
///
/// # Errors
/// Kind `NotFound` if no quote of the machine was ever accepted here.
///
/// # Security
/// Until that next quote, a copy of the TPM's state is accepted as the TPM.
pub async fn readmit_tpm(
    clocks: &dyn ClockLog,
    clock: &dyn Clock,
    id: MachineId,
) -> Result<(), PortError> {
    let line = AuditEvent::new(clock.now(), AuditAction::TpmReadmitted, Some(id), "");
    clocks.forget(&id, &line).await
}

/// Removes a machine, its attestation keys, its disk key and its recovery keys, in this order:
/// whatever could release a key is removed before the key itself.
pub async fn remove_machine(
    machines: &dyn MachineRegistry,
    secrets: &dyn SecretStore,
    audit: &dyn AuditSink,
    clock: &dyn Clock,
    id: MachineId,
) -> Result<(), PortError> {
    let event = AuditEvent::new(clock.now(), AuditAction::MachineRemoved, Some(id), "");
    audit.append(&event).await?;
    machines.remove(&id).await?;
    secrets.remove(&ResourcePath::luks_root(&id)).await?;
    super::escrow::remove(secrets, &id).await
}
