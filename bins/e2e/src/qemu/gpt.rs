//! Partition tables (UEFI 2.10, chapter 5) with an EFI system partition, and optionally one for a root. All
//! identifiers are constants: the same content yields the same disk.

use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};

/// Bytes of a sector.
const SECTOR: u64 = 512;
/// First sector of the partition: 1 MiB, as in partitioning programs.
pub(super) const FIRST: u64 = 2048;
/// Number of table entries (UEFI 2.10, 5.3: 16 KiB at least), and bytes of one.
const ENTRIES: u32 = 128;
const ENTRY_SIZE: u32 = 128;
/// Sectors of one table.
const TABLE: u64 = (ENTRIES * ENTRY_SIZE) as u64 / SECTOR;
/// Bytes of the header in use (UEFI 2.10, table 5-5).
const HEADER_SIZE: u32 = 92;
/// EFI system partition, c12a7328-f81f-11d2-ba4b-00a0c93ec93b, in memory order.
const SYSTEM_PARTITION: [u8; 16] = [
    0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11, 0xba, 0x4b, 0x00, 0xa0, 0xc9, 0x3e, 0xc9, 0x3b,
];
/// Linux file system data, 0fc63daf-8483-4772-8e79-3d69d8477de4, in memory order.
const LINUX: [u8; 16] = [
    0xaf, 0x3d, 0xc6, 0x0f, 0x83, 0x84, 0x72, 0x47, 0x8e, 0x79, 0x3d, 0x69, 0xd8, 0x47, 0x7d, 0xe4,
];
/// Arbitrary; nothing checks it.
const DISK: [u8; 16] = *b"TEC e2e disk id.";

/// A partition of a disk; partitions are contiguous.
#[derive(Clone, Copy, Debug)]
pub(super) struct Partition {
    kind: [u8; 16],
    id: [u8; 16],
    name: &'static str,
    size: u64,
}

impl Partition {
    /// The partition that firmware boots from, of `size` bytes.
    pub(super) const fn system(size: u64) -> Self {
        Self { kind: SYSTEM_PARTITION, id: *b"TEC e2e part id.", name: "ESP", size }
    }

    /// `/boot` of a machine whose root is encrypted.
    pub(super) const fn boot(size: u64) -> Self {
        Self { kind: LINUX, id: *b"TEC e2e boot id.", name: "boot", size }
    }

    /// The partition that an installer encrypts, found by its name.
    pub(super) const fn root(size: u64) -> Self {
        Self { kind: LINUX, id: *b"TEC e2e root id.", name: "root", size }
    }

    /// One that someone adds who has the disk in hand.
    pub(super) const fn added(size: u64) -> Self {
        Self { kind: LINUX, id: *b"TEC e2e more id.", name: "more", size }
    }
}

/// Offset of the first partition, in bytes.
pub(super) const fn offset() -> u64 {
    FIRST * SECTOR
}

/// Bytes of a disk with these partitions.
pub(super) fn disk_size(partitions: &[Partition]) -> u64 {
    let sizes = partitions.iter().map(|partition| partition.size);
    // As much space at the end as at the start, for the second table.
    sizes.sum::<u64>() + 2 * offset()
}

/// Writes both tables and the protective master boot record around the partitions.
pub(super) fn write(disk: &mut File, partitions: &[Partition]) -> std::io::Result<()> {
    let table = table(partitions);
    let sectors = disk_size(partitions) / SECTOR;
    let last = sectors - 1;
    let first_header = header(1, last, 2, sectors, &table);
    let second_header = header(last, 1, last - TABLE, sectors, &table);
    let parts = [
        (0, protective_record(last)),
        (1, first_header),
        (2, table.clone()),
        (last - TABLE, table),
        (last, second_header),
    ];
    for (sector, bytes) in parts {
        disk.seek(SeekFrom::Start(sector * SECTOR))?;
        disk.write_all(&bytes)?;
    }
    Ok(())
}

fn table(partitions: &[Partition]) -> Vec<u8> {
    let mut table = Vec::new();
    let mut first = FIRST;
    for (number, partition) in (1..).zip(partitions) {
        let next = first + partition.size / SECTOR;
        table.extend(partition.kind);
        table.extend(partition.id);
        table.extend(first.to_le_bytes());
        table.extend((next - 1).to_le_bytes());
        table.extend([0; 8]); // attributes
        table.extend(partition.name.encode_utf16().flat_map(u16::to_le_bytes));
        table.resize(ENTRY_SIZE as usize * number, 0);
        first = next;
    }
    table.resize((ENTRIES * ENTRY_SIZE) as usize, 0);
    table
}

fn header(own: u64, other: u64, table_at: u64, sectors: u64, table: &[u8]) -> Vec<u8> {
    let with_checksum = |checksum: u32| {
        let mut header = b"EFI PART".to_vec();
        header.extend(0x0001_0000_u32.to_le_bytes()); // revision 1.0
        header.extend(HEADER_SIZE.to_le_bytes());
        header.extend(checksum.to_le_bytes());
        header.extend([0; 4]);
        // This table's sector, the other's, and the first and last sectors usable for partitions.
        for number in [own, other, 2 + TABLE, sectors - TABLE - 2] {
            header.extend(number.to_le_bytes());
        }
        header.extend(DISK);
        header.extend(table_at.to_le_bytes());
        for number in [ENTRIES, ENTRY_SIZE, crc32(table)] {
            header.extend(number.to_le_bytes());
        }
        header
    };
    with_checksum(crc32(&with_checksum(0)))
}

/// UEFI 2.10, 5.2.3: one entry of type 0xee over the whole disk.
fn protective_record(last: u64) -> Vec<u8> {
    let mut record = vec![0; 446];
    record.extend([0, 0, 2, 0, 0xee, 0xff, 0xff, 0xff]);
    record.extend(1_u32.to_le_bytes());
    record.extend(u32::try_from(last).unwrap_or(u32::MAX).to_le_bytes());
    record.resize(510, 0);
    record.extend([0x55, 0xaa]);
    record
}

/// CRC-32 as in Ethernet (ISO 3309), reflected.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_usual_one() {
        // Check value of CRC-32/ISO-HDLC.
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn both_headers_name_each_other_and_carry_their_checksum() {
        let table = table(&[Partition::system(64 * SECTOR)]);
        for (own, other) in [(1, 4159), (4159, 1)] {
            let mut header = header(own, other, 2, 4160, &table);
            assert_eq!(header.len(), 92);
            assert_eq!(header[24..32], own.to_le_bytes());
            assert_eq!(header[32..40], other.to_le_bytes());
            let stored: Vec<u8> = header.splice(16..20, [0; 4]).collect();
            assert_eq!(stored, crc32(&header).to_le_bytes());
        }
        assert_eq!(protective_record(4159).len(), 512);
    }

    #[test]
    fn partitions_follow_one_another() {
        let both = [Partition::system(64 * SECTOR), Partition::root(32 * SECTOR)];
        let table = table(&both);
        assert_eq!(table.len(), 16 << 10);
        let place = |entry: usize| {
            let at = |offset: usize| {
                let bytes = table[entry * 128 + offset..][..8].try_into().unwrap();
                u64::from_le_bytes(bytes)
            };
            [at(32), at(40)]
        };
        assert_eq!(place(0), [2048, 2111]);
        assert_eq!(place(1), [2112, 2143]);
        assert_eq!(disk_size(&both), (96 + 4096) * SECTOR);
    }
}
