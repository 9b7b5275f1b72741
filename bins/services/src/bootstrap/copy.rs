//! Copies the files of snapshots out of the vault's container and into it, through `kubectl exec`: an image
//! that has only the programs has no `tar`, which `kubectl cp` needs.
//!
//! ```text
//!   <snapshots>/vault-….snap, .key  ── get ──► standard output
//!   standard input ── put ──► copy.tmp, checked, synced, renamed
//! ```

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::{fs, io};

use tec_core::code::Code;
use tec_services::vault::snapshot::SnapshotFile;
use tec_services::vault::{WrapError, WrappedKey, snapshot};
use tec_support::exit::CodedError;

use crate::bootstrap::archive;
use crate::bootstrap::archive::ArchiveError;
use crate::bootstrap::cli::Copy;
use crate::bootstrap::limited::Limited;

/// A file that is being stored. One that is left by a killed copy is overwritten by the next one.
const TEMPORARY: &str = "copy.tmp";

/// A file was not copied, and nothing else was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The directory or a file in it cannot be read.
    #[error("cannot list the snapshots in {}", .0.display())]
    List(PathBuf, #[source] io::Error),
    /// The file cannot be read, or standard output cannot be written.
    #[error("cannot copy {} to standard output", .0.display())]
    Get(PathBuf, #[source] io::Error),
    /// Standard input cannot be read, or the file cannot be written.
    #[error("cannot write {} from standard input", .0.display())]
    Put(PathBuf, #[source] io::Error),
    /// Another process stores a file there.
    #[error("cannot write to {}: another copy is running", .0.display())]
    Busy(PathBuf),
    /// What came from standard input is not a whole snapshot.
    #[error("{} was not written: standard input is not a whole snapshot", .0.display())]
    Snapshot(PathBuf, #[source] ArchiveError),
    /// What came from standard input is not a whole wrapped key.
    #[error("{} was not written: standard input is not a whole wrapped key", .0.display())]
    Key(PathBuf, #[source] WrapError),
    /// There is a file with this name and another content.
    #[error("{} exists, and has another content", .0.display())]
    Exists(PathBuf),
}

impl CopyError {
    /// The code that a person looks up.
    pub fn code(&self) -> Code {
        match self {
            Self::Snapshot(..) | Self::Key(..) => Code::VaultSnapshotBroken,
            Self::Exists(_) => Code::VaultSnapshotExists,
            Self::List(..) | Self::Get(..) | Self::Put(..) | Self::Busy(_) => {
                Code::VaultSnapshotNotCopied
            }
        }
    }
}

/// Carries out the command.
pub fn run(
    directory: &Path,
    command: &Copy,
    from: &mut dyn Read,
    to: &mut dyn Write,
) -> anyhow::Result<()> {
    let done = match command {
        Copy::List => list(directory, to),
        Copy::Sums => sums(directory, to),
        Copy::Get { name } => get(directory, name, to),
        Copy::Put { name } => put(directory, name, from),
    };
    let context = || match command {
        Copy::List | Copy::Sums => "cannot list snapshots".to_owned(),
        Copy::Get { name } | Copy::Put { name } => format!("cannot copy {}", name.name()),
    };
    Ok(done.map_err(|error| CodedError::caused(error.code(), context(), error))?)
}

/// Names only snapshots whose key is there, too.
fn list(directory: &Path, to: &mut dyn Write) -> Result<(), CopyError> {
    let failed = |error| CopyError::List(directory.to_owned(), error);
    let names = complete(directory).map_err(failed)?;
    names.iter().try_for_each(|name| writeln!(to, "{name}")).map_err(failed)
}

/// Digests in the format of `sha256sum`: a connection may end early without an error.
fn sums(directory: &Path, to: &mut dyn Write) -> Result<(), CopyError> {
    let failed = |error| CopyError::List(directory.to_owned(), error);
    for snapshot in complete(directory).map_err(failed)? {
        for name in [snapshot::key_name(&snapshot), snapshot] {
            let digest = digest(&directory.join(&name)).map_err(failed)?;
            writeln!(to, "{digest}  {name}").map_err(failed)?;
        }
    }
    Ok(())
}

fn digest(path: &Path) -> io::Result<String> {
    archive::digest(&mut File::open(path)?)
}

/// Snapshots whose key is there, too; the latest one last.
fn complete(directory: &Path) -> io::Result<Vec<String>> {
    let entries = fs::read_dir(directory)?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let names = names.collect::<io::Result<Vec<_>>>()?;
    let has_key = |name: &String| names.contains(&snapshot::key_name(name));
    let mut snapshots: Vec<_> = names
        .iter()
        .filter_map(|name| Some((snapshot::taken(name)?, name.clone())))
        .filter(|(_, name)| has_key(name))
        .collect();
    snapshots.sort();
    Ok(snapshots.into_iter().map(|(_, name)| name).collect())
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
    let path = directory.join(name.name());
    let lock = File::open(directory).map_err(|error| CopyError::Put(path.clone(), error))?;
    // Two copies would write the same temporary file.
    lock.try_lock().map_err(|error| match error {
        fs::TryLockError::WouldBlock => CopyError::Busy(directory.to_owned()),
        fs::TryLockError::Error(error) => CopyError::Put(path.clone(), error),
    })?;
    let temporary = directory.join(TEMPORARY);
    let stored = store(&temporary, name, from, &path);
    if stored.is_err() {
        // The space may be what the vault needs.
        let _ = fs::remove_file(&temporary);
    }
    stored?;
    lock.sync_all().map_err(|error| CopyError::Put(path, error))
}

fn store(
    temporary: &Path,
    name: &SnapshotFile,
    from: &mut dyn Read,
    path: &Path,
) -> Result<(), CopyError> {
    let failed = |error| CopyError::Put(path.to_owned(), error);
    let mut to = Limited::create(temporary).map_err(failed)?;
    io::copy(from, &mut to).and_then(|_| to.file.sync_all()).map_err(failed)?;
    whole(temporary, name, path)?;
    if path.try_exists().map_err(failed)? {
        // The same copy again, as after a lost connection.
        if digest(temporary).map_err(failed)? != digest(path).map_err(failed)? {
            return Err(CopyError::Exists(path.to_owned()));
        }
    }
    fs::rename(temporary, path).map_err(failed)
}

/// A connection that breaks ends standard input like the end of the file.
fn whole(temporary: &Path, name: &SnapshotFile, path: &Path) -> Result<(), CopyError> {
    match name {
        SnapshotFile::Snapshot(_) => {
            archive::check(temporary).map_err(|error| CopyError::Snapshot(path.to_owned(), error))
        }
        SnapshotFile::Key(_) => {
            let bytes =
                fs::read(temporary).map_err(|error| CopyError::Put(path.to_owned(), error))?;
            let parsed = WrappedKey::parse(&bytes);
            parsed.map(drop).map_err(|error| CopyError::Key(path.to_owned(), error))
        }
    }
}
