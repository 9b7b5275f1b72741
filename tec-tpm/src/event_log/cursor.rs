//! Reading little-endian fields from borrowed bytes, with offsets for errors.

use super::error::EventLogError;

#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    /// Offset of the next byte in the whole log.
    pub(super) offset: usize,
}

impl<'a> Cursor<'a> {
    /// Reads `bytes`, which begin at `offset` of the log.
    pub(super) fn new(bytes: &'a [u8], offset: usize) -> Self {
        Self { bytes, offset }
    }

    pub(super) fn remaining(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn take(
        &mut self,
        length: usize,
        field: &'static str,
    ) -> Result<&'a [u8], EventLogError> {
        let Some((taken, rest)) = self.bytes.split_at_checked(length) else {
            return Err(self.truncated(length, field));
        };
        self.bytes = rest;
        self.offset += length;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(
        &mut self,
        field: &'static str,
    ) -> Result<&'a [u8; N], EventLogError> {
        let Some((taken, rest)) = self.bytes.split_first_chunk() else {
            return Err(self.truncated(N, field));
        };
        self.bytes = rest;
        self.offset += N;
        Ok(taken)
    }

    pub(super) fn u8(&mut self, field: &'static str) -> Result<u8, EventLogError> {
        self.array(field).map(|[byte]| *byte)
    }

    pub(super) fn u16(&mut self, field: &'static str) -> Result<u16, EventLogError> {
        self.array(field).map(|bytes| u16::from_le_bytes(*bytes))
    }

    pub(super) fn u32(&mut self, field: &'static str) -> Result<u32, EventLogError> {
        self.array(field).map(|bytes| u32::from_le_bytes(*bytes))
    }

    #[cold]
    fn truncated(&self, needed: usize, field: &'static str) -> EventLogError {
        EventLogError::Truncated { offset: self.offset, field, needed, left: self.bytes.len() }
    }
}
