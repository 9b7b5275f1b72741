//! Why a packed stream cannot be unpacked.

use std::io;

/// A packed stream cannot be unpacked. The offset counts bytes from the start of the packed stream, and may
/// be some bytes after the damage, since decoders read ahead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnpackError {
    /// The data is damaged.
    #[error("offset {offset}: the {format} data is damaged")]
    Damaged {
        /// Offset that reading reached.
        offset: u64,
        /// Format.
        format: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The image unpacks to far more than its size.
    #[error("a decompression bomb: {packed} bytes unpack to more than {unpacked}")]
    Ratio {
        /// Bytes of the image that were read.
        packed: u64,
        /// Bytes after unpacking.
        unpacked: u64,
    },
    /// The stream unpacks to more than the limit.
    #[error("it unpacks to more than {0} bytes")]
    TooLarge(u64),
}
