//! Rotation: a machine's disk key is replaced, step by step; see [`crate::rotation`].

use crate::attest::Attested;
use crate::flow::{ProvisionPorts, ReleaseError, taken_back};
use crate::id::{MachineId, ResourcePath};
use crate::port::{
    AkRegistry, AuditAction, AuditEvent, BeginOutcome, CancelOutcome, Clock, DiskKeys, EntropyRng,
    PortError,
};
use crate::rotation::{Confirmation, Confirmed, Forget, KeyMark, Keys};

/// Generates a new disk key for a machine, which waits until the machine's disk has a slot for it. The key is
/// durable when this returns; the current key is released as before.
///
/// # Errors
/// Kind `NotFound` if the machine is not in service or has no disk key, `Denied` if the anchor may not
/// approve anything, `Conflict` if it takes part in a migration.
pub async fn begin_rotation(
    keys: &dyn DiskKeys,
    ports: ProvisionPorts<'_>,
    machine: MachineId,
) -> Result<BeginOutcome, PortError> {
    let key = ports.generator.generate(&mut EntropyRng::new(ports.entropy)).into_bytes();
    let subject = ResourcePath::luks_pending(&machine);
    let action = AuditAction::RotationBegun;
    let line = AuditEvent::new(ports.clock.now(), action, Some(machine), subject.as_str());
    keys.begin(&machine, &key, &line).await
}

/// Cancels the rotation of a machine's disk key: the key that is not released is forgotten.
///
/// # Errors
/// Kind `NotFound` if the machine has no disk key, `Denied` if the anchor may not approve anything.
pub async fn cancel_rotation(
    keys: &dyn DiskKeys,
    clock: &dyn Clock,
    machine: MachineId,
    forget: Forget,
) -> Result<CancelOutcome, PortError> {
    let forgotten = match forget {
        Forget::Pending => ResourcePath::luks_pending(&machine),
        Forget::DangerouslyPrevious => ResourcePath::luks_previous(&machine),
    };
    let action = AuditAction::RotationCanceled;
    let line = AuditEvent::new(clock.now(), action, Some(machine), forgotten.as_str());
    keys.cancel(&machine, forget, &line).await
}

/// The keys of an attested machine, by their marks.
///
/// # Errors
/// `Refused` if the machine or its attestation key has been revoked since the attestation; an error of a
/// port.
pub async fn rotation(
    aks: &dyn AkRegistry,
    keys: &dyn DiskKeys,
    attested: &Attested,
) -> Result<Option<Keys<KeyMark>>, ReleaseError> {
    still_trusted(aks, attested).await?;
    Ok(keys.rotation(&attested.machine()).await?)
}

/// Takes the confirmation of an attested machine about its own disk key.
///
/// # Security
/// The machine decides when its old key is forgotten. A machine that confirms what is not true locks out only
/// itself. A confirmation proves that its sender has the new key: an attestation token, which a machine shows to
/// others, is not enough.
pub async fn confirm_rotation(
    (aks, keys, clock): (&dyn AkRegistry, &dyn DiskKeys, &dyn Clock),
    attested: &Attested,
    confirmation: Confirmation,
    key: &KeyMark,
) -> Result<Confirmed<KeyMark>, ReleaseError> {
    still_trusted(aks, attested).await?;
    let machine = attested.machine();
    let action = match confirmation {
        Confirmation::Staged => AuditAction::RotationPromoted,
        Confirmation::Removed => AuditAction::RotationEnded,
    };
    let subject = format!("{} attempt {}", key.name(), attested.attempt());
    let line = AuditEvent::new(clock.now(), action, Some(machine), subject);
    Ok(keys.confirm(&machine, confirmation, key, &line).await?)
}

pub(super) async fn still_trusted(
    aks: &dyn AkRegistry,
    attested: &Attested,
) -> Result<(), ReleaseError> {
    let closed = taken_back(aks, attested.machine(), &attested.ak()).await?;
    match closed {
        Some(closed) => Err(ReleaseError::Refused(closed.code)),
        None => Ok(()),
    }
}
