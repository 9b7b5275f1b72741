//! Corrects checksums of GUID partition tables and tar headers.

use std::ops::Range;

use flate2::Crc;

use crate::bytes::u32_at;

const SECTOR: usize = 512;
/// Location of the checksum in a tar header (POSIX pax, "ustar Interchange Format").
const TAR_SUM: Range<usize> = 148..156;

/// The same bytes with correct checksums wherever there is a header with one.
pub(super) fn repaired(data: &[u8]) -> Vec<u8> {
    let mut data = data.to_vec();
    for block in data.chunks_exact_mut(SECTOR) {
        if block.get(257..262) == Some(b"ustar") {
            sign_tar(block);
        }
    }
    if data.get(SECTOR..SECTOR + 8) == Some(b"EFI PART") {
        sign_gpt(&mut data);
    }
    data
}

/// The sum of all bytes, with those of the sum itself counted as blanks, in six octal digits.
pub(super) fn sign_tar(header: &mut [u8]) {
    write(header, TAR_SUM.start, b"        ");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    write(header, TAR_SUM.start, format!("{sum:06o}\0 ").as_bytes());
}

/// UEFI 2.10, 5.3.2: in the header, checksum at 16, number of entries at 80, size of one at 84, their
/// checksum at 88; the entries are assumed at their usual location, the third sector.
pub(super) fn sign_gpt(disk: &mut [u8]) {
    let field = |at| u32_at(disk, SECTOR + at).unwrap_or_default();
    let length = field(80).saturating_mul(field(84));
    let entries = disk.get(2 * SECTOR..).and_then(|rest| rest.get(..length));
    if let Some(sum) = entries.map(crc32) {
        write(disk, SECTOR + 88, &sum);
    }
    write(disk, SECTOR + 16, &[0; 4]);
    let header = disk.get(SECTOR..SECTOR + 92).map(crc32);
    write(disk, SECTOR + 16, &header.unwrap_or_default());
}

fn crc32(bytes: &[u8]) -> [u8; 4] {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum().to_le_bytes()
}

fn write(data: &mut [u8], at: usize, bytes: &[u8]) {
    let place = data.get_mut(at..).unwrap_or_default();
    for (place, byte) in place.iter_mut().zip(bytes) {
        *place = *byte;
    }
}
