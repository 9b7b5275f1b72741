//! What a power failure leaves of the writes to a disk.
//!
//! A killed QEMU leaves everything that it wrote in the page cache of the host, flushed by the guest or not.
//! A disk with a write cache loses a part of what was not flushed. So QEMU's driver `blklogwrites` logs
//! writes and flushes (in the format of the kernel's `dm-log-writes`), and [`WriteLog::cut`] writes to a copy
//! of the disk what the failure leaves:
//!
//! ```text
//!  log    w w w FLUSH w w FLUSH w w w   (killed)
//!  disk   ──── all of these ───  each: kept, lost, or some of its sectors
//! ```

use std::fs;
use std::io::{Seek, SeekFrom};
use std::path::Path;

use anyhow::{Context as _, ensure};
use tec_core::port::Entropy;

use super::field;

/// Unit of offsets in the log, and what a disk writes as a whole.
const SECTOR: usize = 512;
/// First bytes of a log, once something was flushed.
const MAGIC: [u8; 8] = 0x006a_7366_7773_6872_u64.to_le_bytes();
/// Where the log counts its entries up to the last flush.
const COUNT: usize = 16;
const FLUSH: u64 = 1;

/// One write to the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Write {
    /// Where, in bytes from the start of the disk.
    pub offset: u64,
    /// What.
    pub content: Vec<u8>,
}

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Lost by a power failure, unless a flush follows.
    Write(Write),
    /// All writes before it are durable.
    Flush,
}

/// What the machine wrote, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteLog {
    entries: Vec<Entry>,
}

/// What became of the writes at a power failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PowerCut {
    /// Number of writes that were flushed before.
    pub flushed: usize,
    /// Number of others that are on the disk nevertheless.
    pub kept: usize,
    /// Number of those of which some sectors are.
    pub torn: usize,
    /// Number of those that are not.
    pub lost: usize,
}

/// Parts of a write that are on the disk after a power failure, each with its offset.
pub type Pieces<'w> = Vec<(u64, &'w [u8])>;

impl Write {
    /// A random outcome of a power failure before it is flushed: all of it, some sectors, or nothing.
    pub fn pieces(&self, entropy: &dyn Entropy) -> Pieces<'_> {
        let offsets = (self.offset..).step_by(SECTOR);
        let all = offsets.zip(self.content.chunks(SECTOR));
        match byte(entropy) % 3 {
            0 => all.collect(),
            1 => all.filter(|_| byte(entropy).is_multiple_of(2)).collect(),
            _ => Vec::new(),
        }
    }
}

impl WriteLog {
    /// Reads a log of a machine that is off, or that writes nothing at the moment.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&bytes).with_context(|| format!("{} is no log of writes", path.display()))
    }

    /// The entries, in order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    fn parse(bytes: &[u8]) -> anyhow::Result<Self> {
        let mut entries = Vec::new();
        let mut at = SECTOR;
        while let Some((entry, size)) = entry(bytes, at)? {
            entries.push(entry);
            at += size;
        }
        // A log in which nothing was flushed starts with zeros.
        if bytes.get(..SECTOR).is_some_and(|head| head.iter().any(|byte| *byte != 0)) {
            ensure!(field(bytes, 0)? == MAGIC, "it starts with other bytes");
            let count = u64::from_le_bytes(field(bytes, COUNT)?);
            ensure!(entries.len() as u64 >= count, "some of its {count} entries are missing");
        }
        Ok(Self { entries })
    }

    /// Writes to `disk`, which is in the state from before the log, what a power failure at its end leaves.
    pub fn cut(
        &self,
        disk: &mut (impl std::io::Write + Seek),
        entropy: &dyn Entropy,
    ) -> anyhow::Result<PowerCut> {
        let last_flush = self.entries.iter().rposition(|entry| *entry == Entry::Flush);
        let mut cut = PowerCut::default();
        for (number, entry) in self.entries.iter().enumerate() {
            let Entry::Write(write) = entry else {
                continue;
            };
            let (pieces, count) = if last_flush.is_some_and(|last| number < last) {
                (vec![(write.offset, write.content.as_slice())], &mut cut.flushed)
            } else {
                let pieces = write.pieces(entropy);
                let sectors = write.content.len().div_ceil(SECTOR);
                let count = match pieces.len() {
                    0 => &mut cut.lost,
                    some if some < sectors => &mut cut.torn,
                    _ => &mut cut.kept,
                };
                (pieces, count)
            };
            *count += 1;
            for (offset, piece) in pieces {
                disk.seek(SeekFrom::Start(offset))?;
                disk.write_all(piece).context("cannot write the disk")?;
            }
        }
        disk.flush().context("cannot write the disk")?;
        Ok(cut)
    }
}

