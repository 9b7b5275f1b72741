//! A machine as the registry knows it.

use serde::{Deserialize, Serialize};

use crate::fingerprint::Fingerprint;
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

/// The attestation key that a machine is bound to, or was bound to last. It outlives the key's
/// revocation: a machine that once had a key has a disk that somebody else's key must not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LastBinding {
    /// The key.
    pub ak: Fingerprint,
    /// Endorsement key that was proven to live in the same TPM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ek: Option<Fingerprint>,
}

impl LastBinding {
    /// A binding.
    pub fn new(ak: Fingerprint, ek: Option<Fingerprint>) -> Self {
        Self { ak, ek }
    }
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
    /// The key that it has or had last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<LastBinding>,
}

impl Machine {
    /// A machine that has just been registered.
    pub fn unclaimed(id: MachineId, registered_by: RegisteredBy, registered_at: Timestamp) -> Self {
        Self { id, registered_by, registered_at, state: MachineState::Unclaimed, binding: None }
    }

    /// Whether an attestation key was ever bound to it.
    pub fn was_bound(&self) -> bool {
        self.state == MachineState::Active || self.binding.is_some()
    }
}
