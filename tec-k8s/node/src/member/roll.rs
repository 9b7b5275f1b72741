//! The object with all members: a claim for each, and the disks of those that were removed.
//!
//! ```text
//!   <fingerprint of a key>: {"name":"n3","role":"worker","disk":"…","addresses":["10.0.0.3"]}
//!   disk-<UUID>:            {"name":"n3","role":"worker","key":"…","removed":"2026-11-25T00:00:00Z"}
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::ConfigMap;
use serde::{Deserialize, Serialize};
use tec_core::ak::Fingerprint;
use tec_core::node::derive::DiskId;
use tec_core::node::grant::Claim;
use tec_core::node::state::Role;
use tec_core::node::ticket::NodeName;
use tec_core::port::{PortError, PortErrorKind};
use tec_core::time::Timestamp;

/// The object. 1 MiB of it (etcd's limit for a request) is room for about five thousand members.
pub(super) const NAME: &str = "tec-members";
/// What keys of removed members begin with; no fingerprint does.
const DISK: &str = "disk-";

/// A member that was removed. Nobody else may have its disk: the key of the disk follows from its UUID.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a record, read whole")]
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
}

impl Removed {
    /// What it had claimed.
    pub fn claim(&self) -> Claim {
        Claim {
            ak: self.key,
            name: self.name.clone(),
            role: self.role,
            disk: self.disk,
            addresses: BTreeSet::new(),
        }
    }
}

/// Everyone who is a member, and who was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "members are these two")]
pub struct Roll {
    /// Members.
    pub claims: Vec<Claim>,
    /// Members that were removed, by their disks.
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
}

fn malformed(key: &str) -> PortError {
    let operation = format!("read the line {key} of {NAME}");
    PortError::new(PortErrorKind::Internal, operation)
}

impl Roll {
    /// As an object has it. One malformed line makes all of it unreadable: whose name or disk it keeps
    /// is not known.
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
    pub(super) fn refuses(&self, claim: &Claim) -> bool {
        let collides =
            |one: &Claim| one.ak == claim.ak || one.name == claim.name || one.disk == claim.disk;
        self.claims.iter().any(collides) || self.has_removed(claim.disk)
    }

    /// Whether a member with this disk was removed.
    pub(super) fn has_removed(&self, disk: DiskId) -> bool {
        self.removed.iter().any(|one| one.disk == disk)
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
            };
            lines.insert(format!("{DISK}{}", one.disk), written(&line, &one.name)?);
        }
        Ok(lines)
    }

    /// A member with this attestation key, whose claim this is, is none any more.
    pub(super) fn remove(&mut self, claim: &Claim, now: Timestamp) {
        self.claims.retain(|one| !one.is_of_same_member(claim));
        if !self.has_removed(claim.disk) {
            self.removed.push(Removed {
                disk: claim.disk,
                key: claim.ak,
                name: claim.name.clone(),
                role: claim.role,
                removed: now,
            });
        }
    }
}

fn written(line: &impl Serialize, name: &NodeName) -> Result<String, PortError> {
    serde_json::to_string(line).map_err(|error| {
        PortError::new(PortErrorKind::Internal, format!("write the line of {name}")).because(error)
    })
}

#[cfg(test)]
mod tests {
    use tec_core::testing::sample;

    use super::*;

    fn claim(number: u8, name: &str) -> Claim {
        Claim {
            ak: sample::public_key(number.into()).fingerprint(),
            name: name.parse().unwrap(),
            role: Role::Worker,
            disk: format!("00000000-0000-0000-0000-0000000000{number:02x}").parse().unwrap(),
            addresses: BTreeSet::from([[10, 0, 0, number].into()]),
        }
    }

    fn read_back(roll: &Roll) -> Roll {
        let data = Some(roll.lines().unwrap());
        Roll::of(&ConfigMap { data, ..ConfigMap::default() }).unwrap()
    }

    #[test]
    fn the_name_and_the_key_of_a_removed_member_are_free_and_its_disk_is_not() {
        let mut roll = Roll { claims: vec![claim(1, "n1"), claim(2, "n2")], removed: Vec::new() };
        roll.remove(&claim(2, "n2"), sample::time(60));
        roll.remove(&claim(2, "n2"), sample::time(90));
        roll.claims.sort_by_key(|one| one.ak);
        assert_eq!(read_back(&roll), roll);
        assert_eq!(roll.removed.len(), 1);
        let reinstalled = Claim { disk: claim(3, "n3").disk, ..claim(2, "n2") };
        assert!(!roll.refuses(&reinstalled), "the same key with a new disk");
        assert!(!roll.refuses(&claim(3, "n2")), "the old name with a new key");
        let thief = Claim { disk: claim(2, "n2").disk, ..claim(3, "n3") };
        assert!(roll.refuses(&thief), "whoever has the UUID of the old disk gets its key");
        assert!(roll.refuses(&claim(4, "n1")));
    }

    #[test]
    fn claims_of_earlier_versions_have_no_addresses_and_a_malformed_line_counts_for_all() {
        let old = r#"{"name":"n1","role":"Worker","disk":"00000000-0000-0000-0000-000000000001"}"#;
        let key = claim(1, "n1").ak.to_string();
        let object = |key: &str, line: &str| ConfigMap {
            data: Some(BTreeMap::from([(key.to_owned(), line.to_owned())])),
            ..ConfigMap::default()
        };
        let roll = Roll::of(&object(&key, &old.replace("Worker", &role()))).unwrap();
        assert_eq!(roll.claims, [Claim { addresses: BTreeSet::new(), ..claim(1, "n1") }]);
        assert!(Roll::of(&object(&key, "{}")).is_err());
        assert!(Roll::of(&object("disk-1", old)).is_err());
    }

    fn role() -> String {
        let json = serde_json::to_string(&Role::Worker).unwrap();
        json.trim_matches('"').to_owned()
    }
}
