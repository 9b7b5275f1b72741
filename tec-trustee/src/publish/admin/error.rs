//! What can go wrong with the admin API.

use std::fmt;

use tec_core::endpoint::BaseUrl;
use tec_core::port::{PortError, PortErrorKind};

use crate::client::{CallError, SetupError};
use crate::wire::ErrorKind;

/// The admin API cannot be used at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminSetupError {
    /// Disk keys and tokens would travel for everybody to read.
    #[error("{server} is plain HTTP on another machine; disk keys need https")]
    PlainHttp {
        /// Which server.
        server: BaseUrl,
    },
    /// The HTTP client cannot be set up.
    #[error("set up the admin API")]
    Client(#[source] SetupError),
}

/// A call of the admin API failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// The server says no. All refusals have the same two statuses; the type tells them apart.
    #[error("{server} refuses: {kind}: {detail}")]
    Refused {
        /// Which server.
        server: BaseUrl,
        /// What sort of refusal.
        kind: ErrorKind,
        /// The server's words, at most 512 characters.
        detail: String,
    },
    /// The body is larger than the server takes.
    #[error("{server} takes no body of this size")]
    TooLarge {
        /// Which server.
        server: BaseUrl,
    },
    /// The server gives no answer that says anything.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl AdminError {
    /// What sort of failure. What a restart, a proxy in between or a torn file may cause is worth
    /// another try; a token or a policy that is refused is not.
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
            Self::TooLarge { .. } => PortErrorKind::Invalid,
            Self::Call(_) => PortErrorKind::Unavailable,
        }
    }

    /// As the failure of a port that was asked about `what`.
    pub(super) fn of(self, what: impl fmt::Display) -> PortError {
        PortError::new(self.kind(), format!("publish {what}")).because(self)
    }
}
