//! The pins of this machine's disks: the machine whose keys they need, and its key brokers.

use std::collections::BTreeSet;
use std::path::PathBuf;

use tec_core::endpoint::Endpoint;
use tec_core::id::MachineId;
use tec_core::ignition::HeaderConfig;

use crate::disk;
use crate::disk::{DiskError, Header};
use crate::rebind::{bound_token, parsed};

/// The machine whose keys the disks are bound to: all disks that are bound to key brokers, and the given devices.
///
/// # Errors
/// [`DiskError`], including when no disk is bound or when the disks belong to several machines.
pub fn machine(devices: &[PathBuf]) -> Result<MachineId, DiskError> {
    one(&Pinned::read(devices)?.machines)
}

fn one(found: &BTreeSet<MachineId>) -> Result<MachineId, DiskError> {
    let first = found.first().ok_or(DiskError::NoToken)?;
    if found.len() > 1 {
        let ids: Vec<_> = found.iter().map(MachineId::to_string).collect();
        return Err(DiskError::Machines(ids.join(", ")));
    }
    Ok(*first)
}

/// The key brokers in the pins of all disks, and the machines that the keys belong to.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Pinned {
    /// The key brokers, each once.
    pub servers: Vec<Endpoint>,
    machines: BTreeSet<MachineId>,
}

impl Pinned {
    /// Reads them from all disks that are bound to key brokers, and the given devices.
    pub fn read(devices: &[PathBuf]) -> Result<Self, DiskError> {
        let mut pinned = Self::default();
        for disk in disk::bound(devices)? {
            pinned.add(parsed(&bound_token(&disk as &dyn Header)?)?.config());
        }
        Ok(pinned)
    }

    fn add(&mut self, config: &HeaderConfig) {
        for server in &config.servers {
            if !self.servers.contains(server) {
                self.servers.push(server.clone());
            }
        }
        self.machines.extend(config.path.machine());
    }

    /// The machine, unless there are several.
    pub fn machine(&self) -> Option<MachineId> {
        one(&self.machines).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::tests::fake::FakeHeader;

    const ID: &str = "7c9e6679-7425-40de-944b-e07fc1f90ae7";

    #[test]
    fn servers_of_several_disks_are_asked_once_and_two_machines_are_none() {
        let mut pinned = Pinned::default();
        assert!(matches!(one(&pinned.machines), Err(DiskError::NoToken)));
        for url in ["https://a:1", "https://a:1", "https://b:1"] {
            let token = bound_token(&FakeHeader::bound_to(url)).unwrap();
            pinned.add(parsed(&token).unwrap().config());
        }
        assert_eq!(pinned.servers.len(), 2);
        assert_eq!(pinned.machine(), Some(ID.parse().unwrap()));
        pinned.machines.insert("00000000-0000-4000-8000-000000000001".parse().unwrap());
        assert!(matches!(one(&pinned.machines), Err(DiskError::Machines(_))));
        assert_eq!(pinned.machine(), None);
    }
}
