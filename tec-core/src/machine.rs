//! A machine as stored in the registry.

use serde::{Deserialize, Serialize};

use crate::fingerprint::Fingerprint;
use crate::id::MachineId;
use crate::time::Timestamp;

/// How a machine was added to the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum RegisteredBy {
    /// Its first boot fetched the Ignition config.
    FirstBoot,
    /// An admin added it manually.
    Admin,
    /// It is a node that a join service admitted.
    JoinService,
}

/// State of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum MachineState {
    /// Registered, no attestation key yet; expires unless an admin created it.
    Unclaimed,
    /// Bound to an attestation key; may attest.
    Active,
    /// Set aside by an admin until released: it may attest, but gets no disk key and binds no
    /// attestation key.
    Quarantined,
    /// Revoked by an admin, permanently; can no longer attest.
    Revoked,
    /// Decommissioned in an orderly way, permanently; can no longer attest.
    Retired,
}

impl MachineState {
    /// Whether an attestation key may be bound to the machine.
    pub fn takes_keys(self) -> bool {
        match self {
            Self::Unclaimed | Self::Active => true,
            Self::Quarantined | Self::Revoked | Self::Retired => false,
        }
    }

    /// Whether no admin can put the machine back into service.
    pub fn is_final(self) -> bool {
        match self {
            Self::Unclaimed | Self::Active | Self::Quarantined => false,
            Self::Revoked | Self::Retired => true,
        }
    }

    /// How strictly the machine is out of service; greater is stricter. Unclaimed and active
    /// machines are in service.
    pub fn strictness(self) -> u8 {
        match self {
            Self::Unclaimed | Self::Active => 0,
            Self::Quarantined => 1,
            Self::Retired => 2,
            Self::Revoked => 3,
        }
    }
}

/// A change of a machine's state by an admin, other than revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineChange {
    /// Set it aside until it is released.
    Quarantine,
    /// Lift the quarantine.
    Release,
    /// Decommission it, permanently.
    Retire,
}

/// The attestation key that a machine is bound to, or was bound to last. The record outlives the
/// key's revocation: a machine that once had a key has a disk that no other machine's key may open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LastBinding {
    /// The key.
    pub ak: Fingerprint,
    /// Endorsement key proven to be in the same TPM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ek: Option<Fingerprint>,
}

impl LastBinding {
    /// Creates a binding.
    pub fn new(ak: Fingerprint, ek: Option<Fingerprint>) -> Self {
        Self { ak, ek }
    }
}

/// One registered machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Machine {
    /// Its identifier.
    pub id: MachineId,
    /// How it was registered.
    pub registered_by: RegisteredBy,
    /// When it was registered.
    pub registered_at: Timestamp,
    /// Its state.
    pub state: MachineState,
    /// The key that it has, or had last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<LastBinding>,
}

impl Machine {
    /// A machine that has just been registered.
    pub fn unclaimed(id: MachineId, registered_by: RegisteredBy, registered_at: Timestamp) -> Self {
        Self { id, registered_by, registered_at, state: MachineState::Unclaimed, binding: None }
    }

    /// The state after a change; `None` if the change is not allowed: revoked and retired machines
    /// keep their state.
    pub fn state_after(&self, change: MachineChange) -> Option<MachineState> {
        use MachineChange::{Quarantine, Release, Retire};
        use MachineState::{Active, Quarantined, Retired, Revoked, Unclaimed};
        match (self.state, change) {
            (Revoked, _) | (Retired, Quarantine | Release) => None,
            (_, Retire) => Some(Retired),
            (_, Quarantine) => Some(Quarantined),
            (Quarantined, Release) if self.binding.is_some() => Some(Active),
            (Quarantined, Release) => Some(Unclaimed),
            (Unclaimed | Active, Release) => Some(self.state),
        }
    }

    /// Whether an attestation key was ever bound to it.
    pub fn was_bound(&self) -> bool {
        self.state == MachineState::Active || self.binding.is_some()
    }
}
