//! The entries of a folder of a FAT file system.

use std::sync::Arc;

use super::chain::Chain;
use super::volume::{Root, Volume};
use crate::compute::input::bytes::{le16, le32};
use crate::compute::input::disk::DiskError;

/// The records of a folder, 32 bytes each, and where they lie in the image.
#[derive(Debug)]
pub(super) struct Records {
    pub(super) bytes: Vec<u8>,
    /// Where each piece of `piece` bytes lies.
    pieces: Vec<u64>,
    piece: u64,
}

/// Section 6: a folder has at most 65 536 records.
const MAX_FOLDER: u64 = 65_536 * 32;

impl Records {
    /// The records of the root.
    pub(super) fn root(volume: &Arc<Volume>) -> Result<Self, DiskError> {
        match volume.root().clone() {
            Root::Cluster(cluster, offset) => Self::folder(volume, cluster, offset, ""),
            Root::Fixed(range) => {
                let size = range.end - range.start;
                let mut bytes = vec![0; usize::try_from(size).unwrap_or_default()];
                volume.fill(range.start, &mut bytes, "the root folder")?;
                Ok(Self { bytes, pieces: vec![range.start], piece: size.max(1) })
            }
        }
    }

    /// The records of the folder that begins with `cluster`, whose number is at `offset`.
    pub(super) fn folder(
        volume: &Arc<Volume>,
        cluster: u32,
        offset: u64,
        path: &str,
    ) -> Result<Self, DiskError> {
        let size = volume.cluster_size();
        let mut chain = Chain::new(Arc::clone(volume), Some(cluster), offset);
        let mut records = Self { bytes: Vec::new(), pieces: Vec::new(), piece: size };
        while let Some(range) = chain.next()? {
            let filled = records.bytes.len();
            if filled as u64 + size > MAX_FOLDER {
                return Err(DiskError::TooManyEntries {
                    offset: records.offset(0),
                    path: path.to_owned(),
                });
            }
            let grown = filled.saturating_add(usize::try_from(size).unwrap_or_default());
            records.bytes.resize(grown, 0);
            let piece = records.bytes.get_mut(filled..).unwrap_or_default();
            volume.fill(range.start, piece, "a folder")?;
            records.pieces.push(range.start);
        }
        Ok(records)
    }

    /// Where a byte of the records lies in the image.
    pub(super) fn offset(&self, at: u64) -> u64 {
        let piece = usize::try_from(at / self.piece).unwrap_or(usize::MAX);
        self.pieces.get(piece).copied().unwrap_or_default() + at % self.piece
    }
}

/// A file or folder.
#[derive(Debug)]
pub(super) struct Entry {
    /// Where its record lies in the image.
    pub(super) offset: u64,
    pub(super) kind: Kind,
    /// The name that is shown; none if it has no text form.
    pub(super) name: Option<String>,
    /// The short name, by which firmware also finds the file.
    pub(super) short: Option<String>,
    /// High and low half of the first cluster's number.
    pub(super) first: (u16, u16),
    pub(super) size: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Folder,
}

// Section 6: attributes at 11 of a record.
const VOLUME_LABEL: u8 = 0x08;
const FOLDER: u8 = 0x10;
/// All four low bits: a part of a long name (section 7).
const LONG_NAME: u8 = 0x0f;
/// First byte of a record that was deleted (section 6).
const DELETED: u8 = 0xe5;

/// Names of a folder itself and of the one above (section 6.5).
const DOTS: [&[u8; 11]; 2] = [b".          ", b"..         "];

/// The entries of a folder in order.
#[derive(Debug)]
pub(super) struct Entries<'r> {
    records: &'r Records,
    at: u64,
    long: LongName,
}

impl<'r> Entries<'r> {
    pub(super) fn new(records: &'r Records) -> Self {
        Self { records, at: 0, long: LongName::default() }
    }
}

