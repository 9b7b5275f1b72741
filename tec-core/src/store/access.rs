//! Owner and mode of the state directory and its files.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::error::StoreError;
use super::schema::PAGE;

/// The database.
pub(super) const DATABASE: &str = "tec.db";
/// The key that secrets are sealed with.
pub(super) const SEAL_KEY: &str = "seal.key";
/// Everything that may be in the directory and must be closed to others. SQLite puts the write-ahead log and
/// the shared memory next to the database, under these names (sqlite.org/wal.html, section 2.3).
const FILES: [&str; 5] = [DATABASE, WAL, "tec.db-shm", SEAL_KEY, SEAL_KEY_NEW];
const WAL: &str = "tec.db-wal";
/// A seal key that is being written.
pub(super) const SEAL_KEY_NEW: &str = "seal.key.new";

/// Mode of files that hold keys.
pub(super) const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

/// Creates the directory if it is missing, then checks it and its files.
pub(super) fn check(dir: &Path) -> Result<(), StoreError> {
    match DirBuilder::new().mode(DIRECTORY_MODE).create(dir) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(StoreError::file("make the state directory", dir, error)),
    }
    let metadata = fs::metadata(dir).map_err(|error| StoreError::file("look at", dir, error))?;
    if !metadata.is_dir() {
        return Err(wrong(dir, "is not a directory", "choose another with --state-dir".to_owned()));
    }
    let (owner, user) = (metadata.uid(), rustix::process::geteuid().as_raw());
    if owner != user {
        // Changing the owner of the directory would lock out its server.
        let found = format!("belongs to user {owner}, and this command runs as user {user}");
        return Err(wrong(dir, &found, format!("run it as that user, with sudo -u '#{owner}'")));
    }
    check_owner_and_mode(dir, &metadata, DIRECTORY_MODE)?;
    FILES.iter().try_for_each(|name| check_file(&dir.join(name)))
}

fn check_file(path: &Path) -> Result<(), StoreError> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_file() => check_owner_and_mode(path, &metadata, FILE_MODE),
        Ok(_) => Err(wrong(path, "is not a regular file", format!("remove {}", path.display()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(StoreError::file("look at", path, error)),
    }
}

fn check_owner_and_mode(path: &Path, metadata: &Metadata, mode: u32) -> Result<(), StoreError> {
    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != user {
        let found = format!("belongs to user {}, not to {user}", metadata.uid());
        return Err(wrong(path, &found, format!("chown {user} {}", path.display())));
    }
    let found = metadata.mode() & 0o777;
    if found & !mode != 0 {
        let fix = format!("chmod {mode:o} {}", path.display());
        return Err(wrong(path, &format!("has mode {found:03o}, not {mode:o}"), fix));
    }
    Ok(())
}

fn wrong(path: &Path, found: &str, fix: String) -> StoreError {
    StoreError::Access { path: path.to_owned(), found: found.to_owned(), fix }
}

/// Path of the database. Creates an empty file if there is none, because SQLite would make it readable to
/// others; SQLite gives its additional files the mode of this one.
pub(super) fn database_file(dir: &Path) -> Result<PathBuf, StoreError> {
    let path = dir.join(DATABASE);
    let length = length(&path)?;
    if length.unwrap_or(0) == 0 && dir.join(SEAL_KEY).exists() {
        // The database is written before the seal key, so it must have existed.
        let what = format!("{} is gone or empty, though its seal key is there", path.display());
        return Err(StoreError::corrupt(what));
    }
    // SQLite would read a truncated last page as if zeros followed. A crash may leave one, but only
    // with a write-ahead log that still holds the whole page.
    if length.is_some_and(|length| length % PAGE != 0) && length_of_wal(dir)? == 0 {
        return Err(StoreError::corrupt(format!("{} ends within a page", path.display())));
    }
    if length.is_none() {
        create_closed(&path)?;
        sync_directory(dir)?;
    }
    Ok(path)
}

fn length_of_wal(dir: &Path) -> Result<u64, StoreError> {
    Ok(length(&dir.join(WAL))?.unwrap_or(0))
}

fn length(path: &Path) -> Result<Option<u64>, StoreError> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata.len())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::file("look at", path, error)),
    }
}

fn create_closed(path: &Path) -> Result<(), StoreError> {
    let mut options = OpenOptions::new();
    match options.write(true).create_new(true).mode(FILE_MODE).open(path) {
        Ok(_) => Ok(()),
        // Another process was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(StoreError::file("create", path, error)),
    }
}

/// Keeps other processes from opening the store until the returned file is dropped.
pub(super) fn lock(dir: &Path) -> Result<File, StoreError> {
    let locked = || {
        let file = File::open(dir)?;
        file.lock()?;
        Ok(file)
    };
    locked().map_err(|error| StoreError::file("lock", dir, error))
}

/// Makes new and renamed directory entries durable.
pub(super) fn sync_directory(dir: &Path) -> Result<(), StoreError> {
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(|error| StoreError::file("sync", dir, error))
}
