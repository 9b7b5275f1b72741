//! A FAT file system, read only: what firmware sees of an EFI system partition.
//!
//! The crate `fatfs` is not used: it panics on inconsistent file systems, and its files cannot outlive it.
//! Our tests use it to create the file systems that are read here.
//!
//! Sections named here are those of Microsoft's "FAT32 File System Specification" 1.03, which
//! UEFI 2.10, 13.3.1.1 refers to.

mod chain;
mod entry;
mod file;
mod volume;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use tec_core::reference::{BootImage, ImageFile};

use self::chain::Chain;
use self::entry::{Entries, Entry, Kind, Records};
use self::file::FatFile;
use self::volume::Volume;
pub(super) use self::volume::is_fat;
use crate::compute::input::bytes::Bytes;
use crate::compute::input::disk::DiskError;
use crate::compute::input::tree::{Node, Tree};

/// The files of a FAT file system.
#[derive(Debug)]
pub(super) struct FatImage {
    volume: Arc<Volume>,
    tree: Tree<Extent>,
}

/// Where the content of a file lies.
#[derive(Clone, Copy, Debug)]
struct Extent {
    /// First cluster; none for an empty file.
    first: Option<u32>,
    size: u32,
    /// Where the entry of the file is.
    entry: u64,
}

/// Maximum number of entries of all folders together, deleted ones and parts of long names included.
const MAX_ENTRIES: u64 = 4 << 20;

impl FatImage {
    /// Reads all folders of the file system that lies in `range`.
    pub(super) fn open(bytes: &Arc<Bytes>, range: Range<u64>) -> Result<Self, DiskError> {
        let volume = Arc::new(Volume::open(bytes, range)?);
        let mut index =
            Index { volume: &volume, tree: Tree::new(), folders: BTreeSet::new(), entries: 0 };
        index.folder(&Records::root(&volume)?, "")?;
        let tree = index.tree;
        Ok(Self { volume, tree })
    }
}

impl BootImage for FatImage {
    fn files(&self, prefix: &str) -> io::Result<Vec<String>> {
        self.tree.files(prefix)
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn ImageFile>> {
        let extent = *self.tree.find(path)?;
        let chain = Chain::new(Arc::clone(&self.volume), extent.first, extent.entry);
        Ok(Box::new(FatFile::new(chain, extent.size)))
    }
}

/// Collects the files of all folders.
struct Index<'v> {
    volume: &'v Arc<Volume>,
    tree: Tree<Extent>,
    /// First clusters of the folders that were seen.
    folders: BTreeSet<u32>,
    entries: u64,
}

impl Index<'_> {
    fn folder(&mut self, records: &Records, path: &str) -> Result<(), DiskError> {
        self.entries += records.bytes.len() as u64 / 32;
        if self.entries > MAX_ENTRIES {
            return Err(DiskError::TooManyEntries {
                offset: records.offset(0),
                path: path.to_owned(),
            });
        }
        let mut names = BTreeMap::new();
        for entry in Entries::new(records) {
            Self::check_names(&entry, path, &mut names)?;
            let Some(name) = &entry.name else { continue };
            let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            self.entry(&entry, &path)?;
        }
        Ok(())
    }

    fn entry(&mut self, entry: &Entry, path: &str) -> Result<(), DiskError> {
        let misnamed = |source| DiskError::Name { offset: entry.offset, source };
        let first = self.volume.first_cluster(entry.first);
        match entry.kind {
            Kind::File => {
                let extent = Extent { first, size: entry.size, entry: entry.offset };
                let node = Node::File(extent);
                self.tree.insert(0, path, node).map_err(misnamed)
            }
            Kind::Folder => {
                self.tree.insert_folder(path).map_err(misnamed)?;
                let cluster = first.unwrap_or_default();
                if !self.folders.insert(cluster) {
                    return Err(DiskError::SharedFolder {
                        offset: entry.offset,
                        path: path.to_owned(),
                    });
                }
                let records = Records::folder(self.volume, cluster, entry.offset, path)?;
                self.folder(&records, path)
            }
        }
    }

    /// Firmware takes the first entry that matches by its long or its short name; no file system driver
    /// creates a folder in which a second entry matches.
    fn check_names(
        entry: &Entry,
        path: &str,
        names: &mut BTreeMap<String, u64>,
    ) -> Result<(), DiskError> {
        for name in [&entry.name, &entry.short].into_iter().flatten() {
            let first = *names.entry(name.to_lowercase()).or_insert(entry.offset);
            if first != entry.offset {
                return Err(DiskError::SameName {
                    offset: entry.offset,
                    path: format!("{path}/{name}"),
                });
            }
        }
        Ok(())
    }
}
