//! `node-agent machine`: the ID of this machine.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use tec_core::id::MachineId;

use crate::disk;
use crate::disk::{DiskError, Header};
use crate::rebind::{bound_token, parsed};

/// Arguments of `machine`.
#[derive(Args, Clone, Debug)]
#[non_exhaustive]
pub struct MachineArgs {
    /// Additional LUKS2 devices, such as files, besides all block devices that are bound to key brokers
    pub devices: Vec<PathBuf>,
}

/// The machine whose keys the disks are bound to.
///
/// # Errors
/// [`DiskError`], including when no disk is bound or when the disks belong to several machines.
pub fn machine(args: &MachineArgs) -> Result<MachineId, DiskError> {
    let mut found = BTreeSet::new();
    for disk in disk::bound(&args.devices)? {
        found.extend(of_disk(&disk)?);
    }
    one(&found)
}

fn of_disk(header: &dyn Header) -> Result<Option<MachineId>, DiskError> {
    Ok(parsed(&bound_token(header)?)?.config().path.machine())
}

fn one(found: &BTreeSet<MachineId>) -> Result<MachineId, DiskError> {
    let first = found.first().ok_or(DiskError::NoToken)?;
    if found.len() > 1 {
        let ids: Vec<_> = found.iter().map(MachineId::to_string).collect();
        return Err(DiskError::Machines { ids: ids.join(", ") });
    }
    Ok(*first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::fake::FakeHeader;

    #[test]
    fn disks_of_one_machine_name_it_and_others_do_not() {
        let id = of_disk(&FakeHeader::bound_to("https://kbs:1")).unwrap().unwrap();
        assert_eq!(id.to_string(), "7c9e6679-7425-40de-944b-e07fc1f90ae7");
        assert_eq!(one(&BTreeSet::from([id])).unwrap(), id);
        assert!(matches!(one(&BTreeSet::new()), Err(DiskError::NoToken)));
        let other = "00000000-0000-4000-8000-000000000001".parse().unwrap();
        let both = BTreeSet::from([id, other]);
        assert!(matches!(one(&both), Err(DiskError::Machines { .. })));
    }
}
