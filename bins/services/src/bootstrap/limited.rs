//! A file that stops before it fills its disk, on which the vault may keep its storage.

use std::fs::{File, OpenOptions};
use std::io;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// A new file, which uses at most half of the space that was free at first.
#[derive(Debug)]
pub(super) struct Limited {
    /// The file.
    pub(super) file: File,
    left: u64,
}

impl Limited {
    /// Creates the file, or empties it; only its owner can read it.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let mut open = OpenOptions::new();
        let file = open.write(true).create(true).truncate(true).mode(0o600).open(path)?;
        let space = rustix::fs::fstatvfs(&file)?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        Ok(Self { file, left: free / 2 })
    }
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let Some(left) = self.left.checked_sub(length) else {
            let why = "a snapshot may use half of the free space, which is not enough";
            return Err(io::Error::new(io::ErrorKind::StorageFull, why));
        };
        self.file.write_all(bytes)?;
        self.left = left;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
