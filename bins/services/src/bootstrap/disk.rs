//! The volume that the vault and its controller share.

use std::path::{Path, PathBuf};
use std::{fs, io};

use tec_services::shell::{Disk, Note};
use tec_support::files::write_private;

/// A directory.
#[derive(Clone, Debug)]
pub struct Volume(PathBuf);

impl Volume {
    /// Uses this directory, which must exist.
    pub fn new(directory: PathBuf) -> Self {
        Self(directory)
    }

    fn path(&self, note: Note) -> PathBuf {
        self.0.join(match note {
            Note::Key => "unseal.v1.json",
            Note::Intent => "init-intent",
            Note::Restore => "restore-intent",
            Note::Reset => "reset-requested",
        })
    }

    /// Whether it exists, also for a user who cannot read it.
    pub fn has(&self, note: Note) -> io::Result<bool> {
        self.path(note).try_exists()
    }
}

/// Removes a file, if there is one.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

impl Disk for Volume {
    fn read(&self, note: Note) -> io::Result<Option<Vec<u8>>> {
        match fs::read(self.path(note)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn write(&self, note: Note, content: &[u8]) -> io::Result<()> {
        write_private(&self.path(note), content)
    }

    fn remove(&self, note: Note) -> io::Result<()> {
        remove(&self.path(note))
    }
}
