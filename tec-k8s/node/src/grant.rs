//! Decides who may get a ticket: a node's claims are bound to the key that proved them.
//!
//! A node states its name, its role and the ID of its disk. The first claim of an attestation key
//! is permanent (trust on first use), and no other key can claim any of the three: a compromised
//! worker gets neither the keys of the control plane nor those of another disk.

use core::net::IpAddr;
use std::collections::BTreeSet;

use tec_core::ak::Fingerprint;
use tec_core::digest::Sha256Digest;
use tec_core::id::MachineId;

use super::derive::DiskId;
use super::state::Role;
use super::ticket::NodeName;

/// A node's claims, and the key that proved them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Attestation key.
    pub ak: Fingerprint,
    /// Name, from the certificate request.
    pub name: NodeName,
    /// Role.
    pub role: Role,
    /// State disk.
    pub disk: DiskId,
    /// Addresses that its serving certificates may have; empty if an earlier version recorded the
    /// claim.
    pub addresses: BTreeSet<IpAddr>,
}

/// Label for the machine of a member.
const MACHINE: &[u8] = b"tec-member-machine/1\0";

impl Claim {
    /// Whether the other claim belongs to the same member: addresses may change, the rest is
    /// permanent.
    pub fn is_of_same_member(&self, other: &Self) -> bool {
        let of = |one: &Self| (one.ak, one.role, one.disk);
        of(self) == of(other) && self.name == other.name
    }

    /// The machine ID of the member.
    pub fn machine_id(&self) -> MachineId {
        member_machine(self.disk, &self.ak)
    }
}

/// The ID of the machine with this disk and attestation key: the first 16 bytes of SHA-256 over a
/// label, the UUID of the disk and the fingerprint of the key, as a UUID of version 8 (RFC 9562,
/// section 5.8). No other machine has it: IDs from registration are random, of version 4.
pub fn member_machine(disk: DiskId, ak: &Fingerprint) -> MachineId {
    let disk = disk.to_string();
    let digest = Sha256Digest::of([MACHINE, disk.as_bytes(), b"\0", ak.as_bytes()].concat());
    let mut bytes = [0; 16];
    for (to, from) in bytes.iter_mut().zip(digest.as_bytes()) {
        *to = *from;
    }
    uuid::Builder::from_custom_bytes(bytes).into_uuid().into()
}

/// Why a claim is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrantError {
    /// The key made another claim before.
    #[error("this key belongs to a node with a different name, role or disk")]
    KeyKnown,
    /// Another key has this name.
    #[error("the name belongs to another node")]
    NameTaken,
    /// Another key has this disk.
    #[error("the disk belongs to another node")]
    DiskTaken,
    /// No policy allows this key to be a control plane.
    #[error("this node may not be a control plane")]
    NotControlPlane,
    /// The node that rejoins never joined.
    #[error("this node never joined")]
    Unknown,
}

/// Which keys may be control planes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ControlPlanes {
    /// None except existing members.
    Closed,
    /// The listed keys.
    Listed(BTreeSet<Fingerprint>),
    /// Any key that attests successfully.
    ///
    /// # Security
    /// Every machine that boots an approved image can then obtain the keys of the cluster CA.
    DangerousAny,
}

/// Checks a claim against those granted before. A new claim must be recorded by compare-and-swap
/// before the ticket is issued.
///
/// # Errors
/// [`GrantError`] with the first reason.
pub fn grant(
    claim: &Claim,
    granted: &[Claim],
    control_planes: &ControlPlanes,
) -> Result<Granted, GrantError> {
    if let Some(before) = granted.iter().find(|one| one.ak == claim.ak) {
        return if before.is_of_same_member(claim) {
            Ok(Granted::Again)
        } else {
            Err(GrantError::KeyKnown)
        };
    }
    if granted.iter().any(|one| one.name == claim.name) {
        return Err(GrantError::NameTaken);
    }
    if granted.iter().any(|one| one.disk == claim.disk) {
        return Err(GrantError::DiskTaken);
    }
    let allowed = match (claim.role, control_planes) {
        (Role::Worker, _) | (_, ControlPlanes::DangerousAny) => true,
        (Role::ControlPlane, ControlPlanes::Closed) => false,
        (Role::ControlPlane, ControlPlanes::Listed(keys)) => keys.contains(&claim.ak),
    };
    if allowed { Ok(Granted::New) } else { Err(GrantError::NotControlPlane) }
}

