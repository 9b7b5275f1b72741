//! Layers with a table of contents: estargz and zstd:chunked.
//!
//! Both are ordinary packed tar streams whose files are packed separately, with a table of contents
//! at the end. Annotations of the layer, which the manifest's digest covers, hold the digest of the
//! table; the table holds the digest of each file. So a few files can be fetched without the rest,
//! and are as trustworthy as if the whole layer had been read.
//!
//! Based on the documentation of both formats: stargz-snapshotter, `docs/estargz.md`, and
//! containers/storage, `docs/containers-storage-zstd-chunked.md`.

mod entry;
mod error;
mod place;

use std::io;
use std::io::Read;

use self::entry::{Entry, entries};
pub use self::error::TableError;
pub(super) use self::place::Place;
use super::blob::Blob;
use super::tar::Item;
use super::unpack::Stream;

/// A layer that is read through its table of contents.
#[derive(Debug)]
pub(super) struct Table {
    blob: Blob,
    entries: Vec<Entry>,
}

impl Table {
    /// Reads the table; none if it lacks what is needed to check files one by one, so that the
    /// layer has to be read as a whole.
    pub(super) fn read(place: &Place, blob: &Blob) -> Result<Option<Self>, TableError> {
        let (toc, end) = place.read(blob)?;
        let entries = entries(toc, end)?;
        Ok(entries.map(|entries| Self { blob: blob.clone(), entries }))
    }

    /// The entries in their order; the offset of each is its number.
    pub(super) fn items(&self) -> impl Iterator<Item = &Item> {
        self.entries.iter().map(|entry| &entry.item)
    }

    /// Opens the file with this number. A wrong size or digest is an error at its end.
    pub(super) fn fetch(&self, number: u64) -> Option<(&Item, io::Result<Stream>)> {
        let index = usize::try_from(number).ok()?;
        let entry = self.entries.get(index)?;
        Some((&entry.item, self.open(entry)))
    }

    fn open(&self, entry: &Entry) -> io::Result<Stream> {
        let Some(packed) = &entry.packed else {
            return Ok(Box::new(io::empty()));
        };
        let mut reader = self.blob.unpack(self.blob.unverified(packed.range.clone())?)?;
        let skipped = io::copy(&mut reader.by_ref().take(packed.inner), &mut io::sink())?;
        if skipped < packed.inner {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let size = entry.item.size;
        Ok(packed.digest.verified(reader.take(size), size))
    }
}
