//! The roles of an anchor, and what it may do in each.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{AnchorId, Epoch};
use crate::code::Code;
use crate::machine::MachineChange;
use crate::port::{PortError, PortErrorKind};

/// The current role of an anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Role {
    /// The authority: approves, generates keys and releases them.
    Active,
    /// Adopts the contents of another anchor, and serves no nodes yet.
    Standby,
    /// Gave up the authority: releases the keys that it has, and approves nothing.
    ServeOnly,
    /// No longer serves nodes, and names the anchor that does.
    Forward,
    /// Its keys are shredded; its audit log remains.
    Retired,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// What an anchor is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Deed {
    /// Register a machine or lift its quarantine, store or bind an attestation key, generate a disk
    /// key, approve an image.
    Admit,
    /// Release a disk key.
    Release,
    /// Revoke a machine, a key or an image; quarantine or retire a machine.
    ShutOut,
    /// Remove a machine with its keys.
    Remove,
}

impl Deed {
    /// The deed that a change of a machine's state requires.
    pub fn of(change: MachineChange) -> Self {
        match change {
            MachineChange::Release => Self::Admit,
            MachineChange::Quarantine | MachineChange::Retire => Self::ShutOut,
        }
    }
}

impl fmt::Display for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Admit => "approve",
            Self::Release => "release keys",
            Self::ShutOut => "revoke",
            Self::Remove => "remove",
        })
    }
}

/// The anchor may not do this in its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this trust anchor is {role} at epoch {epoch} and may not {deed}{}", after(*peer))]
#[non_exhaustive]
pub struct NoAuthority {
    /// Its role.
    pub role: Role,
    /// Since which epoch it has this role.
    pub epoch: Epoch,
    /// What it was asked to do.
    pub deed: Deed,
    /// The anchor that may, if known.
    pub peer: Option<AnchorId>,
}

fn after(peer: Option<AnchorId>) -> String {
    peer.map(|peer| format!("; ask anchor {peer}")).unwrap_or_default()
}

impl NoAuthority {
    /// The code that tells users what to do.
    pub fn code(&self) -> Code {
        match self.role {
            Role::Active | Role::ServeOnly => Code::AuthorityElsewhere,
            Role::Standby => Code::AnchorStandsBy,
            Role::Forward | Role::Retired => Code::AnchorReplaced,
        }
    }
}

impl NoAuthority {
    /// The error that a port returns for the refusal.
    pub fn during(self, operation: impl Into<String>) -> PortError {
        PortError::new(PortErrorKind::Denied, operation).with_code(self.code()).because(self)
    }
}
