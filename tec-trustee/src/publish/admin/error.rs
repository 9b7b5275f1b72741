//! Errors of the admin API.

use std::fmt;

use tec_core::endpoint::BaseUrl;
use tec_core::port::{PortError, PortErrorKind};

use crate::client::{CallError, SetupError};
use crate::wire::ErrorKind;

/// The admin API cannot be used at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminSetupError {
    /// Plain HTTP would let anyone on the network read disk keys and tokens.
    #[error("{0} is not on this machine and uses plain HTTP; disk keys require https")]
    PlainHttp(BaseUrl),
    /// The HTTP client cannot be set up.
    #[error("cannot set up the admin API")]
    Client(#[source] SetupError),
}

/// A call of the admin API failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// The server refused. All refusals share the same two statuses; the type distinguishes them.
    #[error("{server} refuses: {kind}: {detail}")]
    Refused {
        /// The server.
        server: BaseUrl,
        /// Type of refusal.
        kind: ErrorKind,
        /// The server's message, at most 512 characters.
        detail: String,
    },
    /// The body is larger than the server accepts.
    #[error("{0} does not accept a body of this size")]
    TooLarge(BaseUrl),
    /// The server gave no usable answer.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl AdminError {
    /// Kind of failure. Failures that a restart, an intermediate proxy or a torn file may cause are worth a
    /// retry; a refused token or policy is not.
    pub fn kind(&self) -> PortErrorKind {
        match self {
            Self::Refused { kind, .. } => match kind {
                ErrorKind::AdminAuthAccess
                | ErrorKind::TokenNotFound
                | ErrorKind::TokenVerifierError
                | ErrorKind::PolicyDeny => PortErrorKind::Denied,
                ErrorKind::ParsePolicyError
                | ErrorKind::SerdeError
                | ErrorKind::PluginNotFound
                | ErrorKind::InvalidRequestPath => PortErrorKind::Invalid,
                _ => PortErrorKind::Unavailable,
            },
            Self::TooLarge(_) => PortErrorKind::Invalid,
            Self::Call(_) => PortErrorKind::Unavailable,
        }
    }

    /// The error as a port failure of an operation on `what`.
    pub(super) fn of(self, what: impl fmt::Display) -> PortError {
        PortError::new(self.kind(), format!("publish {what}")).because(self)
    }
}
