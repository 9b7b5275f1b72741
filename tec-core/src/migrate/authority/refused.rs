//! Why a change of authority does not go.

use crate::code::Code;
use crate::migrate::{AnchorId, Epoch, Role};
use crate::port::{PortError, PortErrorKind};

/// A change of authority that does not go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The role does not allow it.
    #[error("an anchor that is {role} cannot do this")]
    Role {
        /// What it is.
        role: Role,
    },
    /// The other anchor belongs to something else.
    #[error("the anchors belong to {here} and {there}, which are not the same trust")]
    Domain {
        /// The domain here.
        here: AnchorId,
        /// The domain there.
        there: AnchorId,
    },
    /// The record is paired with another anchor.
    #[error("the anchor is paired with {paired}, not with {other}")]
    Peer {
        /// Whom it is paired with.
        paired: AnchorId,
        /// Who came.
        other: AnchorId,
    },
    /// The epoch is not the one that fits.
    #[error("epoch {given} does not fit a record at epoch {known}")]
    Epoch {
        /// In the record.
        known: Epoch,
        /// What came.
        given: Epoch,
    },
    /// A transfer is older than one that was taken before.
    #[error("a later transfer was taken before this one")]
    Replayed,
    /// The page belongs to a pass that another one took the place of.
    #[error("another pass began since this one")]
    Late,
}

impl Refused {
    /// The code that tells people what to do.
    pub fn code(&self) -> Code {
        match self {
            Self::Domain { .. } | Self::Peer { .. } => Code::TrustForeign,
            Self::Replayed => Code::TransferReplayed,
            Self::Role { .. } | Self::Epoch { .. } | Self::Late => Code::AuthorityMoved,
        }
    }
}

impl Refused {
    /// The failure of a port that was asked to do it.
    pub fn during(self, operation: impl Into<String>) -> PortError {
        PortError::new(PortErrorKind::Conflict, operation).with_code(self.code()).because(self)
    }
}
