//! An image that is mounted or unpacked in a directory. The only code here that opens files.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::{fs, io};

use tec_core::reference::{BootImage, ImageFile};

#[cfg(feature = "images")]
use super::input::Folders;
use super::resolve::{MAX_DEPTH, resolve, too_large};

/// An image that is mounted or unpacked in a directory.
///
/// Names that are not UTF-8 and special files are left out; directories behind symbolic links are
/// not searched, unless the link is part of the requested prefix.
///
/// # Security
/// Symbolic links are followed as if the directory were the root of a machine: absolute ones begin
/// there, and `..` does not leave it. The directory must not change while it is read.
#[derive(Clone, Debug)]
pub struct DirectoryImage {
    root: PathBuf,
}

/// Maximum number of files that are listed; a large operating system has about 300,000.
const MAX_FILES: usize = 1_000_000;

impl DirectoryImage {
    /// Opens the image in `root`.
    ///
    /// # Errors
    /// When `root` is not a readable directory.
    pub fn open(root: impl AsRef<Path>) -> io::Result<Self> {
        let root = root.as_ref().canonicalize()?;
        if !root.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(Self { root })
    }

    /// The directory, with all symbolic links resolved.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Resolves `path`; no part of the result is a symbolic link.
    fn resolve(&self, path: &str) -> io::Result<PathBuf> {
        let resolved = resolve(path, |at| {
            let at = self.root.join(at);
            if !at.symlink_metadata()?.is_symlink() {
                return Ok(None);
            }
            let target = fs::read_link(at)?.into_os_string().into_string();
            let refuse = |_| io::Error::new(io::ErrorKind::InvalidData, "a link is not UTF-8");
            target.map(Some).map_err(refuse)
        })?;
        Ok(self.root.join(resolved))
    }

    fn leads_to_folder(&self, path: &str) -> bool {
        self.resolve(path).is_ok_and(|target| target.is_dir())
    }

    fn search(
        &self,
        directory: &Path,
        name: &str,
        depth: usize,
        found: &mut Vec<String>,
    ) -> io::Result<()> {
        if depth > MAX_DEPTH {
            return Err(too_large("the directories are nested too deeply"));
        }
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let Ok(file_name) = entry.file_name().into_string() else {
                continue;
            };
            let path = if name.is_empty() { file_name } else { format!("{name}/{file_name}") };
            let kind = entry.file_type()?;
            if kind.is_dir() {
                self.search(&entry.path(), &path, depth + 1, found)?;
            } else if kind.is_file() || (kind.is_symlink() && !self.leads_to_folder(&path)) {
                if found.len() >= MAX_FILES {
                    return Err(too_large("the image has too many files"));
                }
                found.push(path);
            }
        }
        Ok(())
    }
}

impl BootImage for DirectoryImage {
    fn files(&self, prefix: &str) -> io::Result<Vec<String>> {
        let mut found = Vec::new();
        let directory = match self.resolve(prefix) {
            Ok(directory) => directory,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
            Err(error) => return Err(error),
        };
        if directory.is_dir() {
            self.search(&directory, prefix.trim_end_matches('/'), 0, &mut found)?;
        }
        found.sort();
        Ok(found)
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn ImageFile>> {
        let path = self.resolve(path)?;
        // Opening a FIFO would block, so look before.
        if !path.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "this is not a regular file"));
        }
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        Ok(Box::new(DirectoryFile { file, size }))
    }
}

#[cfg(feature = "images")]
impl Folders for DirectoryImage {
    fn folders(&self, path: &str) -> io::Result<Vec<String>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.resolve(path)?)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                found.extend(entry.file_name().into_string());
            }
        }
        found.sort();
        Ok(found)
    }
}

struct DirectoryFile {
    file: File,
    size: u64,
}

impl Read for DirectoryFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.file.read(buffer)
    }
}

impl ImageFile for DirectoryFile {
    fn size(&self) -> Option<u64> {
        Some(self.size)
    }
}
