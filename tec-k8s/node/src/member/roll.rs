//! The object with all members: a claim for each, and the disks of those that were removed.
//!
//! ```text
//!   <fingerprint of a key>: {"name":"n3","role":"worker","disk":"…","addresses":["10.0.0.3"]}
//!   disk-<UUID>:            {"name":"n3","role":"worker","key":"…","removed":"2026-11-25T00:00:00Z"}
//! ```
//! A member whose disk also has a line is leaving: its claim stays until everything it had is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::derive::DiskId;
use crate::grant::Claim;
use crate::state::Role;
use crate::ticket::NodeName;
use k8s_openapi::api::core::v1::ConfigMap;
use serde::{Deserialize, Serialize};
use tec_core::ak::Fingerprint;
use tec_core::code::Code;
use tec_core::port::{PortError, PortErrorKind};
use tec_core::time::Timestamp;

/// The object.
pub(super) const NAME: &str = "tec-members";
/// Prefix of keys for removed members; no fingerprint begins with it.
const DISK: &str = "disk-";
/// Maximum size of the object in bytes (Kubernetes, "ConfigMaps"): about two thousand members, or five
/// thousand removed ones.
const ROOM: usize = 1024 * 1024;
/// Maximum length of the line of a removed member: its UUID, a name of 253 bytes, a fingerprint, a time.
const RESERVED: usize = 512;
/// How long the name of a removed member is held: as long as kubelet client certificates are valid, those
/// from a join and those that the controller manager signs by default (`--cluster-signing-duration`), plus a
/// day for clock differences.
const HELD: i64 = 366 * 24 * 60 * 60;

/// A member that was removed. Nobody else may have its disk: the key of the disk follows from its UUID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// Its disk.
    pub disk: DiskId,
    /// Its attestation key.
    pub key: Fingerprint,
    /// The name that it had.
    pub name: NodeName,
    /// Its role.
    pub role: Role,
    /// When it was removed.
    pub removed: Timestamp,
    /// Who else may have its name.
    pub name_use: NameUse,
}

/// Who may have the name of a removed member, besides its own key. The API server accepts its last client
/// certificate until that expires, and knows it by this name alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NameUse {
    /// Nobody, until that client certificate has expired.
    #[default]
    Held,
    /// Everyone: an admin allowed it.
    DangerousFree,
}

impl NameUse {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_held(&self) -> bool {
        *self == Self::Held
    }
}

impl Removed {
    /// Its former claim.
    pub fn claim(&self) -> Claim {
        Claim {
            ak: self.key,
            name: self.name.clone(),
            role: self.role,
            disk: self.disk,
            addresses: BTreeSet::new(),
        }
    }

    /// When all its certificates have expired.
    pub fn held_until(&self) -> Timestamp {
        self.removed.plus_seconds(HELD)
    }
}

/// All current and removed members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roll {
    /// Members.
    pub claims: Vec<Claim>,
    /// Removed members, by their disks.
    pub removed: Vec<Removed>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClaimLine {
    name: String,
    role: Role,
    disk: DiskId,
    /// Earlier versions wrote none.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    addresses: BTreeSet<IpAddr>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RemovedLine {
    name: String,
    role: Role,
    key: Fingerprint,
    removed: Timestamp,
    #[serde(default, skip_serializing_if = "NameUse::is_held")]
    name_use: NameUse,
}

fn malformed(key: &str) -> PortError {
    let operation = format!("read the line {key} of {NAME}");
    PortError::new(PortErrorKind::Internal, operation)
}

impl Roll {
    /// From an object. One malformed line makes the whole object unreadable, because the name or disk that
    /// the line reserves is not known.
    pub(super) fn of(object: &ConfigMap) -> Result<Self, PortError> {
        let mut roll = Self::default();
        for (key, json) in object.data.iter().flatten() {
            let unreadable = |error: serde_json::Error| malformed(key).because(error);
            if let Some(disk) = key.strip_prefix(DISK) {
                let line: RemovedLine = serde_json::from_str(json).map_err(unreadable)?;
                roll.removed.push(Removed {
                    disk: disk.parse().map_err(|error| malformed(key).because(error))?,
                    key: line.key,
                    name: line.name.parse().map_err(|error| malformed(key).because(error))?,
                    role: line.role,
                    removed: line.removed,
                    name_use: line.name_use,
                });
            } else {
                let line: ClaimLine = serde_json::from_str(json).map_err(unreadable)?;
                roll.claims.push(Claim {
                    ak: key.parse().map_err(|error| malformed(key).because(error))?,
                    name: line.name.parse().map_err(|error| malformed(key).because(error))?,
                    role: line.role,
                    disk: line.disk,
                    addresses: line.addresses,
                });
            }
        }
        Ok(roll)
    }

