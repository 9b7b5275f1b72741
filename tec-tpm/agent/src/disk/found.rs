//! The disks of this machine, as `lsblk` lists them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use super::{Cryptsetup, DiskError, Header as _};

/// Columns of lsblk(8).
const COLUMNS: &str = "PATH,FSTYPE,FSVER";
/// The name that `lsblk` has for a LUKS header.
const LUKS: &str = "crypto_LUKS";

#[derive(Deserialize)]
struct Listing {
    blockdevices: Vec<Listed>,
}

#[derive(Deserialize)]
struct Listed {
    path: PathBuf,
    fstype: Option<String>,
    fsver: Option<String>,
}

/// The given devices, and every LUKS2 device of the machine with a token of the pin. A device whose header
/// cannot be read may have a token, so it is included and fails where it is used.
///
/// # Errors
/// [`DiskError`] if the devices cannot be listed.
pub fn bound(given: &[PathBuf]) -> Result<Vec<Cryptsetup>, DiskError> {
    let canonical = |path: &PathBuf| fs::canonicalize(path).unwrap_or_else(|_| path.clone());
    let mut devices: Vec<PathBuf> = given.iter().map(canonical).collect();
    for device in listed()?.iter().map(canonical) {
        if !devices.contains(&device) && !has_no_token(&device) {
            devices.push(device);
        }
    }
    Ok(devices.into_iter().map(Cryptsetup::new).collect())
}

fn has_no_token(device: &Path) -> bool {
    Cryptsetup::new(device).tokens().is_ok_and(|tokens| tokens.is_empty())
}

/// LUKS2 devices.
fn listed() -> Result<Vec<PathBuf>, DiskError> {
    let failed = |reason: String| DiskError::List { reason };
    let mut command = Command::new("lsblk");
    let command = command.args(["--json", "--list", "--output", COLUMNS]).env("LC_ALL", "C");
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    parse(&output.stdout).map_err(|error| failed(error.to_string()))
}

/// The pin supports only LUKS2. If `lsblk` reports no version, it may be 2.
fn parse(listing: &[u8]) -> Result<Vec<PathBuf>, serde_json::Error> {
    let listing: Listing = serde_json::from_slice(listing)?;
    let mut devices = listing.blockdevices;
    devices.retain(|device| {
        device.fstype.as_deref() == Some(LUKS) && device.fsver.as_deref() != Some("1")
    });
    Ok(devices.into_iter().map(|device| device.path).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_whose_header_cannot_be_read_may_have_a_token() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(!has_no_token(file.path()));
    }

    #[test]
    fn luks2_devices_are_taken_and_others_left() {
        let listing = br#"{"blockdevices": [
            {"path": "/dev/vda", "fstype": null, "fsver": null},
            {"path": "/dev/vda1", "fstype": "ext4", "fsver": "1.0"},
            {"path": "/dev/vda2", "fstype": "crypto_LUKS", "fsver": "1"},
            {"path": "/dev/vda3", "fstype": "crypto_LUKS", "fsver": "2"},
            {"path": "/dev/vdb", "fstype": "crypto_LUKS", "fsver": null}]}"#;
        let expected = ["/dev/vda3", "/dev/vdb"].map(PathBuf::from);
        assert_eq!(parse(listing).unwrap(), expected);
        assert!(parse(b"NAME").is_err());
    }
}
