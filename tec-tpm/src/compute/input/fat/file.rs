//! The content of a file of a FAT file system.

use std::io;
use std::io::Read;
use std::ops::Range;

use tec_core::reference::ImageFile;

use super::chain::Chain;
use crate::compute::input::disk::DiskError;

/// The content of a file.
pub(super) struct FatFile {
    chain: Chain,
    /// Contiguous bytes of the image that are still to be read.
    run: Range<u64>,
    /// Bytes that are still to come.
    left: u64,
}

/// Longest run of clusters that is searched for at a time.
const MAX_RUN: u64 = 1 << 20;

impl FatFile {
    /// The first `size` bytes of a chain.
    pub(super) fn new(chain: Chain, size: u32) -> Self {
        Self { chain, run: 0..0, left: size.into() }
    }

    /// Finds the next run of contiguous clusters.
    fn advance(&mut self) -> Result<(), DiskError> {
        let offset = self.chain.offset();
        self.run = self.chain.next()?.ok_or(DiskError::Short { offset, missing: self.left })?;
        while self.run.end - self.run.start < self.left.min(MAX_RUN) {
            match self.chain.peek()? {
                Some(next) if next.start == self.run.end => self.run.end = next.end,
                _ => break,
            }
            self.chain.next()?;
        }
        Ok(())
    }
}

impl Read for FatFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 || buffer.is_empty() {
            return Ok(0);
        }
        if self.run.is_empty() {
            self.advance().map_err(io::Error::other)?;
        }
        let room = self.left.min(self.run.end - self.run.start);
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        let room = room.min(buffer.len());
        let buffer = buffer.get_mut(..room).unwrap_or_default();
        let count = self.chain.volume().read_at(self.run.start, buffer)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.run.start += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

impl ImageFile for FatFile {
    fn size(&self) -> Option<u64> {
        Some(self.left)
    }
}
