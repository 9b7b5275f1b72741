//! Bytes that can be read at any offset.

use std::fs::File;
use std::io::{Read, Seek as _, SeekFrom};
use std::ops::Range;
use std::sync::Arc;
use std::{fmt, io};

use parking_lot::Mutex;
use tec_core::reference::ImageFile;

/// A file that several readers share: each read states its offset.
pub(super) struct Bytes {
    file: Mutex<File>,
    size: u64,
}

impl Bytes {
    fn new(mut file: File) -> io::Result<Arc<Self>> {
        // Block devices have no size in their metadata, but an end.
        let size = file.seek(SeekFrom::End(0))?;
        let file = Mutex::new(file);
        Ok(Arc::new(Self { file, size }))
    }

    /// A file or the output of a pipe, at most `limit` bytes.
    pub(super) fn open(mut file: File, limit: u64) -> io::Result<Arc<Self>> {
        match file.stream_position() {
            Ok(_) => Self::new(file),
            Err(error) if error.kind() == io::ErrorKind::NotSeekable => Self::copy(file, limit),
            Err(error) => Err(error),
        }
    }

    /// A file without a name, which is deleted when it is closed.
    pub(super) fn temporary() -> io::Result<Arc<Self>> {
        Self::new(tempfile::tempfile()?)
    }

    /// A copy of the bytes from `reader`, at most `limit` of them.
    pub(super) fn copy(reader: impl Read, limit: u64) -> io::Result<Arc<Self>> {
        let mut file = tempfile::tempfile()?;
        append(&mut file, reader, limit)?;
        Self::new(file)
    }

    /// Size of the file when it was opened.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Appends the content of `reader`, unless the file would then exceed `limit` bytes; returns
    /// its offset in the file.
    pub(super) fn append(&self, reader: impl Read, limit: u64) -> io::Result<Range<u64>> {
        append(&mut self.file.lock(), reader, limit)
    }

    /// Reads the available bytes from `offset` on; fewer than fit into `buffer` only at the end.
    pub(super) fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut file = self.file.lock();
        file.seek(SeekFrom::Start(offset))?;
        let mut filled = 0;
        while let Some(free) = buffer.get_mut(filled..).filter(|free| !free.is_empty()) {
            match file.read(free) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    /// The `N` bytes at `offset`, if they are there.
    pub(super) fn array<const N: usize>(&self, offset: u64) -> io::Result<Option<[u8; N]>> {
        let mut array = [0; N];
        let count = self.read_at(offset, &mut array)?;
        Ok((count == N).then_some(array))
    }

    /// The bytes of `range`, as a stream.
    pub(super) fn window(self: &Arc<Self>, range: Range<u64>) -> Window {
        Window { bytes: Arc::clone(self), range }
    }
}

fn append(file: &mut File, reader: impl Read, limit: u64) -> io::Result<Range<u64>> {
    let start = file.seek(SeekFrom::End(0))?;
    let room = limit.saturating_sub(start);
    let count = io::copy(&mut reader.take(room.saturating_add(1)), file)?;
    if count > room {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(start..start + count)
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({})", self.size)
    }
}

/// A range of a file.
#[derive(Clone, Debug)]
pub(super) struct Window {
    bytes: Arc<Bytes>,
    /// What is still to come.
    range: Range<u64>,
}

impl Window {
    /// Skips bytes.
    pub(super) fn skip(&mut self, count: u64) -> io::Result<()> {
        let start = self.range.start.checked_add(count);
        let start = start.filter(|start| *start <= self.range.end);
        self.range.start = start.ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(())
    }
}

impl Read for Window {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.range.end - self.range.start).unwrap_or(usize::MAX);
        let room = left.min(buffer.len());
        let buffer = buffer.get_mut(..room).unwrap_or_default();
        let count = self.bytes.read_at(self.range.start, buffer)?;
        if count == 0 && room > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.range.start += count as u64;
        Ok(count)
    }
}

impl ImageFile for Window {
    fn size(&self) -> Option<u64> {
        Some(self.range.end - self.range.start)
    }
}

/// A little-endian field; zero if it lies beyond the end.
pub(super) fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(field(bytes, at))
}

/// As [`le16`].
pub(super) fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(field(bytes, at))
}

/// As [`le16`].
pub(super) fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(field(bytes, at))
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk());
    field.copied().unwrap_or([0; N])
}
