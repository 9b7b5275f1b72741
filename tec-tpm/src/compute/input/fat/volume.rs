//! The boot sector of a FAT file system, and the layout that it describes.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::compute::input::bytes::{Bytes, le16, le32};
use crate::compute::input::disk::{DiskError, fill};

/// Where the parts of a file system are. Offsets count bytes from the start of the image.
#[derive(Debug)]
pub(super) struct Volume {
    bytes: Arc<Bytes>,
    width: Width,
    table: u64,
    /// Where the first cluster, which has number 2, begins.
    data: u64,
    cluster_size: u64,
    clusters: u32,
    root: Root,
}

/// Size of an entry of the allocation table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    Bits12,
    Bits16,
    Bits32,
}

#[derive(Clone, Debug)]
pub(super) enum Root {
    /// A region of its own.
    Fixed(Range<u64>),
    /// An ordinary folder: its first cluster, and where the number of that cluster is.
    Cluster(u32, u64),
}

/// Section 3.5: file systems with fewer clusters have entries of 12 or 16 bits.
const FEWEST_16: u32 = 4085;
const FEWEST_32: u32 = 65525;

/// Fields of the boot sector (section 3.1 and 3.3).
struct BootSector<'b> {
    sector: &'b [u8; 512],
    offset: u64,
}

impl BootSector<'_> {
    fn refuse<T>(
        &self,
        at: u64,
        field: &'static str,
        value: impl Into<u64>,
    ) -> Result<T, DiskError> {
        Err(DiskError::Field { offset: self.offset + at, field, value: value.into() })
    }

    fn sector_size(&self) -> Result<u64, DiskError> {
        match le16(self.sector, 11) {
            size @ (512 | 1024 | 2048 | 4096) => Ok(size.into()),
            size => self.refuse(11, "bytes per sector", size),
        }
    }

    fn sectors_per_cluster(&self) -> Result<u64, DiskError> {
        match self.sector.get(13).copied().unwrap_or_default() {
            count if count.is_power_of_two() => Ok(count.into()),
            count => self.refuse(13, "sectors per cluster", count),
        }
    }

    fn reserved(&self) -> Result<u64, DiskError> {
        match le16(self.sector, 14) {
            0 => self.refuse(14, "number of reserved sectors", 0_u64),
            count => Ok(count.into()),
        }
    }

    fn tables(&self) -> Result<u64, DiskError> {
        match self.sector.get(16).copied().unwrap_or_default() {
            count @ 1..=4 => Ok(count.into()),
            count => self.refuse(16, "number of allocation tables", count),
        }
    }

    fn root_entries(&self) -> u64 {
        le16(self.sector, 17).into()
    }

    fn sectors(&self) -> u64 {
        match le16(self.sector, 19) {
            0 => le32(self.sector, 32).into(),
            count => count.into(),
        }
    }

    /// Sectors of one table; the FAT32 field applies if the older one is zero.
    fn table_sectors(&self) -> (u64, bool) {
        match le16(self.sector, 22) {
            0 => (le32(self.sector, 36).into(), true),
            count => (count.into(), false),
        }
    }

    /// The parts of a file system that has `room` bytes.
    fn regions(&self, room: u64) -> Result<Regions, DiskError> {
        let size = self.sector_size()?;
        let table = self.reserved()?;
        let root = table + self.tables()? * self.table_sectors().0;
        let data = root + (self.root_entries() * 32).div_ceil(size);
        let end = self.sectors();
        if end <= data {
            return self.refuse(19, "number of sectors", end);
        }
        if end * size > room {
            return Err(DiskError::Truncated { offset: self.offset, part: "the file system" });
        }
        Ok(Regions { table, root, data, end })
    }
}

/// Where the parts of the file system begin (section 3.1), counted in sectors.
struct Regions {
    table: u64,
    root: u64,
    data: u64,
    end: u64,
}

/// Whether a FAT file system begins here; a partition table has the same last two bytes.
pub(in crate::compute::input) fn is_fat(bytes: &Bytes, offset: u64) -> io::Result<bool> {
    let Some(sector) = bytes.array::<512>(offset)? else {
        return Ok(false);
    };
    let fields = BootSector { sector: &sector, offset };
    // Section 3.1: a jump, and at 21 the medium, from 0xf0 on.
    let jumps = matches!(sector.first(), Some(0xeb | 0xe9));
    let medium = sector.get(21).is_some_and(|medium| *medium >= 0xf0);
    let plausible = fields.sector_size().is_ok() && fields.sectors_per_cluster().is_ok();
    Ok(jumps && medium && plausible && sector.ends_with(&[0x55, 0xaa]))
}

