//! Copies the files of snapshots out of the vault's container and into it, through `kubectl exec`: an image that has
//! only the programs has no `tar`, which `kubectl cp` needs.
//!
//! ```text
//!   <snapshots>/vault-….snap, .key  ── get ──► standard output
//!   standard input ── put ──► copy-<process ID>.tmp, checked, synced, renamed
//! ```

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use tec_core::code::Code;
use tec_core::service::vault::snapshot;
use tec_core::service::vault::snapshot::SnapshotFile;
use tec_support::exit::CodedError;

use crate::bootstrap::archive;
use crate::bootstrap::archive::ArchiveError;
use crate::bootstrap::cli::Copy;

/// A file was not copied, and nothing else was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The directory cannot be read.
    #[error("cannot list the snapshots in {}", .0.display())]
    List(PathBuf, #[source] io::Error),
    /// The file cannot be read, or standard output cannot be written.
    #[error("cannot copy {} to standard output", .0.display())]
    Get(PathBuf, #[source] io::Error),
    /// Standard input cannot be read, or the file cannot be written.
    #[error("cannot write {} from standard input", .0.display())]
    Put(PathBuf, #[source] io::Error),
    /// What came from standard input is not a whole snapshot.
    #[error("{0} on standard input is not a whole snapshot")]
    Broken(String, #[source] ArchiveError),
}

/// Carries out the command.
///
/// # Errors
/// A file cannot be read or written, or is not a whole snapshot.
pub fn run(
    directory: &Path,
    command: &Copy,
    from: &mut dyn Read,
    to: &mut dyn Write,
) -> anyhow::Result<()> {
    let done = match command {
        Copy::List => list(directory, to),
        Copy::Get { name } => get(directory, name, to),
        Copy::Put { name } => put(directory, name, from),
    };
    done.map_err(|error| match error {
        CopyError::Broken(name, source) => {
            let context = format!("cannot store {name}");
            CodedError::caused(Code::VaultSnapshotBroken, context, source).into()
        }
        error => error.into(),
    })
}

/// Names only snapshots whose key is there, too.
fn list(directory: &Path, to: &mut dyn Write) -> Result<(), CopyError> {
    let failed = |error| CopyError::List(directory.to_owned(), error);
    let names = fs::read_dir(directory)
        .map_err(failed)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let names = names.collect::<io::Result<Vec<_>>>().map_err(failed)?;
    let has_key = |name: &String| names.contains(&snapshot::key_name(name));
    let mut snapshots: Vec<_> = names
        .iter()
        .filter_map(|name| Some((snapshot::taken(name)?, name)))
        .filter(|(_, name)| has_key(name))
        .collect();
    snapshots.sort();
    snapshots.iter().try_for_each(|(_, name)| writeln!(to, "{name}")).map_err(failed)
}

fn get(directory: &Path, name: &SnapshotFile, to: &mut dyn Write) -> Result<(), CopyError> {
    let path = directory.join(name.name());
    let copied = File::open(&path).and_then(|mut file| {
        io::copy(&mut file, to)?;
        to.flush()
    });
    copied.map_err(|error| CopyError::Get(path, error))
}

fn put(directory: &Path, name: &SnapshotFile, from: &mut dyn Read) -> Result<(), CopyError> {
    let temporary = directory.join(format!("copy-{}.tmp", std::process::id()));
    let stored = store(&temporary, name, from, &directory.join(name.name()));
    if stored.is_err() {
        // The space may be what the vault needs.
        let _ = fs::remove_file(&temporary);
    }
    stored
}

fn store(
    temporary: &Path,
    name: &SnapshotFile,
    from: &mut dyn Read,
    path: &Path,
) -> Result<(), CopyError> {
    let failed = |error| CopyError::Put(path.to_owned(), error);
    let mut open = OpenOptions::new();
    let file = open.write(true).create(true).truncate(true).mode(0o600).open(temporary);
    let mut file = file.map_err(failed)?;
    io::copy(from, &mut file).and_then(|_| file.sync_all()).map_err(failed)?;
    if let SnapshotFile::Snapshot(name) = name {
        // A connection that breaks ends standard input like the end of the file.
        archive::check(temporary).map_err(|error| CopyError::Broken(name.clone(), error))?;
    }
    fs::rename(temporary, path).map_err(failed)?;
    let directory = path.parent().unwrap_or(path);
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)
}
