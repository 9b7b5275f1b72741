//! The volume that the vault and its controller share.

use std::path::{Path, PathBuf};
use std::{fs, io};

use tec_services::shell::Disk;
use tec_support::files::write_private;

/// The wrapped key.
const KEY: &str = "unseal.v1.json";
/// Asks the process that runs the vault to empty its storage.
const RESET: &str = "reset-requested";
/// Marks a vault that is about to be initialized, and still empty.
const INTENT: &str = "init-intent";
/// Names the restore that is under way.
const RESTORE: &str = "restore-intent";

/// A directory.
#[derive(Clone, Debug)]
pub struct Volume(PathBuf);

impl Volume {
    /// Uses this directory, which must exist.
    pub fn new(directory: PathBuf) -> Self {
        Self(directory)
    }

    /// Path of the request to empty the vault's storage.
    fn reset_request(&self) -> PathBuf {
        self.0.join(RESET)
    }

    /// Whether the storage may be emptied: if a key is kept here, its vault may be in use.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn may_be_reset(&self) -> io::Result<bool> {
        Ok(!self.0.join(KEY).try_exists()?)
    }
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
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
    fn read(&self) -> io::Result<Option<Vec<u8>>> {
        read(&self.0.join(KEY))
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        write_private(&self.0.join(KEY), bytes)
    }

    fn remove(&self) -> io::Result<()> {
        remove(&self.0.join(KEY))
    }

    fn write_intent(&self, key_id: &str) -> io::Result<()> {
        write_private(&self.0.join(INTENT), key_id.as_bytes())
    }

    fn read_intent(&self) -> io::Result<Option<Vec<u8>>> {
        read(&self.0.join(INTENT))
    }

    fn remove_intent(&self) -> io::Result<()> {
        remove(&self.0.join(INTENT))
    }

    fn write_restore(&self, note: &str) -> io::Result<()> {
        write_private(&self.0.join(RESTORE), note.as_bytes())
    }

    fn read_restore(&self) -> io::Result<Option<Vec<u8>>> {
        read(&self.0.join(RESTORE))
    }

    fn remove_restore(&self) -> io::Result<()> {
        remove(&self.0.join(RESTORE))
    }

    fn request_reset(&self) -> io::Result<()> {
        write_private(&self.reset_request(), b"")
    }

    fn withdraw_reset(&self) -> io::Result<()> {
        remove(&self.reset_request())
    }

    fn is_reset_pending(&self) -> io::Result<bool> {
        self.reset_request().try_exists()
    }
}
