//! Why a tar stream cannot be read.

use std::io;

/// A tar stream cannot be read. Offsets count bytes from the start of the stream, unpacked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TarError {
    /// Reading failed.
    #[error("offset {offset}: reading failed")]
    Read {
        /// Where the part that was read begins.
        offset: u64,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The archive ends too early.
    #[error("offset {0}: the archive is truncated")]
    Truncated(u64),
    /// The checksum of a header does not match.
    #[error("offset {0}: the checksum of the header does not match")]
    Checksum(u64),
    /// A field is not a number.
    #[error("offset {0}: a number in the header is malformed")]
    Number(u64),
    /// A record of an extended header is malformed.
    #[error("offset {0}: a record of the extended header is malformed")]
    Record(u64),
    /// The type of an entry is not known.
    #[error("offset {offset}: unknown entry type {:?}", char::from(*kind))]
    Kind {
        /// Where the header begins.
        offset: u64,
        /// Type flag of the entry.
        kind: u8,
    },
    /// An entry that is not a file has content.
    #[error("offset {offset}: an entry that is not a file has {size} bytes of content")]
    Content {
        /// Where the header begins.
        offset: u64,
        /// Size of the content.
        size: u64,
    },
    /// A path leads out of the archive.
    #[error("offset {offset}: {path:?} points outside the archive")]
    OutsidePath {
        /// Where the header begins.
        offset: u64,
        /// The path.
        path: String,
    },
    /// An extended header or a name exceeds the limit.
    #[error(
        "offset {offset}: an extended header or name has {size} bytes, more than the limit of {limit}"
    )]
    TooLarge {
        /// Where the header begins.
        offset: u64,
        /// Size of the header or name.
        size: u64,
        /// Limit.
        limit: u64,
    },
    /// There is a single block of zeros; two of them mark the end.
    #[error("offset {0}: a single block of zeros is followed by more data")]
    LoneZeros(u64),
}

impl TarError {
    pub(super) fn read(offset: u64, source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::UnexpectedEof {
            Self::Truncated(offset)
        } else {
            Self::Read { offset, source }
        }
    }
}
