//! A machine as the registry knows it.

use serde::Deserialize;
use serde::Serialize;

use crate::id::MachineId;
use crate::time::Timestamp;

/// How a machine came into the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum RegisteredBy {
    /// Its first boot fetched the Ignition config.
    FirstBoot,
    /// An admin added it by hand.
    Admin,
    /// It is a node that a join service admitted.
    JoinService,
}

/// Where a machine stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum MachineState {
    /// Registered, no attestation key yet; expires unless an admin made it.
    Unclaimed,
    /// Bound to an attestation key; may attest.
    Active,
    /// Taken back by an admin; attests no more.
    Revoked,
}

/// One registered machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Machine {
    /// Its identity.
    pub id: MachineId,
    /// How it was registered.
    pub registered_by: RegisteredBy,
    /// When it was registered.
    pub registered_at: Timestamp,
    /// Where it stands.
    pub state: MachineState,
}

impl Machine {
    /// A machine that has just been registered.
    pub fn unclaimed(id: MachineId, registered_by: RegisteredBy, registered_at: Timestamp) -> Self {
        Self {
            id,
            registered_by,
            registered_at,
            state: MachineState::Unclaimed,
        }
    }
}
