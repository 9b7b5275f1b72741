//! The device below a state disk: whether it can be one, and what a killed cryptsetup left on it.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::{fs, io};

use rustix::fs::{major, minor};
use tec_core::code::Code;
use tec_core::port::{PortError, PortErrorKind};

use super::LuksDisk;
use crate::host::directory::blocking;

/// Minimum size of a state disk: LUKS2 header (16 MiB), integrity tags and a file system.
const SMALLEST: u64 = 64 * MIB;
const MIB: u64 = 1024 * 1024;
/// Offset of the last sector of a state disk, from its end.
const LAST_SECTOR: i64 = -4096;
/// `cryptsetup luksFormat` uses this prefix plus its process ID, or the disk's ID, as the name of the mapping
/// while it writes the integrity tags.
const WIPING: &str = "temporary-cryptsetup-";
/// Suffix for the integrity layer, which cryptsetup maps first.
const INTEGRITY: &str = "_dif";

impl LuksDisk {
    /// Checks that the device exists and is writable.
    ///
    /// # Errors
    /// It is missing (TEC-B404) or read-only (TEC-B405).
    pub async fn check_device(&self) -> Result<(), PortError> {
        let device = self.device.clone();
        let shown = self.device.display();
        match blocking(move || is_writable(&device)).await {
            Ok(true) => Ok(()),
            Ok(false) => {
                let operation = format!("write to the state disk {shown}: it is read-only");
                Err(PortError::new(PortErrorKind::Unavailable, operation)
                    .with_code(Code::BootstrapReadOnly))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(self.missing()),
            Err(error) => {
                let operation = format!("open the state disk {shown}");
                Err(PortError::new(PortErrorKind::Unavailable, operation).because(error))
            }
        }
    }

    pub(super) fn missing(&self) -> PortError {
        let operation = format!("find the state disk {}", self.device.display());
        PortError::new(PortErrorKind::NotFound, operation).with_code(Code::BootstrapNoDisk)
    }

    /// Checks that there is room for a state disk.
    pub(super) async fn check_size(&self) -> Result<(), PortError> {
        let device = self.device.clone();
        let size = blocking(move || File::open(device)?.seek(SeekFrom::End(0))).await;
        let size = size.map_err(|error| {
            PortError::new(PortErrorKind::Unavailable, "read the size of the state disk")
                .because(error)
        })?;
        if size >= SMALLEST {
            return Ok(());
        }
        let operation = format!(
            "make a state disk of {}: it has {} MiB, at least {} are needed",
            self.device.display(),
            size / MIB,
            SMALLEST / MIB
        );
        Err(PortError::new(PortErrorKind::Invalid, operation).with_code(Code::BootstrapSmallDisk))
    }

    /// Closes what a killed cryptsetup left mapped: otherwise the disk would be in use until the next boot.
    pub(super) async fn close_leftovers(&self) -> Result<(), PortError> {
        let devices = self.devices.clone();
        let left = blocking(move || leftovers(&devices)).await.map_err(|error| {
            let operation = "look for mappings that an interrupted cryptsetup left";
            PortError::new(PortErrorKind::Unavailable, operation).because(error)
        })?;
        for name in left {
            tracing::warn!(name, "closing a mapping that an interrupted cryptsetup left");
            self.close(&name).await?;
        }
        Ok(())
    }

    /// Checks that the wipe reached the end of the disk. It goes from the first sector to the last, and
    /// cryptsetup reports success when a signal stops it; a sector without a valid tag cannot be read.
    pub(super) async fn check_wiped(&self) -> Result<(), PortError> {
        let mapping = self.mapping();
        blocking(move || read_last_sector(&mapping)).await.map_err(|error| {
            let operation = "read the last sector of the new state disk: the wipe was interrupted";
            PortError::new(PortErrorKind::Unavailable, operation).because(error)
        })
    }
}

fn is_writable(device: &Path) -> io::Result<bool> {
    let found = fs::metadata(device)?;
    if found.file_type().is_block_device() {
        let number = found.rdev();
        let flag = format!("/sys/dev/block/{}:{}/ro", major(number), minor(number));
        if fs::read_to_string(flag).is_ok_and(|flag| flag.trim() == "1") {
            return Ok(false);
        }
    }
    match OpenOptions::new().write(true).open(device) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => Ok(false),
        Err(error) => Err(error),
    }
}

/// Names of mappings, from the kernel: those in /dev/mapper appear later and disappear earlier. An integrity
/// layer is closed together with the mapping above it, and listed only if there is none.
fn leftovers(devices: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(devices) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = match fs::read_to_string(entry?.path().join("dm/name")) {
            // Not a device-mapper device, or gone by now.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            name => name?.trim_end().to_owned(),
        };
        let upper = name.strip_suffix(INTEGRITY).unwrap_or(&name);
        let Some(id) = upper.strip_prefix(WIPING) else { continue };
        // What a running cryptsetup has open cannot be closed.
        if id.parse().is_ok_and(is_cryptsetup) {
            continue;
        }
        names.push(name);
    }
    let all = names.clone();
    names.retain(|name| {
        name.strip_suffix(INTEGRITY).is_none_or(|upper| !all.iter().any(|other| other == upper))
    });
    Ok(names)
}

/// Whether a process uses the cryptsetup library: cryptsetup, integritysetup or systemd-cryptsetup; process
/// names are cut to 15 characters.
fn is_cryptsetup(process: u32) -> bool {
    let name = fs::read_to_string(format!("/proc/{process}/comm"));
    name.is_ok_and(|name| name.contains("crypt") || name.contains("setup"))
}

fn read_last_sector(mapping: &Path) -> io::Result<()> {
    let mut file = File::open(mapping)?;
    file.seek(SeekFrom::End(LAST_SECTOR))?;
    file.read_exact(&mut [0; 4096])
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn mappings_of_cryptsetup_are_left_over_once_its_process_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("cryptsetup");
        fs::copy("/bin/sleep", &program).unwrap();
        let mut running = Command::new(&program).arg("600").spawn().unwrap();
        // A process gets its name some moments after it was started.
        let begin = std::time::Instant::now();
        while !is_cryptsetup(running.id()) && begin.elapsed().as_secs() < 60 {
            std::thread::yield_now();
        }
        let devices = directory.path().join("block");
        assert_eq!(leftovers(&devices).unwrap(), [""; 0]);
        fs::create_dir_all(devices.join("vda")).unwrap();
        let (live, dead) =
            (format!("{WIPING}{}", running.id()), format!("{WIPING}{}", std::process::id()));
        let below = format!("{dead}{INTEGRITY}");
        let alone = format!("{WIPING}4b00969d-761b-4580-9a3a-10a3afff2b9f{INTEGRITY}");
        let names = ["state", &live, &dead, &below, &alone];
        for (number, name) in names.into_iter().enumerate() {
            let device = devices.join(format!("dm-{number}/dm"));
            fs::create_dir_all(&device).unwrap();
            fs::write(device.join("name"), format!("{name}\n")).unwrap();
        }
        let left = leftovers(&devices);
        running.kill().unwrap();
        running.wait().unwrap();
        let mut left = left.unwrap();
        left.sort();
        let mut expected = [dead, alone];
        expected.sort();
        assert_eq!(left, expected);
    }
}
