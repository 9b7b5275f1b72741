//! Audit lines, for people: printed by `tec audit` and by `kubectl tec audit`.

use tec_core::port::AuditEvent;

use crate::output::word;

/// An audit line for a table: time, action, machine, subject.
pub(crate) fn cells(event: &AuditEvent) -> [String; 4] {
    [
        event.at.to_string(),
        word(&event.action),
        event.machine.map_or_else(|| "-".to_owned(), |id| id.to_string()),
        event.subject.clone(),
    ]
}
