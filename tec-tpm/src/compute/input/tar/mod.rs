//! A tar stream: POSIX ustar and pax, and the long names and large numbers of GNU.
//!
//! The crate `tar` is not used: it reads names of any length into memory and does not report
//! offsets. Our tests use it to write the archives that are read here.

mod error;
mod header;
mod path;

use std::io;
use std::io::Read;

pub use self::error::TarError;
pub(super) use self::header::is_header;
use self::header::{Header, Pax, decimal};
pub(super) use self::path::{plain, text};

/// Reads the entries of a tar stream in order.
#[derive(Debug)]
pub(super) struct Archive<R> {
    reader: R,
    /// Bytes read so far.
    offset: u64,
    /// Bytes of the entry's content that have not been read yet, and of the padding after it.
    content: u64,
    padding: u64,
    end: EndMark,
}

/// Whether an archive may end without the two blocks of zeros that mark its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndMark {
    /// Without them it is cut off.
    Required,
    /// Something else proves that it is complete.
    Optional,
}

/// An entry.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// Relative, without `.`; empty for the root. None if it is not text.
    pub(super) path: Option<String>,
    pub(super) kind: ItemKind,
    /// Where the content of the entry begins in the stream, or the number of the entry in a table
    /// of contents.
    pub(super) offset: u64,
    /// Size of its content.
    pub(super) size: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ItemKind {
    File,
    /// A file with holes, whose content is not stored as it is.
    Sparse,
    Folder,
    /// Symbolic link and its target; none if that is not text.
    Link(Option<String>),
    /// Another name for the file at this path.
    HardLink(Option<String>),
    /// A device or a pipe.
    Special,
}

/// Size of a block; everything begins at one (POSIX pax, "ustar Interchange Format").
pub(super) const BLOCK: usize = 512;
/// Largest extended header or long name; it may hold security labels and access lists.
const MAX_EXTENDED: u64 = 1 << 20;

/// What extended headers before an entry say about it.
#[derive(Default)]
struct Extended {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    is_sparse: bool,
}

impl<R: Read> Archive<R> {
    pub(super) fn new(reader: R, end: EndMark) -> Self {
        Self { reader, offset: 0, content: 0, padding: 0, end }
    }

    /// The next entry; the unread content of the previous one is skipped.
    ///
    /// `skip` skips bytes of the reader.
    pub(super) fn next(
        &mut self,
        skip: impl Fn(&mut R, u64) -> io::Result<()>,
    ) -> Result<Option<Item>, TarError> {
        let mut extended = Extended::default();
        let mut has_extended = false;
        loop {
            self.leave_entry(&skip)?;
            let at = self.offset;
            let Some(header) = self.header()? else {
                if has_extended {
                    return Err(TarError::Truncated(at));
                }
                return Ok(None);
            };
            match header.kind {
                // GNU tar, "Basic Tar Format": long names of links and of files. Both end in NUL.
                b'K' => extended.link = Some(self.long_name(&header, at)?),
                b'L' => extended.path = Some(self.long_name(&header, at)?),
                // pax: `x` is for the next entry, `g` for all that follow.
                b'x' => self.pax(&header, at, &mut extended)?,
                b'g' => self.global_pax(&header, at)?,
                // A label of the volume.
                b'V' => {}
                _ => return self.item(&header, &extended, at).map(Some),
            }
            has_extended |= matches!(header.kind, b'K' | b'L' | b'x');
        }
    }