/// Checks a rejoin and returns its claim: only the key that joined with this disk is accepted.
pub fn grant_rejoin(
    ak: Fingerprint,
    disk: DiskId,
    granted: &[Claim],
) -> Result<&Claim, GrantError> {
    match granted.iter().find(|one| one.ak == ak) {
        Some(before) if before.disk == disk => Ok(before),
        Some(_) => Err(GrantError::DiskTaken),
        None => Err(GrantError::Unknown),
    }
}

/// An accepted claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granted {
    /// It must be recorded first.
    New,
    /// A member repeats its claim.
    Again,
}

#[cfg(test)]
mod tests {
    use super::*;
    use tec_core::testing::sample;

    fn claim(key: u64, name: &str, role: Role, disk: u8) -> Claim {
        Claim {
            ak: sample::public_key(key).fingerprint(),
            name: name.parse().unwrap(),
            role,
            disk: format!("00000000-0000-0000-0000-0000000000{disk:02x}").parse().unwrap(),
            addresses: BTreeSet::new(),
        }
    }

    #[test]
    fn what_a_key_claimed_first_counts_for_good() {
        let first = claim(1, "w-1", Role::Worker, 1);
        let known = [first.clone()];
        let judge = |claim: &Claim| grant(claim, &known, &ControlPlanes::DangerousAny);
        assert_eq!(judge(&first), Ok(Granted::Again));
        let moved = Claim { addresses: BTreeSet::from([[10, 0, 0, 1].into()]), ..first.clone() };
        assert_eq!(judge(&moved), Ok(Granted::Again));
        for other in [
            claim(1, "w-2", Role::Worker, 1),
            claim(1, "w-1", Role::ControlPlane, 1),
            claim(1, "w-1", Role::Worker, 2),
        ] {
            assert_eq!(judge(&other), Err(GrantError::KeyKnown));
        }
    }

    #[test]
    fn another_key_gets_neither_name_nor_disk_of_a_member() {
        let known = [claim(1, "w-1", Role::Worker, 1)];
        let judge = |claim: &Claim| grant(claim, &known, &ControlPlanes::Closed);
        assert_eq!(judge(&claim(2, "w-2", Role::Worker, 2)), Ok(Granted::New));
        let name = claim(2, "w-1", Role::Worker, 2);
        assert_eq!(judge(&name), Err(GrantError::NameTaken));
        let disk = claim(2, "w-2", Role::Worker, 1);
        assert_eq!(judge(&disk), Err(GrantError::DiskTaken));
        assert_eq!(grant_rejoin(disk.ak, disk.disk, &known), Err(GrantError::Unknown));
        assert_eq!(grant_rejoin(known[0].ak, known[0].disk, &known), Ok(&known[0]));
    }

    #[test]
    fn the_machine_of_a_member_has_an_id_of_its_own() {
        let one = claim(1, "w-1", Role::Worker, 1);
        let id = one.machine_id();
        assert_eq!(id.as_uuid().get_version_num(), 8);
        assert_ne!(id.to_string(), one.disk.to_string());
        assert_eq!(claim(1, "other", Role::ControlPlane, 1).machine_id(), id);
        assert_ne!(claim(2, "w-1", Role::Worker, 1).machine_id(), id);
        assert_ne!(claim(1, "w-1", Role::Worker, 2).machine_id(), id);
    }

    #[test]
    fn a_control_plane_needs_a_policy_that_names_it() {
        let wanted = claim(1, "c-1", Role::ControlPlane, 1);
        let judge = |policy: &ControlPlanes| grant(&wanted, &[], policy);
        let refused = Err(GrantError::NotControlPlane);
        assert_eq!(judge(&ControlPlanes::Closed), refused);
        let listed =
            |key| ControlPlanes::Listed(BTreeSet::from([sample::public_key(key).fingerprint()]));
        assert_eq!(judge(&listed(2)), refused);
        assert_eq!(judge(&listed(1)), Ok(Granted::New));
    }
}
