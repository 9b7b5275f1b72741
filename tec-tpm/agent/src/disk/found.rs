//! The disks of this machine, as `lsblk` lists them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use super::stack::Blocks;
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

/// Checks the headers of all disks of this machine that Clevis opens, before a passphrase is used.
///
/// # Errors
/// [`DiskError::Unsafe`]; also if they cannot be read.
pub(crate) fn check_all() -> Result<(), DiskError> {
    let devices = Blocks::default().devices();
    check(devices.map_err(|error| DiskError::List(error.to_string()))?)
}

fn check(devices: Vec<PathBuf>) -> Result<(), DiskError> {
    for device in devices {
        match Cryptsetup::new(device).tokens() {
            // It is not a LUKS2 disk, or one that does not open either.
            Ok(_) | Err(DiskError::Failed { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn has_no_token(device: &Path) -> bool {
    Cryptsetup::new(device).tokens().is_ok_and(|tokens| tokens.is_empty())
}

/// LUKS2 devices.
fn listed() -> Result<Vec<PathBuf>, DiskError> {
    let failed = |reason: String| DiskError::List(reason);
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
    use std::io::Write as _;

    use super::super::token::CLEVIS;
    use super::*;

    #[test]
    fn a_device_whose_header_cannot_be_read_may_have_a_token() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(!has_no_token(file.path()));
    }

    /// A file that `cryptsetup` takes for a LUKS2 disk, with one token of this type.
    fn disk(directory: &Path, name: &str, token: &str) -> PathBuf {
        let path = directory.join(name);
        fs::File::create(&path).unwrap().set_len(20 << 20).unwrap();
        let run = |arguments: &[&str], input: &str| {
            let mut command = Command::new("cryptsetup");
            command.args(arguments).arg(&path).stdin(std::process::Stdio::piped());
            let mut child = command.spawn().unwrap();
            child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
            assert!(child.wait().unwrap().success(), "{arguments:?}");
        };
        let quick = ["--batch-mode", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
        run(
            &[&["luksFormat", "--type", "luks2", "--key-file", "-"][..], &quick].concat(),
            "secret",
        );
        let token = format!(r#"{{"type":"{token}","keyslots":["0"]}}"#);
        run(&["token", "import", "--json-file", "-"], &token);
        path
    }

    #[test]
    fn a_bound_disk_whose_header_does_not_protect_it_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let whole = disk(directory.path(), "whole", CLEVIS);
        let half = disk(directory.path(), "half", CLEVIS);
        let foreign = disk(directory.path(), "foreign", "another");
        let plain = directory.path().join("plain");
        fs::write(&plain, "no header").unwrap();
        check(vec![whole.clone(), half.clone(), foreign.clone(), plain.clone()]).unwrap();
        for file in [&half, &foreign] {
            // As `cryptsetup reencrypt --init-only` leaves it: with a second segment, and a requirement.
            let mut command = Command::new("cryptsetup");
            command.args(["reencrypt", "--init-only", "--batch-mode", "--key-file", "-"]).arg(file);
            let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
            child.stdin.take().unwrap().write_all(b"secret").unwrap();
            assert!(child.wait().unwrap().success());
        }
        check(vec![whole.clone(), foreign.clone()]).unwrap();
        let refused = check(vec![whole, plain, half.clone()]);
        assert!(matches!(refused, Err(DiskError::Unsafe { device, .. }) if device == half));
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
