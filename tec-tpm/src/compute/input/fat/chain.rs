//! The chain of clusters that makes up a file.

use std::ops::Range;
use std::sync::Arc;

use super::volume::{Volume, Width};
use crate::compute::input::bytes::{le16, le32};
use crate::compute::input::disk::DiskError;

/// Follows the clusters of a file through the allocation table, which is read a page at a time.
#[derive(Debug)]
pub(super) struct Chain {
    volume: Arc<Volume>,
    page: Vec<u8>,
    page_at: Option<u64>,
    /// A bit for each cluster that has been seen.
    met: Vec<u64>,
    /// The next cluster, and where its number is stored.
    next: Option<u32>,
    next_at: u64,
}

/// Size of a page. A multiple of 12 bits, 16 bits and 32 bits.
const PAGE: u64 = 6 << 10;

impl Chain {
    /// The chain that begins with `first`, whose number is at `offset`.
    pub(super) fn new(volume: Arc<Volume>, first: Option<u32>, offset: u64) -> Self {
        Self {
            volume,
            page: Vec::new(),
            page_at: None,
            met: Vec::new(),
            next: first,
            next_at: offset,
        }
    }

    pub(super) fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Where the number of the next cluster is.
    pub(super) fn offset(&self) -> u64 {
        self.next_at
    }

    /// Where the next cluster is.
    pub(super) fn peek(&self) -> Result<Option<Range<u64>>, DiskError> {
        match self.next {
            Some(next) => self.volume.cluster(next, self.next_at).map(Some),
            None => Ok(None),
        }
    }

    /// Returns where the next cluster is, and moves past it.
    pub(super) fn next(&mut self) -> Result<Option<Range<u64>>, DiskError> {
        let (Some(cluster), Some(range)) = (self.next, self.peek()?) else {
            return Ok(None);
        };
        if !self.meet(cluster) {
            return Err(DiskError::Cluster { offset: self.next_at, cluster });
        }
        self.follow(cluster)?;
        Ok(Some(range))
    }

    /// Records a cluster of the file system; false if it was seen before.
    fn meet(&mut self, cluster: u32) -> bool {
        let word = usize::try_from(cluster / 64).unwrap_or(usize::MAX);
        if self.met.len() <= word {
            self.met.resize(word.saturating_add(1), 0);
        }
        let Some(word) = self.met.get_mut(word) else {
            return false;
        };
        let bit = 1 << (cluster % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    /// Looks up what follows a cluster of the file system.
    fn follow(&mut self, cluster: u32) -> Result<(), DiskError> {
        let width = self.volume.width();
        let bit = u64::from(cluster) * width.bits();
        let (page, within) = (bit / 8 / PAGE * PAGE, bit / 8 % PAGE);
        self.load(page)?;
        let within = usize::try_from(within).unwrap_or(usize::MAX);
        // Volume::open has seen to it that the table covers all clusters and lies in the image.
        let value = match width {
            Width::Bits12 if bit.is_multiple_of(8) => u32::from(le16(&self.page, within) & 0xfff),
            Width::Bits12 => u32::from(le16(&self.page, within) >> 4),
            Width::Bits16 => le16(&self.page, within).into(),
            // Section 4: the highest four bits do not count.
            Width::Bits32 => le32(&self.page, within) & 0x0fff_ffff,
        };
        self.next = (value < width.end()).then_some(value);
        self.next_at = self.volume.table() + bit / 8;
        Ok(())
    }

    fn load(&mut self, page: u64) -> Result<(), DiskError> {
        if self.page_at == Some(page) {
            return Ok(());
        }
        let offset = self.volume.table() + page;
        self.page.resize(usize::try_from(PAGE).unwrap_or_default(), 0);
        let read = self.volume.read_at(offset, &mut self.page);
        let count = read.map_err(|source| DiskError::Read { offset, source })?;
        self.page.truncate(count);
        self.page_at = Some(page);
        Ok(())
    }
}
