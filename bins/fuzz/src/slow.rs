//! A reader that returns little at a time: reading in pieces must give the same result.

use std::io;
use std::io::Read;

/// Returns at most this many bytes at a time, and is interrupted occasionally.
pub(crate) struct Slow<R> {
    inner: R,
    most: usize,
    reads: usize,
}

impl<R> Slow<R> {
    pub(crate) fn new(inner: R, most: usize) -> Self {
        Self { inner, most, reads: 0 }
    }

    pub(crate) fn inner(&self) -> &R {
        &self.inner
    }
}

impl<R: Read> Read for Slow<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reads += 1;
        if self.reads.is_multiple_of(5) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let size = (self.reads * 977 % self.most + 1).min(buffer.len());
        self.inner.read(buffer.get_mut(..size).unwrap_or_default())
    }
}
