//! A partition table with one EFI system partition (UEFI 2.10, chapter 5). All identifiers are
//! constants: the same content gives the same disk.

use std::fs::File;
use std::io::Seek as _;
use std::io::SeekFrom;
use std::io::Write as _;

/// Bytes of a sector.
const SECTOR: u64 = 512;
/// First sector of the partition: 1 MiB, where partitioning programs put it.
pub(super) const FIRST: u64 = 2048;
/// Entries of the table (UEFI 2.10, 5.3: 16 KiB at least), and bytes of one.
const ENTRIES: u32 = 128;
const ENTRY_SIZE: u32 = 128;
/// Sectors of one table.
const TABLE: u64 = (ENTRIES * ENTRY_SIZE) as u64 / SECTOR;
/// Bytes of the header that are in use (UEFI 2.10, table 5-5).
const HEADER_SIZE: u32 = 92;
/// EFI system partition, c12a7328-f81f-11d2-ba4b-00a0c93ec93b, in the order of memory.
const SYSTEM_PARTITION: [u8; 16] = [
    0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11, 0xba, 0x4b, 0x00, 0xa0, 0xc9, 0x3e, 0xc9, 0x3b,
];
/// Made up; nothing looks at them.
const DISK: [u8; 16] = *b"TEC e2e disk id.";
const PARTITION: [u8; 16] = *b"TEC e2e part id.";

/// Where the partition begins, in bytes.
pub(super) const fn offset() -> u64 {
    FIRST * SECTOR
}

/// Bytes of a disk whose partition has this many.
pub(super) const fn disk_size(partition: u64) -> u64 {
    // The same room behind as in front, for the second table.
    partition + 2 * offset()
}

/// Writes both tables and the protective master boot record around a partition of `size` bytes.
pub(super) fn write(disk: &mut File, size: u64) -> std::io::Result<()> {
    let table = table(size / SECTOR);
    let sectors = disk_size(size) / SECTOR;
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

fn table(partition_sectors: u64) -> Vec<u8> {
    let mut table = Vec::new();
    table.extend(SYSTEM_PARTITION);
    table.extend(PARTITION);
    table.extend(FIRST.to_le_bytes());
    table.extend((FIRST + partition_sectors - 1).to_le_bytes());
    table.extend([0; 8]); // attributes
    table.extend("ESP".encode_utf16().flat_map(u16::to_le_bytes));
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
        // Own place, the other's, first and last sector that partitions may use.
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
    const POLYNOMIAL: u32 = 0xedb8_8320;
    let shift = |crc: u32| (crc >> 1) ^ (POLYNOMIAL * (crc & 1));
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| shift(crc))
    })
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
        let table = table(64);
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
}
