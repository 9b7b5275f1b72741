//! The entries of a table of contents.

use std::collections::BTreeSet;
use std::ops::Range;

use serde::Deserialize;

use super::error::TableError;
use crate::compute::input::blob::BlobDigest;
use crate::compute::input::tar::{Item, ItemKind, plain, text};

/// A file, folder or link.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) item: Item,
    /// Where its content lies; none if it has no content.
    pub(super) packed: Option<Packed>,
}

/// Content in a layer.
#[derive(Debug)]
pub(super) struct Packed {
    /// The packed bytes.
    pub(super) range: Range<u64>,
    /// Unpacked bytes before the content.
    pub(super) inner: u64,
    /// Digest of the content.
    pub(super) digest: BlobDigest,
}

/// Both formats use the JSON of stargz.
#[derive(Deserialize)]
struct Toc {
    version: u32,
    entries: Vec<TocEntry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct TocEntry {
    r#type: String,
    name: String,
    link_name: String,
    size: u64,
    digest: String,
    /// Where the packed piece begins.
    offset: u64,
    /// Where the packed piece ends; zstd:chunked only.
    end_offset: u64,
    /// Where the content begins in the unpacked bytes; estargz only.
    inner_offset: u64,
    /// Type of a piece that is not data; zstd:chunked only.
    chunk_type: String,
}

/// The entries, numbered; `end` is where the last file ends. None if a file has no digest, or is
/// stored in a way that does not allow fetching it alone.
pub(super) fn entries(json: Vec<u8>, end: u64) -> Result<Option<Vec<Entry>>, TableError> {
    let toc: Toc = serde_json::from_slice(&json).map_err(TableError::Json)?;
    // It may be large, and what is needed is in `toc`.
    drop(json);
    if toc.version != 1 {
        return Err(TableError::Version(toc.version));
    }
    let begins: BTreeSet<u64> = toc.entries.iter().map(|entry| entry.offset).collect();
    let mut entries: Vec<Entry> = Vec::new();
    for piece in &toc.entries {
        let number = entries.len() as u64;
        // Without an end, a piece ends where the next one begins.
        let next = || begins.range(piece.offset.saturating_add(1)..).next().copied();
        let piece_end = match piece.end_offset {
            0 => next().unwrap_or(end),
            end => end,
        };
        if !piece.chunk_type.is_empty() {
            return Ok(None);
        }
        if piece.r#type == "chunk" {
            let last = entries.last_mut().and_then(|entry| entry.packed.as_mut());
            let last = last.filter(|packed| packed.range.start <= piece.offset);
            let last = last.ok_or(TableError::Range(number))?;
            last.range.end = last.range.end.max(piece_end);
            continue;
        }
        let item = item(piece, number)?;
        let packed = if item.kind == ItemKind::File && item.size > 0 {
            let Ok(digest) = piece.digest.parse() else {
                return Ok(None);
            };
            let range = piece.offset..piece_end;
            let inner = piece.inner_offset;
            Some(Packed { range, inner, digest })
        } else {
            None
        };
        entries.push(Entry { item, packed });
    }
    match entries.iter().find(|entry| !entry.fits(end)) {
        Some(entry) => Err(TableError::Range(entry.item.offset)),
        None => Ok(Some(entries)),
    }
}

impl Entry {
    fn fits(&self, end: u64) -> bool {
        let packed = self.packed.as_ref();
        packed.is_none_or(|p| p.range.start < p.range.end && p.range.end <= end)
    }
}

fn item(piece: &TocEntry, number: u64) -> Result<Item, TableError> {
    let refuse = |source| TableError::Path { number, source };
    let target = piece.link_name.as_bytes();
    let kind = match piece.r#type.as_str() {
        "reg" => ItemKind::File,
        "dir" => ItemKind::Folder,
        "symlink" => ItemKind::Link(text(target, number).map_err(refuse)?),
        "hardlink" => ItemKind::HardLink(plain(target, number).map_err(refuse)?),
        "char" | "block" | "fifo" => ItemKind::Special,
        kind => {
            return Err(TableError::Kind { number, kind: kind.chars().take(64).collect() });
        }
    };
    let size = if kind == ItemKind::File { piece.size } else { 0 };
    Ok(Item {
        path: plain(piece.name.as_bytes(), number).map_err(refuse)?,
        kind,
        offset: number,
        size,
    })
}