fn byte(entropy: &dyn Entropy) -> u8 {
    let mut byte = [0];
    entropy.fill(&mut byte);
    let [byte] = byte;
    byte
}

/// The entry at `at` and its size with its content; `None` at the end, where the last one may be incomplete.
fn entry(bytes: &[u8], at: usize) -> anyhow::Result<Option<(Entry, usize)>> {
    if bytes.len() < at + SECTOR {
        return Ok(None);
    }
    let number = |index: usize| Ok::<_, anyhow::Error>(u64::from_le_bytes(field(bytes, index)?));
    let (sector, sectors, flags) = (number(at)?, number(at + 8)?, number(at + 16)?);
    if flags == FLUSH && sectors == 0 {
        return Ok(Some((Entry::Flush, SECTOR)));
    }
    ensure!(flags == 0, "entry at byte {at} has the flags {flags:#x}");
    let size = usize::try_from(sectors)? * SECTOR;
    let begin = at + SECTOR;
    let Some(content) = bytes.get(begin..begin + size).filter(|content| !content.is_empty()) else {
        return Ok(None);
    };
    let write = Write { offset: sector * SECTOR as u64, content: content.to_vec() };
    Ok(Some((Entry::Write(write), SECTOR + size)))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use tec_core::testing::SeededEntropy;

    use super::*;

    fn header(numbers: &[u64]) -> Vec<u8> {
        let mut bytes: Vec<u8> = numbers.iter().flat_map(|one| one.to_le_bytes()).collect();
        bytes.resize(SECTOR, 0);
        bytes
    }

    fn write(sector: u64, content: &[u8]) -> Vec<u8> {
        let sectors = (content.len() / SECTOR) as u64;
        [&header(&[sector, sectors, 0, 0]), content].concat()
    }

    fn flush() -> Vec<u8> {
        header(&[0, 0, FLUSH, 0])
    }

    /// As QEMU writes it: the count is that of the last flush.
    fn log(count: u64, entries: &[Vec<u8>]) -> Vec<u8> {
        [header(&[u64::from_le_bytes(MAGIC), 1, count]), entries.concat()].concat()
    }

    #[test]
    fn what_was_flushed_stays_and_of_the_rest_any_sector_may() {
        let [old, new] = [[1; SECTOR], [2; SECTOR]];
        let entries =
            [write(0, &old), write(1, &old), flush(), write(0, &new), write(1, &[3; 2 * SECTOR])];
        let log = WriteLog::parse(&log(3, &entries)).unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let mut disk = Cursor::new(vec![0; 3 * SECTOR]);
            let cut = log.cut(&mut disk, &SeededEntropy::new(seed)).unwrap();
            assert_eq!((cut.flushed, cut.kept + cut.torn + cut.lost), (2, 2));
            let disk = disk.into_inner();
            assert!(disk.chunks(SECTOR).all(|sector| sector.iter().all(|byte| *byte == sector[0])));
            seen.insert([disk[0], disk[SECTOR], disk[2 * SECTOR]]);
        }
        // Each sector is the old or the new one, in every combination.
        let all = [1, 2].iter().flat_map(|first| {
            [1, 3].iter().flat_map(move |second| [0, 3].map(|third| [*first, *second, third]))
        });
        assert_eq!(seen, all.collect());
    }

    #[test]
    fn a_log_may_end_anywhere_after_its_last_flush() {
        let entries = [write(0, &[1; SECTOR]), flush(), write(1, &[2; SECTOR])];
        let whole = log(2, &entries);
        for end in (4 * SECTOR)..whole.len() {
            assert_eq!(WriteLog::parse(&whole[..end]).unwrap().entries().len(), 2, "{end}");
        }
        assert!(WriteLog::parse(&whole[..4 * SECTOR - 1]).is_err());
        assert_eq!(WriteLog::parse(&whole).unwrap().entries().len(), 3);
        assert_eq!(WriteLog::parse(&[]).unwrap(), WriteLog::default());
        assert!(WriteLog::parse(&[7; 4 * SECTOR]).is_err());
    }
}
