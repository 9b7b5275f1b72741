//! What the sidecar of the aggregated mode does.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use tec_core::id::MachineId;
use zeroize::Zeroizing;

use super::layout::resource_file;
use crate::config::Generation;

/// Largest disk key; its file has some 60 bytes.
const MAX_KEY: u64 = 64 * 1024;
/// Suffix of a file that is being written.
const PARTIAL: &str = ".partial";

/// What a call of [`mirror`] changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mirrored {
    /// Disk keys that are new or changed.
    pub written: usize,
    /// Disk keys that were removed.
    pub removed: usize,
}

/// Creates the resource directory of a KBS from a flat directory of disk keys, each in a file named after its
/// machine: a mounted Secret has no folders. Files that are not a machine's disk key are skipped, and files
/// that the KBS would serve without a source are removed.
///
/// Call it repeatedly; it changes only what differs. A key is written to a temporary file next to its place
/// and renamed, so that the KBS never reads a partial one.
///
/// # Errors
/// The first file that cannot be read, written or removed. The others wait for the next call.
pub fn mirror(from: &Path, to: &Path, generation: Generation) -> io::Result<Mirrored> {
    let mut done = Mirrored::default();
    let mut wanted = BTreeSet::new();
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        let machine = name.to_str().and_then(|name| name.parse::<MachineId>().ok());
        // The kubelet's own links begin with dots; anything else is not ours.
        let Some(machine) = machine.filter(|machine| name == *machine.to_string()) else {
            continue;
        };
        let target = to.join(resource_file(generation, &machine.to_string()));
        done.written += usize::from(copy(&entry.path(), &target)?);
        wanted.insert(target);
    }
    for target in existing(to, generation)? {
        if !wanted.contains(&target) {
            remove(&target, to)?;
            done.removed += 1;
        }
    }
    Ok(done)
}

/// Copies a file and returns whether the content differed.
fn copy(from: &Path, to: &Path) -> io::Result<bool> {
    if fs::metadata(from)?.len() > MAX_KEY {
        return Err(io::Error::other(format!("{} is too large for a disk key", from.display())));
    }
    let content = Zeroizing::new(fs::read(from)?);
    match fs::read(to).map(Zeroizing::new) {
        Ok(there) if *there == *content => return Ok(false),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    if let Some(dir) = to.parent() {
        fs::create_dir_all(dir)?;
    }
    let mut partial = to.as_os_str().to_owned();
    partial.push(PARTIAL);
    fs::write(&partial, &*content)?;
    fs::rename(&partial, to)?;
    Ok(true)
}

/// Files that the KBS would serve.
fn existing(dir: &Path, generation: Generation) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry?;
        if generation == Generation::Mounted && entry.file_type()?.is_dir() {
            for file in fs::read_dir(entry.path())? {
                files.push(file?.path());
            }
        } else {
            files.push(entry.path());
        }
    }
    Ok(files)
}

/// Removes a file, and its folder if that is then empty.
fn remove(file: &Path, root: &Path) -> io::Result<()> {
    fs::remove_file(file)?;
    match file.parent() {
        // A folder that is not empty stays, as it should.
        Some(dir) if dir != root => fs::remove_dir(dir).or(Ok(())),
        _ => Ok(()),
    }
}
