//! Partitions of a raw disk image: GPT and MBR.
//!
//! These readers replace a crate: they take only a few hundred lines, and each error must state the
//! offset.

mod gpt;
mod mbr;

use std::ops::Range;
use std::{fmt, io};

use crate::compute::input::bytes::Bytes;
use crate::compute::input::tree::TreeError;

/// The partitions of a disk image cannot be determined, or a FAT file system cannot be read. Offsets count
/// bytes from the start of the image.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// Reading failed.
    #[error("offset {offset}: reading failed")]
    Read {
        /// Offset of the read.
        offset: u64,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The image ends too early.
    #[error("offset {offset}: the image ends within {part}")]
    Truncated {
        /// Where the part begins.
        offset: u64,
        /// What is cut off.
        part: &'static str,
    },
    /// A field contradicts the specification, another field, or a limit.
    #[error("offset {offset}: {field} is {value}, which is invalid")]
    Field {
        /// Where the field is.
        offset: u64,
        /// The field.
        field: &'static str,
        /// Value of the field.
        value: u64,
    },
    /// A checksum does not match.
    #[error("offset {offset}: the checksum of {part} does not match")]
    Checksum {
        /// Where the part begins.
        offset: u64,
        /// What the checksum covers.
        part: &'static str,
    },
    /// No partition can be the one that firmware boots from.
    #[error("no partition could be the EFI system partition")]
    NoSystemPartition,
    /// Several partitions can be the one that firmware boots from.
    #[error("several partitions could be the EFI system partition: {}", list(candidates))]
    SeveralSystemPartitions {
        /// All of them.
        candidates: Vec<Partition>,
    },
    /// Several partitions can be the one that is mounted in the same place.
    #[error("several partitions could be /{place}: {}", list(candidates))]
    SeveralAt {
        /// Where, from the root.
        place: &'static str,
        /// All of them.
        candidates: Vec<Partition>,
    },
    /// A partition that might hold boot files cannot be read.
    #[error(
        "cannot read the ext4 file system of partition {number}; choosing partition {system} leaves it out"
    )]
    FileSystem {
        /// Its number.
        number: u32,
        /// That of the EFI system partition.
        system: u32,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The chosen partition does not exist.
    #[error("there is no partition {number}; available: {}", list(candidates))]
    NoSuchPartition {
        /// The number that was chosen.
        number: u32,
        /// All partitions.
        candidates: Vec<Partition>,
    },
    /// A chain of clusters leads to one that cannot belong to it.
    #[error("offset {offset}: cluster {cluster} does not belong to any file")]
    Cluster {
        /// Where the number of the cluster is.
        offset: u64,
        /// The number.
        cluster: u32,
    },
    /// A chain of clusters ends before the file does.
    #[error("offset {offset}: the file ends {missing} bytes too early")]
    Short {
        /// Where the end of the chain is.
        offset: u64,
        /// Bytes missing from the size that its folder states.
        missing: u64,
    },
    /// Two folders share the same clusters.
    #[error("offset {offset}: folder {path:?} shares its clusters with another folder")]
    SharedFolder {
        /// Where the entry of the folder is.
        offset: u64,
        /// Path of the folder.
        path: String,
    },
    /// Two names are the same to firmware, which ignores case.
    #[error("offset {offset}: {path:?} duplicates the name of another file")]
    SameName {
        /// Where the entry of the second one is.
        offset: u64,
        /// Path of the second one.
        path: String,
    },
    /// A folder has more entries than the specification allows, or all folders together exceed the
    /// limit.
    #[error("offset {offset}: folder {path:?} has too many entries")]
    TooManyEntries {
        /// Where the folder begins.
        offset: u64,
        /// Path of the folder.
        path: String,
    },
    /// A name cannot be part of a path.
    #[error("offset {offset}: the name of an entry is invalid")]
    Name {
        /// Where the entry is.
        offset: u64,
        /// The cause.
        #[source]
        source: TreeError,
    },
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Partition {
    /// Number, counted from 1 as in Linux.
    pub number: u32,
    /// Range of its bytes in the image.
    pub range: Range<u64>,
    system: Use,
}

/// What firmware can use a partition for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// EFI system partition.
    System,
    /// A FAT file system without that mark (MBR only), which firmware boots removable media from.
    Fat,
    Other,
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at offset {}", self.number, self.range.start)
    }
}

/// Whether there is a GUID partition table.
pub(super) fn has_gpt(bytes: &Bytes) -> io::Result<bool> {
    Ok(gpt::sector(bytes)?.is_some())
}

/// Whether the first sector ends as a master boot record does; so does a FAT file system.
pub(super) fn has_mbr(bytes: &Bytes) -> io::Result<bool> {
    Ok(bytes.array(MBR_SIGNATURE)? == Some(SIGNATURE))
}

/// All partitions.
pub(super) fn partitions(bytes: &Bytes) -> Result<Vec<Partition>, DiskError> {
    match gpt::sector(bytes).map_err(|source| DiskError::Read { offset: 0, source })? {
        Some(sector) => gpt::partitions(bytes, sector),
        None => mbr::partitions(bytes),
    }
}

/// The partition that firmware boots from.
pub(super) fn boot_partition(partitions: &[Partition]) -> Result<&Partition, DiskError> {
    let of = |wanted| {
        let fits = |p: &&Partition| p.system == wanted;
        partitions.iter().filter(fits).collect::<Vec<_>>()
    };
    let mut candidates = of(Use::System);
    if candidates.is_empty() {
        candidates = of(Use::Fat);
    }
    match candidates.as_slice() {
        [] => Err(DiskError::NoSystemPartition),
        [only] => Ok(only),
        _ => Err(DiskError::SeveralSystemPartitions {
            candidates: candidates.into_iter().cloned().collect(),
        }),
    }
}

/// Where the boot signature of an MBR is (UEFI 2.10, 5.2.1).
const MBR_SIGNATURE: u64 = 510;
const SIGNATURE: [u8; 2] = [0x55, 0xaa];

/// A range that lies within the image; the fields that state it are at `offset`.
fn checked(
    bytes: &Bytes,
    offset: u64,
    start: u64,
    end: Option<u64>,
) -> Result<Range<u64>, DiskError> {
    match end {
        Some(end) if start < end && end <= bytes.size() => Ok(start..end),
        _ => Err(DiskError::Field { offset, field: "extent of a partition", value: start }),
    }
}

fn read<const N: usize>(
    bytes: &Bytes,
    offset: u64,
    part: &'static str,
) -> Result<[u8; N], DiskError> {
    let mut array = [0; N];
    fill(bytes, offset, &mut array, part)?;
    Ok(array)
}

/// Reads bytes that must be there.
pub(super) fn fill(
    bytes: &Bytes,
    offset: u64,
    buffer: &mut [u8],
    part: &'static str,
) -> Result<(), DiskError> {
    match bytes.read_at(offset, buffer) {
        Ok(count) if count == buffer.len() => Ok(()),
        Ok(_) => Err(DiskError::Truncated { offset, part }),
        Err(source) => Err(DiskError::Read { offset, source }),
    }
}

fn list(partitions: &[Partition]) -> String {
    let texts: Vec<String> = partitions.iter().map(Partition::to_string).collect();
    texts.join(", ")
}
