//! Readers of the structures.

use super::{Content, Partition};
use crate::event_log::device_path::file_of;
use crate::event_log::text::{decoded, printable, utf16};
use crate::guid::Guid;

/// Maximum number of partitions or tables that are read from one event; real ones have about ten.
const MAX_ENTRIES: u64 = 1024;
/// `UEFI_PARTITION_TABLE_HEADER` (UEFI 2.10, 5.3.2).
const GPT_HEADER: usize = 92;
/// `UEFI_PARTITION_ENTRY` (UEFI 2.10, 5.3.3).
const GPT_ENTRY: usize = 128;

pub(super) fn variable(data: &[u8]) -> Option<Content<'_>> {
    let (vendor, rest) = data.split_first_chunk()?;
    let (characters, rest) = number(rest)?;
    let (size, rest) = number(rest)?;
    let name_size = usize::try_from(characters).ok()?.checked_mul(2)?;
    let (name, rest) = rest.split_at_checked(name_size)?;
    // Nothing may follow: what is measured as one thing must not be read as another.
    (u64::try_from(rest.len()) == Ok(size)).then(|| Content::Variable {
        vendor: Guid::from_bytes(*vendor),
        name: utf16(name),
        data: rest,
    })
}

/// `UEFI_VARIABLE_DATA` (PC Client Platform Firmware Profile 1.06, 10.2.6): vendor 16, number of characters 8,
/// size of the data 8, name in UTF-16 without terminator, data.
pub(crate) fn variable_data(vendor: Guid, name: &str, data: &[u8]) -> Vec<u8> {
    let units: Vec<u8> = name.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let mut event = vendor.as_bytes().to_vec();
    event.extend((units.len() as u64 / 2).to_le_bytes());
    event.extend((data.len() as u64).to_le_bytes());
    event.extend(units);
    event.extend(data);
    event
}

/// Location, length and link address in memory, length of the device path; then the device path.
pub(super) fn image(data: &[u8]) -> Option<Content<'_>> {
    let (_location, rest) = number(data)?;
    let (length, rest) = number(rest)?;
    let (_link_address, rest) = number(rest)?;
    let (path, rest) = number(rest)?;
    let path = usize::try_from(path).unwrap_or(usize::MAX);
    Some(Content::Image { path: file_of(rest.get(..path.min(rest.len()))?), length })
}

pub(super) fn blob(name: Option<String>, data: &[u8]) -> Option<Content<'_>> {
    let (base, rest) = number(data)?;
    let (length, rest) = number(rest)?;
    rest.is_empty().then_some(Content::Firmware { name, base, length })
}

/// A count, then GUID and address of each table.
pub(super) fn tables(name: Option<String>, data: &[u8]) -> Option<Content<'_>> {
    let (count, mut rest) = number(data)?;
    let mut tables = Vec::new();
    for _ in 0..count.min(MAX_ENTRIES) {
        let (guid, after) = rest.split_first_chunk()?;
        tables.push(Guid::from_bytes(*guid));
        (_, rest) = number(after)?;
    }
    Some(Content::Tables { name, tables })
}

/// A partition table header, a count, then the entries that are in use.
pub(super) fn partitions(data: &[u8]) -> Option<Content<'_>> {
    let (header, rest) = data.split_at_checked(GPT_HEADER)?;
    let disk = header.strip_prefix(b"EFI PART")?.get(48..)?.first_chunk::<16>()?;
    let (count, rest) = number(rest)?;
    let count = usize::try_from(count.min(MAX_ENTRIES)).ok()?;
    let entries = rest.chunks_exact(GPT_ENTRY).take(count);
    let partitions: Vec<_> = entries.filter_map(partition).collect();
    (partitions.len() == count)
        .then(|| Content::Partitions { disk: Guid::from_bytes(*disk), partitions })
}

fn partition(entry: &[u8]) -> Option<Partition> {
    let (kind, rest) = entry.split_first_chunk()?;
    let (id, rest) = rest.split_first_chunk()?;
    let (first, rest) = number(rest)?;
    let (last, rest) = number(rest)?;
    let (_attributes, name) = number(rest)?;
    Some(Partition {
        kind: Guid::from_bytes(*kind),
        id: Guid::from_bytes(*id),
        name: printable(&utf16(name)).unwrap_or_default(),
        first,
        last,
    })
}

pub(super) fn tagged(data: &[u8]) -> Option<Content<'_>> {
    let (id, rest) = data.split_first_chunk()?;
    let (size, rest) = rest.split_first_chunk()?;
    let size = usize::try_from(u32::from_le_bytes(*size)).ok()?;
    (rest.len() == size).then(|| Content::Tagged { id: u32::from_le_bytes(*id), data: rest })
}

pub(super) fn signature(data: &[u8]) -> Option<Content<'_>> {
    let (signature, rest) = data.split_first_chunk::<16>()?;
    match (signature, rest) {
        (b"StartupLocality\0", &[locality]) => Some(Content::StartupLocality { locality }),
        _ => Some(Content::Signature {
            name: printable(&decoded(signature)).filter(|name| name.is_ascii())?,
        }),
    }
}

pub(super) fn text(data: &[u8]) -> Option<Content<'_>> {
    let text = printable(&decoded(data))?;
    Some(Content::Text { text })
}

/// Text that cannot be mistaken for anything else: printable ASCII to its end.
pub(super) fn ascii(data: &[u8]) -> Option<Content<'_>> {
    let end = data.iter().rposition(|byte| *byte != 0)?;
    let printed = data.get(..=end)?;
    let is_text = printed.iter().all(|byte| matches!(byte, b' '..=b'~'));
    is_text.then(|| text(printed)).flatten()
}

/// A length in one byte, that many bytes of text, then what the text describes.
pub(super) fn description(data: &[u8]) -> Option<(String, &[u8])> {
    let (length, rest) = data.split_first()?;
    let (name, rest) = rest.split_at_checked(usize::from(*length))?;
    Some((printable(&decoded(name)).unwrap_or_default(), rest))
}

fn number(data: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = data.split_first_chunk()?;
    Some((u64::from_le_bytes(*number), rest))
}
