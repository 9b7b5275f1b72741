//! The GUID partition table (UEFI 2.10, 5.3).

use std::io;

use flate2::Crc;

use super::{DiskError, Partition, Use, checked, fill, read};
use crate::compute::input::bytes::{Bytes, le32, le64};
use crate::guid::Guid;

/// Type of an EFI system partition in a GPT (UEFI 2.10, 5.3.3).
const SYSTEM_GUID: Guid = Guid::of(0xc12a_7328_f81f_11d2_ba4b_00a0_c93e_c93b);
/// Maximum number of entries of a GPT that are read; 128 is usual.
const MAX_ENTRIES: u32 = 1024;
/// Largest entry of a GPT that is read; 128 bytes are usual (UEFI 2.10, 5.3.2).
const MAX_ENTRY: u32 = 4096;

/// Size of a sector, if there is a table in the second one.
pub(super) fn sector(bytes: &Bytes) -> io::Result<Option<u64>> {
    for sector in [512, 4096] {
        if bytes.array(sector)? == Some(*b"EFI PART") {
            return Ok(Some(sector));
        }
    }
    Ok(None)
}

/// The partitions of a GPT. The copy at the end of the disk is not used: firmware would repair the
/// first one with it, and would then not boot this image.
pub(super) fn partitions(bytes: &Bytes, sector: u64) -> Result<Vec<Partition>, DiskError> {
    let header: [u8; 92] = read(bytes, sector, "the GPT header")?;
    check_header(&header, sector)?;
    // UEFI 2.10, 5.3.2: entries from 72, number at 80, size of one at 84, their checksum at 88.
    let refuse =
        |at: u64, field, value| Err(DiskError::Field { offset: sector + at, field, value });
    let (count, size) = (le32(&header, 80), le32(&header, 84));
    if count > MAX_ENTRIES {
        return refuse(80, "number of partition entries", count.into());
    }
    if !(128..=MAX_ENTRY).contains(&size) || !size.is_power_of_two() {
        return refuse(84, "size of a partition entry", size.into());
    }
    let first = le64(&header, 72);
    let Some(offset) = first.checked_mul(sector).filter(|_| first >= 2) else {
        return refuse(72, "first sector of the partition entries", first);
    };
    let length = u64::from(count) * u64::from(size);
    let mut entries = vec![0; usize::try_from(length).unwrap_or_default()];
    fill(bytes, offset, &mut entries, "the partition entries")?;
    if crc32(&entries) != le32(&header, 88) {
        return Err(DiskError::Checksum { offset, part: "the partition entries" });
    }
    let entries = entries.chunks_exact(usize::try_from(size).unwrap_or(usize::MAX));
    let mut partitions = Vec::new();
    for (entry, number) in entries.zip(1_u32..) {
        let at = offset + u64::from(number - 1) * u64::from(size);
        partitions.extend(partition(bytes, sector, entry, number, at)?);
    }
    Ok(partitions)
}

/// UEFI 2.10, 5.3.2: size of the header at 12, its checksum at 16, its own sector at 24.
fn check_header(header: &[u8; 92], sector: u64) -> Result<(), DiskError> {
    let size = le32(header, 12);
    // Later versions may have larger ones, whose checksum covers what is not known here.
    if size != 92 {
        return Err(DiskError::Field {
            offset: sector + 12,
            field: "size of the GPT header",
            value: size.into(),
        });
    }
    let mut blank = *header;
    blank.iter_mut().skip(16).take(4).for_each(|byte| *byte = 0);
    if crc32(&blank) != le32(header, 16) {
        return Err(DiskError::Checksum { offset: sector, part: "the GPT header" });
    }
    let own = le64(header, 24);
    if own != 1 {
        return Err(DiskError::Field {
            offset: sector + 24,
            field: "sector of the GPT header",
            value: own,
        });
    }
    Ok(())
}

/// UEFI 2.10, 5.3.3: type 16, own GUID 16, first sector at 32, last at 40.
fn partition(
    bytes: &Bytes,
    sector: u64,
    entry: &[u8],
    number: u32,
    at: u64,
) -> Result<Option<Partition>, DiskError> {
    let kind: [u8; 16] = entry.first_chunk().copied().unwrap_or_default();
    if kind == [0; 16] {
        return Ok(None);
    }
    let start = le64(entry, 32).checked_mul(sector);
    let end = le64(entry, 40).checked_add(1);
    let end = end.and_then(|end| end.checked_mul(sector));
    Ok(Some(Partition {
        number,
        range: checked(bytes, at + 32, start.unwrap_or(u64::MAX), end)?,
        system: if Guid::from_bytes(kind) == SYSTEM_GUID { Use::System } else { Use::Other },
    }))
}

/// CRC-32 (UEFI 2.10, 5.3.2 names that of ANSI X3.66).
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}
