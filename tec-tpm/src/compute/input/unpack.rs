//! Unpacks gzip and zstd streams, within the allowance of their image.

use std::io::{BufReader, Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fmt, io};

use flate2::bufread::MultiGzDecoder;

use super::allowance::Meter;
use super::unpack_error::UnpackError;
use super::zstd::ZstdReader;

/// A stream of any type.
pub(super) type Stream = Box<dyn Read + Send>;

/// Where a stream comes from.
pub(super) trait Source: fmt::Debug + Send + Sync {
    /// Opens the stream, unpacked. An error in the stream as a whole, such as a wrong digest, is
    /// reported at its end.
    fn open(&self) -> io::Result<Stream>;
}

/// How a stream is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    Plain,
    Gzip,
    Zstd,
}

impl Packing {
    /// The format that the first bytes of a stream identify.
    pub(super) fn of(start: &[u8]) -> Self {
        match start {
            // RFC 1952, 2.3.1.
            [0x1f, 0x8b, ..] => Self::Gzip,
            // RFC 8878, 3.1.1 and 3.1.2: a frame, or one to be skipped.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            _ => Self::Plain,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }
}

/// Unpacks a stream of any format, within the allowance.
pub(super) fn unpack(mut reader: Stream, meter: &Arc<Meter>) -> io::Result<Stream> {
    let mut start = Vec::new();
    reader.by_ref().take(4).read_to_end(&mut start)?;
    let packing = Packing::of(&start);
    let packed = Arc::new(AtomicU64::new(0));
    let counted = Counted { reader: Cursor::new(start).chain(reader), count: Arc::clone(&packed) };
    let buffered = BufReader::with_capacity(BUFFER, counted);
    let reader: Stream = match packing {
        Packing::Plain => return Ok(Box::new(buffered)),
        Packing::Gzip => Box::new(MultiGzDecoder::new(buffered)),
        Packing::Zstd => Box::new(ZstdReader::new(buffered)),
    };
    Ok(Box::new(Unpacked { reader, packing, packed, count: 0, meter: Arc::clone(meter) }))
}

/// Bytes that are read in one call.
const BUFFER: usize = 64 << 10;

struct Counted<R> {
    reader: R,
    count: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.count.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

struct Unpacked {
    reader: Stream,
    packing: Packing,
    packed: Arc<AtomicU64>,
    count: u64,
    meter: Arc<Meter>,
}

impl Read for Unpacked {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer).map_err(|source| {
            if source.kind() == io::ErrorKind::Interrupted {
                return source;
            }
            io::Error::other(UnpackError::Damaged {
                offset: self.packed.load(Ordering::Relaxed),
                format: self.packing.name(),
                source,
            })
        })?;
        self.count += count as u64;
        let packed = self.packed.load(Ordering::Relaxed);
        let allowed = self.meter.note(packed, self.count);
        allowed.map_err(io::Error::other)?;
        Ok(count)
    }
}
