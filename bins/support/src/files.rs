//! Files that must be whole or absent.

use std::fs::{File, OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::{fs, io};

/// Writes a file with mode 0600 so that readers see either the old or the new content, even after a power
/// failure: temporary file, fsync, rename, fsync of the directory.
pub fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    write(path, content, 0o600)
}

/// Like [`write_private`], with mode 0644, regardless of the umask, for files that others have to read.
pub fn write_public(path: &Path, content: &[u8]) -> io::Result<()> {
    write(path, content, 0o644)
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let directory = directory_of(path);
    let name = path.file_name().ok_or_else(|| io::Error::other("the path names no file"))?;
    let mut temporary = name.to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = directory.join(temporary);
    let result = (|| {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)?;
        file.write_all(content)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        File::open(directory)?.sync_all()
    })();
    if result.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    result
}

/// Creates a file with mode 0600.
/// Errors: kind `AlreadyExists` if the file exists, including when it was created concurrently; the existing file
/// stays.
pub fn create_private(path: &Path, content: &[u8]) -> io::Result<()> {
    let directory = directory_of(path);
    let mut new = OpenOptions::new();
    let mut file = new.write(true).create_new(true).mode(0o600).open(path)?;
    let written = (|| {
        file.write_all(content)?;
        file.sync_all()?;
        File::open(directory)?.sync_all()
    })();
    if written.is_err() {
        let _ = fs::remove_file(path);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_public_can_be_read_by_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.crt");
        write_public(&path, b"one").unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
    }

    #[test]
    fn what_is_there_stays_where_a_file_must_be_new() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        create_private(&path, b"one").unwrap();
        let error = create_private(&path, b"two").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn content_is_replaced_and_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        write_private(&path, b"one").unwrap();
        write_private(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
