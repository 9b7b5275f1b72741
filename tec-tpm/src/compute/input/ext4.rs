//! An ext4 file system, read only: a partition for `/boot`, or the root of a machine.

use std::error::Error;
use std::io;
use std::io::Read as _;
use std::ops::Range;
use std::sync::Arc;

use ext4_view::{Ext4, Ext4Read, FileType};
use tec_core::reference::{BootImage, ImageFile};

use super::bytes::{Bytes, Window};
use crate::compute::resolve::{MAX_DEPTH, too_large};

/// Maximum number of entries of all folders that are listed; a large operating system has about 300,000.
const MAX_ENTRIES: usize = 1_000_000;
/// Largest file that is copied for reading.
const MAX_FILE: u64 = 4 << 30;
/// Bytes of the ext file systems and where they lie (Linux, Documentation/filesystems/ext4, "Super Block").
const MAGIC: ([u8; 2], u64) = ([0x53, 0xef], 0x438);

/// The files of an ext4 file system. Links are followed as if it were the root of a machine.
#[derive(Debug)]
pub(super) struct Ext4Image {
    bytes: Arc<Bytes>,
    range: Range<u64>,
}

/// Whether an ext file system begins here.
pub(super) fn is_ext4(bytes: &Bytes, offset: u64) -> io::Result<bool> {
    let (magic, at) = MAGIC;
    Ok(bytes.array(offset.saturating_add(at))? == Some(magic))
}

impl Ext4Image {
    pub(super) fn open(bytes: &Arc<Bytes>, range: Range<u64>) -> io::Result<Self> {
        let image = Self { bytes: Arc::clone(bytes), range };
        image.load().map(|_| image)
    }

    /// Where a machine mounts it, by the folders in it; none if it holds no boot files.
    pub(super) fn place(&self) -> io::Result<Option<&'static str>> {
        let system = self.load()?;
        let has = |name: &str| system.exists(format!("/{name}").as_str());
        if has("boot")? && (has("etc")? || has("usr")?) {
            return Ok(Some(""));
        }
        let is_boot = has("grub")? || has("grub2")? || has("loader")?;
        Ok(is_boot.then_some("boot/"))
    }

    /// The crate's handle is bound to one thread; making one reads only the superblock and what it points to.
    fn load(&self) -> io::Result<Ext4> {
        let part = Part(self.bytes.window(self.range.clone()));
        Ok(Ext4::load(Box::new(part))?)
    }
}

impl BootImage for Ext4Image {
    fn files(&self, prefix: &str) -> io::Result<Vec<String>> {
        let prefix = prefix.trim_end_matches('/');
        let mut search = Search { system: self.load()?, entries: 0, found: Vec::new() };
        match search.system.metadata(format!("/{prefix}").as_str()).map_err(io::Error::from) {
            Ok(folder) if folder.is_dir() => search.folder(prefix, 0)?,
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        search.found.sort();
        Ok(search.found)
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn ImageFile>> {
        let system = self.load()?;
        let path = format!("/{path}");
        if !system.metadata(path.as_str())?.file_type().is_regular_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "this is not a regular file"));
        }
        let copy = Bytes::copy(system.open(path.as_str())?, MAX_FILE)?;
        Ok(Box::new(copy.window(0..copy.size())))
    }
}

struct Search {
    system: Ext4,
    entries: usize,
    found: Vec<String>,
}

impl Search {
    fn folder(&mut self, name: &str, depth: usize) -> io::Result<()> {
        if depth > MAX_DEPTH {
            return Err(too_large("the folders are nested too deeply"));
        }
        for entry in self.system.read_dir(format!("/{name}").as_str())? {
            let entry = entry?;
            self.entries += 1;
            if self.entries > MAX_ENTRIES {
                return Err(too_large("the file system has too many files"));
            }
            let file_name = entry.file_name();
            let Some(file_name) =
                file_name.as_str().ok().filter(|name| ![".", ".."].contains(name))
            else {
                continue;
            };
            let path =
                if name.is_empty() { file_name.to_owned() } else { format!("{name}/{file_name}") };
            let followed = || self.system.metadata(format!("/{path}").as_str());
            match entry.file_type()? {
                FileType::Directory => self.folder(&path, depth + 1)?,
                FileType::Symlink if followed().is_ok_and(|to| to.is_dir()) => {}
                FileType::Regular | FileType::Symlink => self.found.push(path),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The bytes of the file system.
struct Part(Window);

impl Ext4Read for Part {
    fn read(&mut self, start: u64, buffer: &mut [u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        let mut window = self.0.clone();
        window.skip(start)?;
        Ok(window.read_exact(buffer)?)
    }
}
