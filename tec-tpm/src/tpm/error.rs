//! What can go wrong with a TPM.

use std::error::Error;

use tec_core::code::Code;
use tec_core::pcr::PcrIndex;
use tec_core::port::{PortError, PortErrorKind};

use crate::ak::{AkError, AkHandle};
use crate::public::PublicError;
use crate::quote::QuoteError;
use crate::wire::WireError;

/// A TPM operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TpmError {
    /// The configuration string does not name a way to reach a TPM.
    #[error("{tcti:?} is not one of {forms}")]
    Tcti {
        /// What was given.
        tcti: String,
        /// What is accepted.
        forms: &'static str,
    },
    /// There is no TPM, or it is in use.
    #[error("cannot open the TPM at {tcti:?}")]
    Open {
        /// The configuration string.
        tcti: String,
        /// The cause.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// A command failed.
    #[error("cannot {operation}")]
    Command {
        /// The attempted operation.
        operation: &'static str,
        /// The cause.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The TPM temporarily refuses password-protected keys, after too many wrong passwords.
    #[error("cannot {0}: the TPM is in lockout")]
    Lockout(&'static str),
    /// Another object is at the handle.
    #[error("the handle {handle} holds an object other than the expected attestation key")]
    HandleOccupied {
        /// The handle.
        handle: AkHandle,
        /// What is wrong with the object; `None` if it is an attestation key of another algorithm.
        #[source]
        source: Option<AkError>,
    },
    /// No object is at the handle.
    #[error("there is no attestation key at the handle {0}")]
    NoAk(AkHandle),
    /// A public area of the TPM cannot be read.
    #[error("the TPM describes a key in an unknown format")]
    Public(#[source] PublicError),
    /// The TPM has no SHA-256 bank, or not all registers in it.
    #[error("PCR {0} of the SHA-256 bank cannot be read")]
    Bank(PcrIndex),
    /// The TPM's quote does not verify, or registers did not stop changing.
    #[error("the TPM's own quote does not verify")]
    Quote(#[source] QuoteError),
    /// The challenge is not a TPM structure.
    #[error("the challenge is malformed")]
    Challenge(#[source] WireError),
    /// The challenge is not for this TPM and this attestation key.
    #[error("the TPM refuses the challenge")]
    ChallengeRefused(#[source] Box<dyn Error + Send + Sync>),
}

impl From<TpmError> for PortError {
    fn from(error: TpmError) -> Self {
        let (kind, code) = match &error {
            TpmError::HandleOccupied { .. } => (PortErrorKind::Conflict, Code::NodeHandle),
            TpmError::Lockout(_) => (PortErrorKind::Unavailable, Code::NodeLockout),
            TpmError::NoAk(_) => (PortErrorKind::NotFound, Code::NodeTpm),
            TpmError::Tcti { .. } | TpmError::Challenge(_) => {
                (PortErrorKind::Invalid, Code::NodeTpm)
            }
            TpmError::ChallengeRefused(_) => (PortErrorKind::Denied, Code::NodeTpm),
            TpmError::Public(_) | TpmError::Bank(_) => (PortErrorKind::Internal, Code::NodeTpm),
            TpmError::Open { .. } | TpmError::Command { .. } | TpmError::Quote(_) => {
                (PortErrorKind::Unavailable, Code::NodeTpm)
            }
        };
        Self::new(kind, "use the TPM").because(error).with_code(code)
    }
}
