//! The answer to nodes that get no ticket.

use crate::grant::{Claim, GrantError};
use tec_core::port::{PortError, PortErrorKind};
use tonic::{Code, Status};

use super::caller::refusal;
use super::{Caller, Reason};

pub(super) fn denied(claim: &Claim, error: GrantError) -> Status {
    tracing::warn!(
        node = %claim.name, ak.fingerprint = %claim.ak, reason = %error, "a node was refused"
    );
    let reason = match error {
        GrantError::NameTaken => Reason::NameTaken,
        _ => Reason::NotAdmitted,
    };
    reason.status(Code::PermissionDenied, error.to_string())
}

pub(super) fn joined(claim: &Claim) -> Status {
    tracing::warn!(
        node = %claim.name, ak.fingerprint = %claim.ak, "a member asked for a second ticket"
    );
    let sentence = format!(
        "node {0} is a member already and gets no second ticket; to let its machine join again, run \
         kubectl delete node {0}",
        claim.name
    );
    Reason::AlreadyMember.status(Code::AlreadyExists, sentence)
}

pub(super) fn elsewhere(caller: &Caller, sentence: &'static str) -> Status {
    tracing::warn!(ak.fingerprint = %caller.ak(), reason = sentence, "a node was refused");
    Reason::NotAdmitted.status(Code::PermissionDenied, sentence)
}

pub(super) fn certificate_refused(error: &PortError) -> Status {
    let sentence = "the certificate request is refused";
    refusal(Reason::CertificateRequest, sentence, error)
}

pub(super) fn unusable(error: &PortError) -> Status {
    if error.code() == Some(tec_core::code::Code::BootstrapMembersFull) {
        return refusal(Reason::MembersFull, "the registry of members is full", error);
    }
    refusal(Reason::Registry, "the enrollments cannot be used", error)
}

pub(super) fn unsettled(error: &PortError) -> Status {
    let reason = match error.kind() {
        PortErrorKind::Denied => Reason::NotAdmitted,
        _ => Reason::Registry,
    };
    refusal(reason, "the member cannot be registered", error)
}

pub(super) fn no_ticket(error: &PortError) -> Status {
    refusal(Reason::Ticket, "the ticket cannot be made", error)
}
