//! Why a change of authority is refused.

use crate::code::Code;
use crate::migrate::{AnchorId, Epoch, Role};
use crate::port::{PortError, PortErrorKind};

/// A change of authority is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The role does not allow it.
    #[error("an anchor in the role {0} cannot do this")]
    Role(Role),
    /// The other anchor belongs to another domain.
    #[error("the anchors belong to different trust domains: {here} and {there}")]
    Domain {
        /// The domain here.
        here: AnchorId,
        /// The domain there.
        there: AnchorId,
    },
    /// The record is paired with another anchor.
    #[error("the anchor is paired with {paired}, not with {other}")]
    Peer {
        /// The anchor that it is paired with.
        paired: AnchorId,
        /// The anchor that was given.
        other: AnchorId,
    },
    /// The epoch does not match.
    #[error("epoch {given} does not match a record at epoch {known}")]
    Epoch {
        /// Epoch in the record.
        known: Epoch,
        /// Epoch that was given.
        given: Epoch,
    },
    /// The transfer is older than one that was accepted before.
    #[error("a later transfer was already restored")]
    Replayed,
    /// The page belongs to a pass that has been superseded.
    #[error("a later copy has superseded this one")]
    Late,
}

impl Refused {
    /// The code that tells users what to do.
    pub fn code(&self) -> Code {
        match self {
            Self::Domain { .. } | Self::Peer { .. } => Code::TrustForeign,
            Self::Replayed => Code::TransferReplayed,
            Self::Role(_) | Self::Epoch { .. } | Self::Late => Code::AuthorityMoved,
        }
    }
}

impl Refused {
    /// The error that a port returns for the refusal.
    pub fn during(self, operation: impl Into<String>) -> PortError {
        PortError::new(PortErrorKind::Conflict, operation).with_code(self.code()).because(self)
    }
}
