//! Wrapped keys as files in a directory.

use std::fs::File;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::derive::DataKeyId;
use crate::envelope::WrappedKeys;
use async_trait::async_trait;
use tec_core::port::{CreateOutcome, PortError, PortErrorKind};
use tempfile::Builder;

use crate::host::directory::{blocking, read_bounded};

/// Readable and writable only by root: a wrapped key is not secret, but replacing it stops a node.
const DIRECTORY: u32 = 0o700;

/// A directory with one file per key, mode 0600. It is created when a key is added.
///
/// A node that opens a disk with these keys must reach the directory before the disk is open: put it on a
/// volume that nodes share, or next to the join service.
#[derive(Clone, Debug)]
pub(super) struct FileKeys(PathBuf);

impl FileKeys {
    pub(super) fn new(directory: impl Into<PathBuf>) -> Self {
        Self(directory.into())
    }

    /// Writes a file that is either complete and durable under its name, or not there at all.
    fn create(&self, id: &DataKeyId, wrapped: &[u8]) -> io::Result<CreateOutcome> {
        let made = self.0.ancestors().take_while(|one| !one.exists()).count();
        let mut directory = fs::DirBuilder::new();
        directory.recursive(true).mode(DIRECTORY).create(&self.0)?;
        // A temporary file has mode 0600.
        let mut file = Builder::new().prefix(".new-").tempfile_in(&self.0)?;
        io::Write::write_all(&mut file, wrapped)?;
        file.as_file().sync_all()?;
        let outcome = match file.persist_noclobber(self.0.join(id.as_str())) {
            Ok(_) => CreateOutcome::Created,
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {
                CreateOutcome::Existed
            }
            Err(error) => return Err(error.error),
        };
        // Even for one that existed: its creator may have died before doing this. And a directory is only as
        // durable as its name in the parent directory.
        for directory in self.0.ancestors().take(made.max(1) + 1) {
            File::open(directory)?.sync_all()?;
        }
        Ok(outcome)
    }

    fn read(&self, id: &DataKeyId) -> io::Result<Option<Vec<u8>>> {
        let wrapped = match read_bounded(&self.0.join(id.as_str())) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        // A disk may depend on it from now on, and its creator may have died before doing this.
        File::open(&self.0)?.sync_all()?;
        Ok(Some(wrapped))
    }
}

/// Whether a path is at this place or below it, or would be once created, even under another name.
pub(super) fn is_on(path: &Path, place: &Path) -> io::Result<bool> {
    let (path, place) = (Resolved::of(path)?, Resolved::of(place)?);
    Ok(path.whole.starts_with(&place.whole) || place.is_mounted()? && path.device == place.device)
}

/// A path with links resolved, as far as it exists.
pub(super) struct Resolved {
    whole: PathBuf,
    exists: bool,
    device: u64,
}

impl Resolved {
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        for there in path.ancestors() {
            let real = match there.canonicalize() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                real => real?,
            };
            let rest = path.strip_prefix(there).unwrap_or_else(|_| Path::new(""));
            return Ok(Self {
                device: fs::metadata(&real)?.dev(),
                exists: there == path,
                // Without a trailing slash.
                whole: real.join(rest).components().collect(),
            });
        }
        Err(io::ErrorKind::NotFound.into())
    }

    /// Whether a file system is mounted here.
    pub(super) fn is_mounted(&self) -> io::Result<bool> {
        match self.whole.parent() {
            Some(above) if self.exists => Ok(fs::metadata(above)?.dev() != self.device),
            _ => Ok(false),
        }
    }
}

fn failed(operation: &str, id: &DataKeyId, error: io::Error) -> PortError {
    let kind = match error.kind() {
        io::ErrorKind::PermissionDenied => PortErrorKind::Denied,
        _ => PortErrorKind::Unavailable,
    };
    PortError::new(kind, format!("{operation} {id}")).because(error)
}

#[async_trait]
impl WrappedKeys for FileKeys {
    async fn find(&self, id: &DataKeyId) -> Result<Option<Vec<u8>>, PortError> {
        let (this, of) = (self.clone(), id.clone());
        let read = blocking(move || this.read(&of)).await;
        read.map_err(|error| failed("read", id, error))
    }

    async fn add(&self, id: &DataKeyId, wrapped: &[u8]) -> Result<CreateOutcome, PortError> {
        let (this, of, wrapped) = (self.clone(), id.clone(), wrapped.to_vec());
        let created = blocking(move || this.create(&of, &wrapped)).await;
        created.map_err(|error| failed("store", id, error))
    }
}
