//! What a file is, by its content.

use std::io;
use std::io::Read as _;
use std::sync::Arc;

use super::allowance::Allowance;
use super::bytes::Bytes;
use super::disk;
use super::ext4::is_ext4;
use super::fat::is_fat;
use super::tar::{BLOCK, is_header};
use super::unpack::{Packing, unpack};

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Disk,
    Ext4,
    Fat,
    Tar,
    PackedTar,
    Program,
    /// A known format that is not supported.
    Unsupported {
        what: &'static str,
        hint: &'static str,
    },
    Unknown,
}

/// An EFI program begins with an MS-DOS header (PE format, "MS-DOS Stub").
const PROGRAM: &[u8] = b"MZ";
const UNPACK: &str = "unpack it first";
const CONVERT: &str = "convert it to a raw disk first, for example with qemu-img";
const MOUNT: &str = "mount it read-only and give the folder";
/// First bytes of other formats in which images are distributed.
const OTHERS: [(&[u8], &str, &str); 6] = [
    (b"XFSB", "an XFS file system", MOUNT),
    (b"\xfd7zXZ\0", "packed with xz", UNPACK),
    (b"BZh", "packed with bzip2", UNPACK),
    (b"QFI\xfb", "a disk in the format of QEMU", CONVERT),
    (b"KDMV", "a disk in the format of VMware", CONVERT),
    (b"vhdxfile", "a disk in the format of Hyper-V", CONVERT),
];

impl Format {
    pub(super) fn of(bytes: &Arc<Bytes>) -> io::Result<Self> {
        let mut block = [0; BLOCK];
        let count = bytes.read_at(0, &mut block)?;
        let start = block.get(..count).unwrap_or_default();
        if Packing::of(start) != Packing::Plain {
            return Self::of_packed(bytes);
        }
        for (magic, what, hint) in OTHERS {
            if start.starts_with(magic) {
                return Ok(Self::Unsupported { what, hint });
            }
        }
        if start.starts_with(PROGRAM) {
            return Ok(Self::Program);
        }
        // The order matters: a disk with GPT begins with an MBR, and a FAT file system and an MBR
        // end their first sector alike.
        Ok(if disk::has_gpt(bytes)? {
            Self::Disk
        } else if is_fat(bytes, 0)? {
            Self::Fat
        } else if is_header(&block) {
            Self::Tar
        } else if is_ext4(bytes, 0)? {
            Self::Ext4
        } else if disk::has_mbr(bytes)? {
            Self::Disk
        } else {
            Self::Unknown
        })
    }

    fn of_packed(bytes: &Arc<Bytes>) -> io::Result<Self> {
        let packed = bytes.window(0..bytes.size());
        let mut start = Vec::new();
        let mut unpacked =
            unpack(Box::new(packed), &Allowance::default().meter())?.take(BLOCK as u64);
        unpacked.read_to_end(&mut start)?;
        Ok(match start.first_chunk() {
            Some(block) if is_header(block) => Self::PackedTar,
            _ => Self::Unsupported { what: "a packed file that is not a tar stream", hint: UNPACK },
        })
    }
}
