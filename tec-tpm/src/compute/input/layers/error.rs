//! Why a tar stream cannot be layered over others.

use std::io;

use crate::compute::input::tar::TarError;
use crate::compute::input::tree::TreeError;

/// A tar stream cannot be layered over the ones before it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayerError {
    /// It cannot be opened.
    #[error("cannot open the stream")]
    Open(#[source] io::Error),
    /// It cannot be read.
    #[error("the stream cannot be read")]
    Tar(#[source] TarError),
    /// An entry contradicts the entries before it.
    #[error("offset {offset}: an entry contradicts the entries before it")]
    Entry {
        /// Where its content begins in the stream, or its number in a table of contents.
        offset: u64,
        /// Why.
        #[source]
        source: TreeError,
    },
    /// Files that are needed cannot be kept.
    #[error("offset {offset}: cannot keep {path} in a temporary file")]
    Keep {
        /// Where its content begins in the stream.
        offset: u64,
        /// Path of the file.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// What follows the entries cannot be read or is invalid.
    #[error("the end of the stream is malformed")]
    End(#[source] io::Error),
    /// A file cannot be fetched by the table of contents.
    #[error("cannot fetch entry {number} of the table of contents")]
    Fetch {
        /// Number of the entry.
        number: u64,
        /// Why.
        #[source]
        source: io::Error,
    },
}
