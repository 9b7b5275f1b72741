//! The caller, as proven by the transport.

use crate::lock::MarkerState;
use tec_core::ak::{Fingerprint, PublicKey};
use tec_core::port::{PortError, PortErrorKind, chain};
use tonic::{Code, Request, Status};

use super::Reason;

/// The attested end of a connection. Transports add it to the extensions of each request.
///
/// # Security
/// It is trusted: only a transport that verified the evidence may create one.
#[derive(Clone, Debug)]
pub struct Caller {
    ak: PublicKey,
    marker: MarkerState,
}

impl Caller {
    /// The holder of this attestation key, in the cluster that its register names.
    pub fn dangerous_assume(ak: PublicKey, marker: MarkerState) -> Self {
        Self { ak, marker }
    }

    /// Fingerprint of the key.
    pub fn ak(&self) -> Fingerprint {
        self.ak.fingerprint()
    }

    /// The key.
    pub fn key(&self) -> &PublicKey {
        &self.ak
    }

    /// What its register reports about the cluster that it is in.
    pub fn marker(&self) -> MarkerState {
        self.marker
    }

    pub(super) fn of<T>(request: &Request<T>) -> Result<Self, Status> {
        request.extensions().get().cloned().ok_or_else(|| {
            Reason::NotAttested.status(Code::Unauthenticated, "the connection is not attested")
        })
    }
}

/// What a caller learns about a failed port. The cause is for the log.
pub(super) fn refusal(reason: Reason, operation: &'static str, error: &PortError) -> Status {
    tracing::warn!(operation, error = chain(error), "a call failed");
    let code = match error.kind() {
        PortErrorKind::Invalid => Code::InvalidArgument,
        PortErrorKind::Denied => Code::PermissionDenied,
        PortErrorKind::NotFound => Code::NotFound,
        PortErrorKind::Conflict => Code::FailedPrecondition,
        PortErrorKind::Unavailable => Code::Unavailable,
        _ => Code::Internal,
    };
    reason.status(code, operation)
}
