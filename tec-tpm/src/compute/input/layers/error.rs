//! Why a tar stream cannot be layered over others.

use std::io;

use crate::compute::input::tar::TarError;
use crate::compute::input::tree::TreeError;

/// A tar stream cannot be layered over the ones before it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayerError {
    /// The stream cannot be opened.
    #[error("cannot open the stream")]
    Open(#[source] io::Error),
    /// The stream cannot be read.
    #[error("the stream cannot be read")]
    Tar(#[source] TarError),
    /// An entry contradicts the entries before it.
    #[error("offset {offset}: an entry contradicts the entries before it")]
    Entry {
        /// Where the content of the entry begins in the stream, or the number of the entry in a
        /// table of contents.
        offset: u64,
        /// The cause.
        #[source]
        source: TreeError,
    },
    /// Files that are needed cannot be kept.
    #[error("offset {offset}: cannot store {path} in a temporary file")]
    Keep {
        /// Where the content of the file begins in the stream.
        offset: u64,
        /// Path of the file.
        path: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// What follows the entries cannot be read or is invalid.
    #[error("the end of the stream is malformed")]
    End(#[source] io::Error),
    /// A file cannot be fetched through the table of contents.
    #[error("cannot fetch entry {number} of the table of contents")]
    Fetch {
        /// Number of the entry.
        number: u64,
        /// The cause.
        #[source]
        source: io::Error,
    },
}
