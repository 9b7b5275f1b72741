//! The partition table of a master boot record (UEFI 2.10, 5.2).

use super::{DiskError, Partition, Use, checked, read};
use crate::compute::input::bytes::{Bytes, le32};

/// Where the four partition records of an MBR begin, 16 bytes each (UEFI 2.10, 5.2.1).
const MBR_RECORDS: u64 = 446;
/// Type of the one record that protects a GPT from old programs (UEFI 2.10, 5.2.3).
const PROTECTIVE: u8 = 0xee;
/// Type of an EFI system partition in an MBR (UEFI 2.10, 5.2.2).
const SYSTEM_TYPE: u8 = 0xef;
/// Types of FAT file systems in an MBR (UEFI 2.10, 13.3.1.1 leaves them to the media).
const FAT_TYPES: [u8; 6] = [0x01, 0x04, 0x06, 0x0b, 0x0c, 0x0e];

/// The partitions of an MBR without GPT.
pub(super) fn partitions(bytes: &Bytes) -> Result<Vec<Partition>, DiskError> {
    let table: [u8; 64] = read(bytes, MBR_RECORDS, "the partition table")?;
    let mut partitions = Vec::new();
    for (record, number) in table.chunks_exact(16).zip(1..) {
        let offset = MBR_RECORDS + u64::from(number - 1) * 16;
        // Type at 4, first sector at 8, number of sectors at 12.
        let kind = record.get(4).copied().unwrap_or_default();
        let start = u64::from(le32(record, 8)) * 512;
        let size = u64::from(le32(record, 12)) * 512;
        if kind == PROTECTIVE {
            // The table that it stands for is not there.
            return Err(DiskError::Field {
                offset: offset + 4,
                field: "type of a partition without GPT",
                value: kind.into(),
            });
        }
        if kind == 0 || size == 0 {
            continue;
        }
        partitions.push(Partition {
            number,
            range: checked(bytes, offset + 8, start, start.checked_add(size))?,
            system: match kind {
                SYSTEM_TYPE => Use::System,
                kind if FAT_TYPES.contains(&kind) => Use::Fat,
                _ => Use::Other,
            },
        });
    }
    Ok(partitions)
}