impl Volume {
    pub(super) fn open(bytes: &Arc<Bytes>, range: Range<u64>) -> Result<Self, DiskError> {
        let start = range.start;
        let mut sector = [0; 512];
        fill(bytes, start, &mut sector, "the boot sector")?;
        let fields = BootSector { sector: &sector, offset: start };
        if !sector.ends_with(&[0x55, 0xaa]) {
            return fields.refuse(510, "signature of the boot sector", le16(&sector, 510));
        }
        let (size, per_cluster) = (fields.sector_size()?, fields.sectors_per_cluster()?);
        let (table_sectors, is_32) = fields.table_sectors();
        let regions = fields.regions(range.end - start)?;
        let clusters = (regions.end - regions.data) / per_cluster;
        let clusters = u32::try_from(clusters).unwrap_or(u32::MAX);
        let width = width(&fields, clusters, is_32)?;
        let needed = (u64::from(clusters) + 2) * width.bits();
        if clusters == 0 || table_sectors * size * 8 < needed {
            return fields.refuse(22, "sectors of an allocation table", table_sectors);
        }
        let active = active_table(&fields, width)?;
        let at = |sector: u64| start + sector * size;
        Ok(Self {
            bytes: Arc::clone(bytes),
            width,
            table: at(regions.table + active * table_sectors),
            data: at(regions.data),
            cluster_size: per_cluster * size,
            clusters,
            root: match (width, fields.root_entries()) {
                // Section 3.3: first cluster of the root at 44.
                (Width::Bits32, _) => Root::Cluster(le32(&sector, 44), start + 44),
                (_, 0) => return fields.refuse(17, "number of entries of the root", 0_u64),
                (_, count) => Root::Fixed(at(regions.root)..at(regions.root) + count * 32),
            },
        })
    }

    pub(super) fn root(&self) -> &Root {
        &self.root
    }

    pub(super) fn width(&self) -> Width {
        self.width
    }

    /// Where the allocation table begins.
    pub(super) fn table(&self) -> u64 {
        self.table
    }

    pub(super) fn cluster_size(&self) -> u64 {
        self.cluster_size
    }

    /// First cluster of a file, from the two halves of its number; zero stands for none.
    pub(super) fn first_cluster(&self, (high, low): (u16, u16)) -> Option<u32> {
        let high = match self.width {
            Width::Bits32 => u32::from(high) << 16,
            // Section 6: the high half counts with entries of 32 bits only.
            _ => 0,
        };
        Some(high | u32::from(low)).filter(|cluster| *cluster != 0)
    }

    /// Where a cluster is; its number is at `offset`.
    pub(super) fn cluster(&self, cluster: u32, offset: u64) -> Result<Range<u64>, DiskError> {
        match cluster.checked_sub(2) {
            Some(number) if number < self.clusters => {
                let start = self.data + u64::from(number) * self.cluster_size;
                Ok(start..start + self.cluster_size)
            }
            _ => Err(DiskError::Cluster { offset, cluster }),
        }
    }

    pub(super) fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.bytes.read_at(offset, buffer)
    }

    /// Reads bytes that must be there.
    pub(super) fn fill(
        &self,
        offset: u64,
        buffer: &mut [u8],
        part: &'static str,
    ) -> Result<(), DiskError> {
        fill(&self.bytes, offset, buffer, part)
    }
}

/// Section 3.5 derives the width from the number of clusters, but drivers derive it from the field
/// that holds the size of the table; if these disagree, so do programs.
fn width(fields: &BootSector<'_>, clusters: u32, is_32: bool) -> Result<Width, DiskError> {
    match (clusters, is_32) {
        (FEWEST_32.., true) => Ok(Width::Bits32),
        (FEWEST_16..FEWEST_32, false) => Ok(Width::Bits16),
        (..FEWEST_16, false) => Ok(Width::Bits12),
        _ => fields.refuse(22, "number of clusters for this kind of table", clusters),
    }
}

/// Section 3.3: if bit 7 of the flags at 40 turns mirroring off, bits 0 to 3 name the table.
fn active_table(fields: &BootSector<'_>, width: Width) -> Result<u64, DiskError> {
    let flags = le16(fields.sector, 40);
    if width != Width::Bits32 || flags & 0x80 == 0 {
        return Ok(0);
    }
    let active = u64::from(flags & 0xf);
    if active >= fields.tables()? {
        return fields.refuse(40, "number of the active allocation table", active);
    }
    Ok(active)
}

impl Width {
    pub(super) const fn bits(self) -> u64 {
        match self {
            Self::Bits12 => 12,
            Self::Bits16 => 16,
            Self::Bits32 => 32,
        }
    }

    /// Section 4: values from here on end a chain.
    pub(super) const fn end(self) -> u32 {
        match self {
            Self::Bits12 => 0xff8,
            Self::Bits16 => 0xfff8,
            Self::Bits32 => 0x0fff_fff8,
        }
    }
}
