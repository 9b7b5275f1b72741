//! Small files of the node: its journal and its state.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::journal::Intent;
use crate::lock::LockedNode;
use crate::port::NodeStore;
use crate::state::NodeState;
use async_trait::async_trait;
use tec_core::port::{PortError, PortErrorKind};

/// Name of the journal file.
const JOURNAL: &str = "journal.json";
/// Name of the state file (Constellation).
const STATE: &str = "node_state.json";
/// Neither file has more than a few hundred bytes.
const MAX_FILE: u64 = 16 * 1024;
/// Readable only by root.
const PRIVATE: u32 = 0o600;

/// A directory on the state disk.
#[derive(Clone, Debug)]
pub struct StateDirectory(PathBuf);

impl StateDirectory {
    /// Uses this directory, which is created when something is written.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The state, if it was written.
    pub fn read_state(&self) -> Result<Option<NodeState>, PortError> {
        let Some(json) = self.read(STATE)? else {
            return Ok(None);
        };
        let state = NodeState::from_json(&json);
        state.map(Some).map_err(|error| {
            PortError::new(PortErrorKind::Internal, "read node_state.json").because(error)
        })
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, PortError> {
        match read_bounded(&self.0.join(name)) {
            Ok(content) => Ok(Some(content)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(format!("read {name}"), error)),
        }
    }

    /// Returns once the disk has the data, which takes time: do not call it on a thread that others need.
    async fn write(&self, name: &'static str, content: Vec<u8>) -> Result<(), PortError> {
        let path = self.0.join(name);
        let written = blocking(move || write_whole(&path, &content, PRIVATE)).await;
        written.map_err(|error| failed(format!("write {name}"), error))
    }
}

/// Works with files on a thread that may block.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(io::Error::other)?
}

fn failed(operation: String, error: io::Error) -> PortError {
    PortError::new(PortErrorKind::Unavailable, operation).because(error)
}

pub(super) fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?.take(MAX_FILE).read_to_end(&mut content)?;
    Ok(content)
}

/// Writes a file with this mode, and creates the directories above it. A reader sees either the old or the
/// new content, even after a power failure.
///
/// # Errors
/// Nothing was changed, except perhaps directories.
pub fn write_whole(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let directory = path.parent().unwrap_or_else(|| Path::new("/"));
    fs::create_dir_all(directory)?;
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut temporary = name.to_owned();
    temporary.push(".tmp");
    let temporary = directory.join(temporary);
    let written = (|| {
        // One that a dead process left may have a different mode.
        remove_if_there(&temporary)?;
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        File::open(directory)?.sync_all()
    })();
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

pub(super) fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[async_trait]
impl NodeStore for StateDirectory {
    async fn read_intent(&self) -> Result<Option<Intent>, PortError> {
        let this = self.clone();
        let read = tokio::task::spawn_blocking(move || this.read(JOURNAL)).await;
        let read = read.map_err(|error| failed(format!("read {JOURNAL}"), io::Error::other(error)));
        let Some(json) = read?? else {
            return Ok(None);
        };
        serde_json::from_slice(&json).map(Some).map_err(|error| {
            PortError::new(PortErrorKind::Internal, "read the journal").because(error)
        })
    }

    async fn write_intent(&self, intent: &Intent) -> Result<(), PortError> {
        let json = serde_json::to_vec(intent).map_err(|error| {
            PortError::new(PortErrorKind::Internal, "write the journal").because(error)
        })?;
        self.write(JOURNAL, json).await
    }

    async fn write_state(&self, _node: &LockedNode, state: &NodeState) -> Result<(), PortError> {
        self.write(STATE, state.to_json().into_bytes()).await
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use crate::derive::ClusterId;
    use tec_core::digest::Sha256Digest;

    use super::*;

    #[tokio::test]
    async fn an_intent_is_read_back_and_is_for_root_alone() {
        let dir = tempfile::tempdir().unwrap();
        let store = StateDirectory::new(dir.path().join("new/state"));
        assert_eq!(store.read_intent().await.unwrap(), None);
        let intent = Intent::new(ClusterId::new([1; 32]), Sha256Digest::of("request"));
        for intent in [intent, intent.done()] {
            store.write_intent(&intent).await.unwrap();
            assert_eq!(store.read_intent().await.unwrap(), Some(intent));
        }
        let file = dir.path().join("new/state").join(JOURNAL);
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, PRIVATE);
        fs::write(&file, "{}").unwrap();
        let error = store.read_intent().await.unwrap_err();
        assert_eq!(error.kind(), PortErrorKind::Internal);
    }

    #[test]
    fn a_file_that_a_dead_process_left_does_not_lend_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.key");
        fs::write(dir.path().join("ca.key.tmp"), "old").unwrap();
        write_whole(&path, b"key", PRIVATE).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, PRIVATE);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