    /// The content of the entry reported last.
    pub(super) fn content(&mut self) -> Content<'_, R> {
        Content(self)
    }

    /// Reads what follows the last entry.
    pub(super) fn into_reader(self) -> R {
        self.reader
    }

    fn leave_entry(
        &mut self,
        skip: impl Fn(&mut R, u64) -> io::Result<()>,
    ) -> Result<(), TarError> {
        let (from, count) = (self.offset, self.content + self.padding);
        if count > 0 {
            skip(&mut self.reader, count).map_err(|source| TarError::read(from, source))?;
        }
        self.offset += count;
        (self.content, self.padding) = (0, 0);
        Ok(())
    }

    /// The next header, or none at the end of the archive.
    fn header(&mut self) -> Result<Option<Header>, TarError> {
        let at = self.offset;
        let Some(block) = self.block()? else {
            return match self.end {
                EndMark::Optional => Ok(None),
                EndMark::Required => Err(TarError::Truncated(at)),
            };
        };
        if block.iter().any(|byte| *byte != 0) {
            let header = Header::parse(&block, at)?;
            // Never overflows: a size has at most 63 bits.
            self.content = header.size;
            self.padding = header.size.next_multiple_of(BLOCK as u64) - header.size;
            return Ok(Some(header));
        }
        let at = self.offset;
        match self.block()? {
            Some(block) if block.iter().any(|byte| *byte != 0) => {
                Err(TarError::LoneZeros(at - BLOCK as u64))
            }
            Some(_) => Ok(None),
            None => match self.end {
                EndMark::Optional => Ok(None),
                EndMark::Required => Err(TarError::Truncated(at)),
            },
        }
    }

    /// A block, or none at the end of the stream.
    fn block(&mut self) -> Result<Option<[u8; BLOCK]>, TarError> {
        let mut block = Vec::with_capacity(BLOCK);
        let read = self.reader.by_ref().take(BLOCK as u64).read_to_end(&mut block);
        let end = self.offset + block.len() as u64;
        read.map_err(|source| TarError::read(end, source))?;
        if block.is_empty() {
            return Ok(None);
        }
        let block = block.try_into().map_err(|_| TarError::Truncated(end))?;
        self.offset = end;
        Ok(Some(block))
    }

    fn item(&mut self, header: &Header, extended: &Extended, at: u64) -> Result<Item, TarError> {
        if let Some(size) = extended.size {
            self.content = size;
            self.padding = size.next_multiple_of(BLOCK as u64) - size;
        }
        let size = self.content;
        let path = extended.path.as_ref().unwrap_or(&header.path);
        let link = extended.link.as_ref().unwrap_or(&header.link);
        let kind = match header.kind {
            // `7` asks for the content in one piece.
            b'0' | 0 | b'7' if extended.is_sparse => ItemKind::Sparse,
            // Before POSIX, a folder was a file whose name ends in a slash.
            0 if path.ends_with(b"/") => ItemKind::Folder,
            b'0' | 0 | b'7' => ItemKind::File,
            b'S' => ItemKind::Sparse,
            b'1' => ItemKind::HardLink(plain(link, at)?),
            b'2' => ItemKind::Link(text(link, at)?),
            b'3' | b'4' | b'6' => ItemKind::Special,
            b'5' => ItemKind::Folder,
            kind => return Err(TarError::Kind { offset: at, kind }),
        };
        if size > 0 && !matches!(kind, ItemKind::File | ItemKind::Sparse) {
            // Programs disagree whether content follows.
            return Err(TarError::Content { offset: at, size });
        }
        Ok(Item { path: plain(path, at)?, kind, offset: self.offset, size })
    }

    fn long_name(&mut self, header: &Header, at: u64) -> Result<Vec<u8>, TarError> {
        let mut name = self.extended(header, at)?;
        name.truncate(name.iter().position(|b| *b == 0).unwrap_or(name.len()));
        Ok(name)
    }

    fn pax(&mut self, header: &Header, at: u64, into: &mut Extended) -> Result<(), TarError> {
        let records = self.extended(header, at)?;
        for record in Pax::new(&records, at) {
            let (key, value) = record?;
            match key {
                b"path" => into.path = Some(value.to_owned()),
                b"linkpath" => into.link = Some(value.to_owned()),
                b"size" => into.size = Some(decimal(value, at)?),
                // GNU tar, "Storing Sparse Files": the name of the file is in another record.
                b"GNU.sparse.name" => {
                    into.path = Some(value.to_owned());
                    into.is_sparse = true;
                }
                key if key.starts_with(b"GNU.sparse.") => into.is_sparse = true,
                _ => {}
            }
        }
        Ok(())
    }

    /// What applies to all entries does not matter, unless it sets what must differ between them.
    fn global_pax(&mut self, header: &Header, at: u64) -> Result<(), TarError> {
        let records = self.extended(header, at)?;
        for record in Pax::new(&records, at) {
            let (key, _) = record?;
            if matches!(key, b"path" | b"linkpath" | b"size") {
                return Err(TarError::Record(at));
            }
        }
        Ok(())
    }

    fn extended(&mut self, header: &Header, at: u64) -> Result<Vec<u8>, TarError> {
        if header.size > MAX_EXTENDED {
            return Err(TarError::TooLarge { offset: at, size: header.size, limit: MAX_EXTENDED });
        }
        let mut bytes = Vec::new();
        let from = self.offset;
        let read = self.content().read_to_end(&mut bytes);
        read.map_err(|source| TarError::read(from, source))?;
        Ok(bytes)
    }
}

/// The content of an entry.
#[derive(Debug)]
pub(super) struct Content<'a, R>(&'a mut Archive<R>);

impl<R: Read> Read for Content<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let room = usize::try_from(self.0.content).unwrap_or(usize::MAX);
        let room = room.min(buffer.len());
        let buffer = buffer.get_mut(..room).unwrap_or_default();
        let count = self.0.reader.read(buffer)?;
        if count == 0 && room > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.0.content -= count as u64;
        self.0.offset += count as u64;
        Ok(count)
    }
}
