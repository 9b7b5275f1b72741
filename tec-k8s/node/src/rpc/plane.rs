//! Who may be a control plane, for one call.

use std::collections::BTreeSet;

use crate::grant::ControlPlanes;
use crate::plane::PlaneTicketError;
use tec_core::ak::Fingerprint;
use tec_core::code::Code;
use tonic::Status;

use super::endorse::demanded;
use super::{Caller, Reason};

/// Allows only this caller.
fn only(caller: &Caller) -> ControlPlanes {
    ControlPlanes::Listed(BTreeSet::from([caller.ak()]))
}

/// The list, which may name an endorsement key that the caller proved.
pub(super) fn by_list(
    listed: &ControlPlanes,
    caller: &Caller,
    ek: Option<Fingerprint>,
) -> ControlPlanes {
    match (listed, ek) {
        (ControlPlanes::Listed(keys), Some(ek)) if keys.contains(&ek) => only(caller),
        (listed, _) => listed.clone(),
    }
}

/// Whether the list allows the caller.
pub(super) fn is_listed(listed: &ControlPlanes, caller: &Caller) -> bool {
    match listed {
        ControlPlanes::DangerousAny => true,
        ControlPlanes::Listed(keys) => keys.contains(&caller.ak()),
        _ => false,
    }
}

/// The ticket, which is for a key that the caller proved.
pub(super) fn by_ticket(
    judged: Result<Fingerprint, PlaneTicketError>,
    caller: &Caller,
    ek: Option<Fingerprint>,
) -> Result<ControlPlanes, Status> {
    let node = judged.map_err(|reason| refused(caller, &reason.to_string()))?;
    if node == caller.ak() || ek == Some(node) {
        return Ok(only(caller));
    }
    Err(match ek {
        // It may be for the endorsement key.
        None => demanded(caller),
        Some(_) => refused(caller, "it is for another node"),
    })
}

fn refused(caller: &Caller, reason: &str) -> Status {
    let code = Code::BootstrapPlaneTicket;
    tracing::warn!(%code, ak.fingerprint = %caller.ak(), reason, "the ticket of a control plane was refused");
    let sentence = format!("{code}: {}: {reason}", code.title());
    Reason::ControlPlaneTicket.status(tonic::Code::PermissionDenied, sentence)
}
