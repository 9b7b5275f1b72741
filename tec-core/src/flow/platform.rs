//! Approval of a change to a machine's platform.

use crate::ak::Fingerprint;
use crate::id::MachineId;
use crate::platform::Platform;
use crate::port::{AuditAction, AuditEvent, Clock, PlatformLog, PortError};

/// Approves the change from the baseline of a machine to the firmware that it reported last, for
/// every machine with the same baseline, and what it showed of its image, for this machine. Returns these machines.
///
/// # Errors
/// The log failed, has nothing for the key (`NotFound`), or the last boot was not refused or
/// reported something other than `seen` (`Conflict`).
///
/// # Security
/// `seen` must be what the admin reviewed: a later boot may have reported something else.
pub async fn approve_platform(
    platforms: &dyn PlatformLog,
    clock: &dyn Clock,
    (machine, key): (MachineId, &Fingerprint),
    seen: &Platform,
) -> Result<Vec<MachineId>, PortError> {
    let mut subject = seen.firmware.id().map(|id| id.to_string()).unwrap_or_default();
    for boot in &seen.boots {
        subject.extend([", boot of ", &boot.image]);
    }
    let action = AuditAction::PlatformApproved;
    let line = AuditEvent::new(clock.now(), action, Some(machine), subject);
    platforms.approve(key, seen, &line).await
}