    /// Whether a claim cannot be added.
    pub(super) fn refuses(&self, claim: &Claim, now: Timestamp) -> bool {
        let collides =
            |one: &Claim| one.ak == claim.ak || one.name == claim.name || one.disk == claim.disk;
        let is_taken = self.claims.iter().any(collides);
        is_taken || self.has_removed(claim.disk) || self.holder(claim, now).is_some()
    }

    /// Whether a member with this disk was removed, or is leaving.
    pub fn has_removed(&self, disk: DiskId) -> bool {
        self.removed.iter().any(|one| one.disk == disk)
    }

    /// The removed member whose certificate may still be valid under the name of this claim, which has a
    /// different key and belongs to no member.
    pub(super) fn holder(&self, claim: &Claim, now: Timestamp) -> Option<&Removed> {
        if self.claims.iter().any(|one| one.is_of_same_member(claim)) {
            return None;
        }
        self.removed.iter().find(|one| {
            let is_other = one.name == claim.name && one.key != claim.ak;
            is_other && one.name_use == NameUse::Held && now < one.held_until()
        })
    }

    /// Whether there is room for a claim. Each member must also remain removable.
    pub(super) fn has_room(&self) -> Result<bool, PortError> {
        let lines = self.lines()?;
        let used: usize = lines.iter().map(|(key, line)| key.len() + line.len()).sum();
        Ok(used.saturating_add(self.claims.len().saturating_mul(RESERVED)) <= ROOM)
    }

    pub(super) fn lines(&self) -> Result<BTreeMap<String, String>, PortError> {
        let mut lines = BTreeMap::new();
        for claim in &self.claims {
            let line = ClaimLine {
                name: claim.name.to_string(),
                role: claim.role,
                disk: claim.disk,
                addresses: claim.addresses.clone(),
            };
            lines.insert(claim.ak.to_string(), written(&line, &claim.name)?);
        }
        for one in &self.removed {
            let line = RemovedLine {
                name: one.name.to_string(),
                role: one.role,
                key: one.key,
                removed: one.removed,
                name_use: one.name_use,
            };
            lines.insert(format!("{DISK}{}", one.disk), written(&line, &one.name)?);
        }
        Ok(lines)
    }

    /// Checks that a member may leave: another control plane that is `ready` must stay.
    pub fn check_removal(
        &self,
        claim: &Claim,
        ready: &BTreeSet<NodeName>,
    ) -> Result<(), PortError> {
        let stays = |one: &Claim| {
            one.role == Role::ControlPlane
                && one.name != claim.name
                && ready.contains(&one.name)
                && !self.has_removed(one.disk)
        };
        if claim.role == Role::Worker || self.claims.iter().any(stays) {
            return Ok(());
        }
        let operation = format!("remove {}: no other control plane is Ready and stays", claim.name);
        Err(PortError::new(PortErrorKind::Conflict, operation).with_code(Code::ClusterConflict))
    }

    /// Begins the removal of a member: nobody gets the key of its disk from now on. Repeating it changes
    /// nothing.
    pub(super) fn begin_removal(
        &mut self,
        claim: &Claim,
        ready: &BTreeSet<NodeName>,
        now: Timestamp,
    ) -> Result<(), PortError> {
        if self.has_removed(claim.disk) {
            return Ok(());
        }
        self.check_removal(claim, ready)?;
        self.removed.push(Removed {
            disk: claim.disk,
            key: claim.ak,
            name: claim.name.clone(),
            role: claim.role,
            removed: now,
            name_use: NameUse::Held,
        });
        Ok(())
    }

    /// Removes a member that left. Repeating it changes nothing.
    pub(super) fn end_removal(&mut self, claim: &Claim) {
        self.claims.retain(|one| !one.is_of_same_member(claim));
    }

    /// Lets any key have this name, whatever certificates are valid under it.
    pub(super) fn dangerous_free_name(&mut self, name: &NodeName) {
        for one in self.removed.iter_mut().filter(|one| one.name == *name) {
            one.name_use = NameUse::DangerousFree;
        }
    }
}

/// The registry accepts no more members.
pub(super) fn full() -> PortError {
    let operation = format!("add a member: {NAME} is full");
    PortError::new(PortErrorKind::Unavailable, operation).with_code(Code::BootstrapMembersFull)
}

fn written(line: &impl Serialize, name: &NodeName) -> Result<String, PortError> {
    serde_json::to_string(line).map_err(|error| {
        PortError::new(PortErrorKind::Internal, format!("write the line of {name}")).because(error)
    })
}

#[cfg(test)]
mod tests;