impl Iterator for Entries<'_> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        loop {
            let start = usize::try_from(self.at).ok()?;
            let record: &[u8; 32] = self.records.bytes.get(start..)?.first_chunk()?;
            let offset = self.records.offset(self.at);
            let [first, ..] = *record;
            if first == 0 {
                return None;
            }
            self.at += 32;
            let attributes = record.get(11).copied().unwrap_or_default() & 0x3f;
            if first != DELETED && attributes == LONG_NAME {
                self.long.push(record);
                continue;
            }
            let long = std::mem::take(&mut self.long);
            let is_dots = DOTS.iter().any(|dots| record.starts_with(*dots));
            if first == DELETED || is_dots || attributes & VOLUME_LABEL != 0 {
                continue;
            }
            let short = short_name(record);
            let is_folder = attributes & FOLDER != 0;
            return Some(Entry {
                offset,
                kind: if is_folder { Kind::Folder } else { Kind::File },
                name: match long.finish(record) {
                    Long::Absent => short.clone(),
                    Long::Text(name) => Some(name),
                    Long::NoText => None,
                },
                short,
                first: (le16(record, 20), le16(record, 26)),
                size: le32(record, 28),
            });
        }
    }
}

/// Name 8, extension 3, both padded with blanks; at 12 whether they are shown in lower case (as
/// Windows NT, Linux and EDK II do).
fn short_name(record: &[u8; 32]) -> Option<String> {
    let flags = record.get(12).copied().unwrap_or_default();
    let part = |from: usize, to: usize, small: u8| {
        let part = record.get(from..to).unwrap_or_default();
        let text = std::str::from_utf8(part).ok().filter(|t| t.is_ascii())?;
        let text = text.trim_end_matches(' ');
        Some(if flags & small == 0 { text.to_owned() } else { text.to_ascii_lowercase() })
    };
    let (name, extension) = (part(0, 8, 0x08)?, part(8, 11, 0x10)?);
    Some(if extension.is_empty() { name } else { format!("{name}.{extension}") })
}

/// A long name, which precedes its record in parts of 13 characters, the last one first
/// (section 7).
#[derive(Debug, Default)]
struct LongName {
    /// Parts in the order read, until one does not match.
    parts: Vec<[u16; 13]>,
    /// Number of the last part read.
    order: u8,
    checksum: u8,
}

enum Long {
    Absent,
    Text(String),
    /// It is not text.
    NoText,
}

/// Maximum number of parts of a name: 255 characters.
const MAX_PARTS: u8 = 20;

impl LongName {
    /// Parts that do not match each other are ignored, as in EDK II: then the short name is shown.
    fn push(&mut self, record: &[u8; 32]) {
        let order = record.first().copied().unwrap_or_default();
        let checksum = record.get(13).copied().unwrap_or_default();
        let number = order & 0x3f;
        let is_last = order & 0x40 != 0 && (1..=MAX_PARTS).contains(&number);
        if is_last {
            self.parts.clear();
            self.checksum = checksum;
        } else if self.parts.is_empty() || number + 1 != self.order || checksum != self.checksum {
            *self = Self::default();
            return;
        }
        self.order = number;
        let mut part = [0; 13];
        let places = (1..11).step_by(2).chain((14..26).step_by(2)).chain([28, 30]);
        for (unit, at) in part.iter_mut().zip(places) {
            *unit = le16(record, at);
        }
        self.parts.push(part);
    }

    /// The name, if all parts are there and belong to this record.
    fn finish(self, record: &[u8; 32]) -> Long {
        if self.parts.is_empty() || self.order != 1 || self.checksum != checksum(record) {
            return Long::Absent;
        }
        let units = self.parts.iter().rev().flatten().copied();
        let units: Vec<u16> = units.take_while(|unit| *unit != 0).collect();
        String::from_utf16(&units).map_or(Long::NoText, Long::Text)
    }
}

/// Section 7.2: each byte is added to the sum so far, rotated to the right by one.
fn checksum(record: &[u8; 32]) -> u8 {
    let name = record.iter().take(11);
    name.fold(0, |sum: u8, byte| sum.rotate_right(1).wrapping_add(*byte))
}
