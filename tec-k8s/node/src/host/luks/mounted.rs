//! Whether a directory is on the mapping of a disk.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::derive::DiskId;
use rustix::fs::{major, minor};

/// Whether `directory`, or its nearest existing ancestor, is on the mapping of a LUKS2 disk with this ID.
pub fn lies_on(directory: &Path, disk: &DiskId) -> io::Result<bool> {
    let nearest = directory.ancestors().find(|one| one.exists());
    let device = fs::metadata(nearest.unwrap_or(directory))?.dev();
    let mapped = format!("/sys/dev/block/{}:{}/dm/uuid", major(device), minor(device));
    match fs::read_to_string(PathBuf::from(mapped)) {
        Ok(uuid) => Ok(is_mapping(&uuid, disk)),
        // Not a device-mapper device, or not a block device at all.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// `CRYPT-LUKS2-<UUID without hyphens>-<name>`, which libcryptsetup assigns to its mappings.
fn is_mapping(uuid: &str, disk: &DiskId) -> bool {
    let bare = disk.to_string().replace('-', "");
    uuid.strip_prefix("CRYPT-LUKS2-")
        .and_then(|rest| rest.split_once('-'))
        .is_some_and(|(found, name)| found == bare && !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_mapping_of_the_very_disk_is_one() {
        let disk: DiskId = "0190a2f0-0000-7000-8000-000000000001".parse().unwrap();
        assert!(is_mapping("CRYPT-LUKS2-0190a2f0000070008000000000000001-state\n", &disk));
        for other in [
            "CRYPT-LUKS2-0190a2f0000070008000000000000002-state\n",
            "CRYPT-LUKS1-0190a2f0000070008000000000000001-state\n",
            "CRYPT-SUBDEV-0190a2f0000070008000000000000001-state_dif\n",
            "LVM-0190a2f0000070008000000000000001\n",
            "",
        ] {
            assert!(!is_mapping(other, &disk), "{other}");
        }
    }

    #[test]
    fn a_directory_of_this_host_lies_on_no_disk_of_a_cluster() {
        let disk: DiskId = "0190a2f0-0000-7000-8000-000000000001".parse().unwrap();
        let directory = tempfile::tempdir().unwrap();
        assert!(!lies_on(&directory.path().join("not/there"), &disk).unwrap());
        assert!(!lies_on(Path::new("/proc"), &disk).unwrap());
    }
}
