//! Where a table of contents is.

use std::io;
use std::io::Read as _;
use std::ops::Range;

use super::error::TableError;
use crate::compute::input::blob::{Blob, BlobDigest};
use crate::compute::input::tar::{Archive, EndMark};
use crate::compute::resolve::all;

/// Where the table of a layer is, according to its annotations.
#[derive(Debug)]
pub(in crate::compute::input) enum Place {
    /// After the files, as a tar stream; the digest is that of the JSON.
    Estargz { digest: String },
    /// In a frame that decoders skip; the digest is that of the packed JSON.
    Zstd { position: String, digest: String },
}

const ESTARGZ_DIGEST: &str = "containerd.io/snapshot/stargz/toc.digest";
const ZSTD_POSITION: &str = "io.github.containers.zstd-chunked.manifest-position";
const ZSTD_DIGEST: &str = "io.github.containers.zstd-chunked.manifest-checksum";
/// Name of the only file in the stream of an estargz table.
const ESTARGZ_FILE: &str = "stargz.index.json";
/// Size of the footer of an estargz layer: an empty gzip member with an extra field.
const FOOTER: usize = 51;
/// The only type of table that zstd:chunked has.
const ZSTD_TYPE: u64 = 1;
/// Largest table; that of an operating system has some 30 MiB.
const MAX_TABLE: u64 = 256 << 20;

impl Place {
    /// The place that the annotations of a layer point to, if any.
    pub(in crate::compute::input) fn of<'a>(
        annotation: impl Fn(&str) -> Option<&'a str>,
    ) -> Option<Self> {
        let text = |name| annotation(name).map(str::to_owned);
        if let (Some(position), Some(digest)) = (text(ZSTD_POSITION), text(ZSTD_DIGEST)) {
            return Some(Self::Zstd { position, digest });
        }
        text(ESTARGZ_DIGEST).map(|digest| Self::Estargz { digest })
    }

    /// The table, with its digest verified, and where it begins in the layer: files end there.
    pub(super) fn read(&self, blob: &Blob) -> Result<(Vec<u8>, u64), TableError> {
        match self {
            Self::Estargz { digest } => estargz(blob, digest),
            Self::Zstd { position, digest } => zstd(blob, position, digest),
        }
    }
}

fn parsed(name: &'static str, digest: &str) -> Result<BlobDigest, TableError> {
    digest
        .parse()
        .map_err(|_| TableError::Annotation { name, value: digest.chars().take(256).collect() })
}

fn estargz(blob: &Blob, digest: &str) -> Result<(Vec<u8>, u64), TableError> {
    let digest = parsed(ESTARGZ_DIGEST, digest)?;
    let footer = blob.size().saturating_sub(FOOTER as u64);
    let mut bytes = [0; FOOTER];
    let read =
        blob.unverified(footer..blob.size()).and_then(|mut reader| reader.read_exact(&mut bytes));
    read.map_err(|source| TableError::Read { offset: footer, source })?;
    let offset = table_of_footer(&bytes)
        .filter(|offset| *offset < footer)
        .ok_or(TableError::Footer(footer))?;
    let refuse = |source| TableError::Read { offset, source };
    let packed = blob.unverified(offset..footer);
    let packed = packed.and_then(|packed| blob.unpack(packed));
    let mut archive = Archive::new(packed.map_err(refuse)?, EndMark::Optional);
    let item = archive.next(|_, _| Err(io::ErrorKind::Unsupported.into()));
    let item = item.map_err(TableError::Tar)?;
    let is_table = |path: &str| path == ESTARGZ_FILE;
    let Some(item) = item.filter(|item| item.path.as_deref().is_some_and(is_table)) else {
        return Err(TableError::Footer(offset));
    };
    if item.size > MAX_TABLE {
        return Err(refuse(io::ErrorKind::FileTooLarge.into()));
    }
    let mut content = Vec::new();
    let size = archive.content().take(MAX_TABLE).read_to_end(&mut content);
    size.map_err(refuse)?;
    let size = content.len() as u64;
    let checked = digest.verified(io::Cursor::new(content), size);
    Ok((all(checked, MAX_TABLE).map_err(refuse)?, offset))
}

/// estargz.md, "Footer": a gzip header with an extra field `SG`, which holds the offset of the
/// table in 16 hexadecimal digits and a mark.
fn table_of_footer(footer: &[u8; FOOTER]) -> Option<u64> {
    let is_gzip = footer.starts_with(&[0x1f, 0x8b, 8, 4]);
    let field = footer.get(12..38)?.strip_prefix(b"SG\x16\0")?;
    let digits = field.strip_suffix(b"STARGZ").filter(|_| is_gzip)?;
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

fn zstd(blob: &Blob, position: &str, digest: &str) -> Result<(Vec<u8>, u64), TableError> {
    let digest = parsed(ZSTD_DIGEST, digest)?;
    let range = zstd_range(position)
        .filter(|range| range.end <= blob.size() && range.end - range.start <= MAX_TABLE)
        .ok_or_else(|| TableError::Annotation {
            name: ZSTD_POSITION,
            value: position.chars().take(256).collect(),
        })?;
    let offset = range.start;
    let refuse = |source| TableError::Read { offset, source };
    let size = range.end - range.start;
    let packed = blob.unverified(range).map_err(refuse)?;
    let packed = all(digest.verified(packed, size), MAX_TABLE).map_err(refuse)?;
    let table = blob.unpack(Box::new(io::Cursor::new(packed)));
    let table = table.and_then(|table| all(table, MAX_TABLE));
    Ok((table.map_err(refuse)?, offset))
}

/// `offset:packed size:size:type`.
fn zstd_range(position: &str) -> Option<Range<u64>> {
    let mut numbers = position.split(':').map(|number| number.parse::<u64>().ok());
    let mut next = || numbers.next().flatten();
    let (offset, packed, _size, kind) = (next()?, next()?, next()?, next()?);
    let end = offset.checked_add(packed)?;
    (kind == ZSTD_TYPE).then_some(offset..end)
}
