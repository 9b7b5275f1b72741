//! Takes snapshots of the vault, each next to the wrapped key that belongs to it.
//!
//! ```text
//!   <directory>/vault-20261127T054600Z.snap     the vault's storage, encrypted under its key
//!               vault-20261127T054600Z.key      that key, wrapped: it needs the Secret
//!               snapshot.tmp                    one that is being written
//! ```
//! A snapshot is written to a temporary file, checked, synced and renamed, so that every file with the name of
//! a snapshot is whole.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use tec_core::port::{Clock, PortError};
use tec_core::secret::SecretBytes;
use tec_core::time::Timestamp;
use tec_services::caller::Role;
use tec_services::shell::{Disk, Note, Vault};
use tec_services::vault::snapshot::Schedule;
use tec_services::vault::{Request, call, snapshot};
use tec_support::files::write_private;

use crate::bootstrap::archive;
use crate::bootstrap::archive::ArchiveError;
use crate::bootstrap::disk::remove;
use crate::bootstrap::limited::Limited;

/// A snapshot that is being written.
const TEMPORARY: &str = "snapshot.tmp";
/// Status of a vault that is open and leads.
const LEADS: u16 = 200;

/// Takes snapshots.
#[derive(Debug)]
pub struct Snapshots {
    /// The vault beside the controller.
    pub vault: Vault,
    /// The controller's own token, for its own audience.
    pub token: PathBuf,
    /// The volume with the wrapped key.
    pub disk: Arc<dyn Disk>,
    /// Where snapshots are kept.
    pub directory: PathBuf,
    /// When they are taken.
    pub schedule: Schedule,
    /// The clock.
    pub clock: Arc<dyn Clock>,
}

/// What was done about snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// The latest one is recent enough.
    NotDue,
    /// The vault beside this controller is sealed, or another pod leads and takes it.
    NotHere,
    /// A snapshot was taken.
    Taken {
        /// Name of its file.
        name: String,
        /// Its size.
        bytes: u64,
    },
}

/// No snapshot was taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The directory cannot be read or written.
    #[error("cannot use {}", .0.display())]
    Directory(PathBuf, #[source] io::Error),
    /// The controller's own token cannot be read.
    #[error("cannot read {}", .0.display())]
    Token(PathBuf, #[source] io::Error),
    /// The wrapped key cannot be read.
    #[error("cannot read the wrapped key")]
    Key(#[source] io::Error),
    /// There is no wrapped key, or it was replaced in the meantime.
    #[error("there is no wrapped key that belongs to the snapshot")]
    NoKey,
    /// The vault does not answer, or the answer cannot be written.
    #[error("cannot take a snapshot of the vault")]
    Vault(#[source] PortError),
    /// The vault refuses.
    #[error("the vault answered with status {0}")]
    Refused(u16),
    /// The vault sent something else.
    #[error("the vault sent no usable snapshot")]
    Archive(#[source] ArchiveError),
}

impl Snapshots {
    /// Takes a snapshot if one is due and the vault beside this controller leads.
    /// Errors: [`SnapshotError`]; existing snapshots are kept.
    ///
    /// # Cancel safety
    /// Can be dropped at any await; the next call starts over.
    pub async fn ensure(&self) -> Result<Step, SnapshotError> {
        let now = self.clock.now();
        if !self.schedule.is_due(self.taken()?, now) {
            return Ok(Step::NotDue);
        }
        let health = self.vault.call(&Request::get("sys/health")).await;
        if health.map_err(SnapshotError::Vault)?.status != LEADS {
            return Ok(Step::NotHere);
        }
        let key = self.key()?;
        let bytes = self.take().await?;
        if self.key()? != key {
            return Err(SnapshotError::NoKey);
        }
        let name = snapshot::name(now);
        self.keep(&name, &key).map_err(|error| self.unusable(error))?;
        Ok(Step::Taken { name, bytes })
    }

    /// Age of the latest snapshot; `None` if there is none.
    pub fn age(&self) -> Option<Duration> {
        snapshot::age(self.taken().unwrap_or_default(), self.clock.now())
    }

    fn unusable(&self, error: io::Error) -> SnapshotError {
        SnapshotError::Directory(self.directory.clone(), error)
    }

    fn taken(&self) -> Result<Vec<Timestamp>, SnapshotError> {
        let names = names(&self.directory).map_err(|error| self.unusable(error))?;
        Ok(names.iter().filter_map(|name| snapshot::taken(name)).collect())
    }

    fn key(&self) -> Result<Vec<u8>, SnapshotError> {
        self.disk.read(Note::Key).map_err(SnapshotError::Key)?.ok_or(SnapshotError::NoKey)
    }

    fn temporary(&self) -> PathBuf {
        self.directory.join(TEMPORARY)
    }

    /// Writes a snapshot to the temporary file, and checks it. Returns its size.
    async fn take(&self) -> Result<u64, SnapshotError> {
        let token = self.log_in().await?;
        let path = self.temporary();
        let mut to = Limited::create(&path).map_err(|error| self.unusable(error))?;
        let written = self.write(&token, &mut to).await;
        if written.is_err() {
            // The space may be what the vault needs.
            let _ = fs::remove_file(&path);
        }
        written
    }

    async fn write(&self, token: &SecretBytes, to: &mut Limited) -> Result<u64, SnapshotError> {
        let answer = self.vault.fetch(&snapshot::take().by(token), to).await;
        match answer.map_err(SnapshotError::Vault)?.status {
            200 => {}
            status => return Err(SnapshotError::Refused(status)),
        }
        to.file.sync_all().map_err(|error| self.unusable(error))?;
        let path = self.temporary();
        let checked = tokio::task::spawn_blocking(move || archive::check(&path)).await;
        let checked = checked.map_err(|error| self.unusable(io::Error::other(error)))?;
        checked.map_err(SnapshotError::Archive)?;
        Ok(to.file.metadata().map_err(|error| self.unusable(error))?.len())
    }

    /// A token that can take a snapshot and do nothing else.
    async fn log_in(&self) -> Result<SecretBytes, SnapshotError> {
        let unreadable = |error| SnapshotError::Token(self.token.clone(), error);
        let own = fs::read(&self.token).map_err(unreadable)?;
        let own = SecretBytes::new(own.trim_ascii().to_vec());
        let answer = self.vault.call(&call::log_in(Role::Snapshot, &own)).await;
        let answer = answer.map_err(SnapshotError::Vault)?;
        let login = call::logged_in(&answer);
        login.map(|login| login.token).ok_or(SnapshotError::Refused(answer.status))
    }

    /// Names the temporary file, and removes what is superfluous now.
    fn keep(&self, name: &str, key: &[u8]) -> io::Result<()> {
        // First the key: a snapshot is never without it.
        write_private(&self.directory.join(snapshot::key_name(name)), key)?;
        fs::rename(self.temporary(), self.directory.join(name))?;
        File::open(&self.directory)?.sync_all()?;
        let names = names(&self.directory)?;
        for old in self.schedule.superfluous(&names, name) {
            fs::remove_file(self.directory.join(old))?;
            remove(&self.directory.join(snapshot::key_name(old)))?;
        }
        Ok(())
    }
}

fn names(directory: &Path) -> io::Result<Vec<String>> {
    let entries = fs::read_dir(directory)?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}
