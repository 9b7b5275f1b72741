//! Why a table of contents cannot be used.

use std::io;

use crate::compute::input::tar::TarError;

/// The table of contents of a layer cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The annotation that points to the table is malformed.
    #[error("the annotation {name} has the malformed value {value:?}")]
    Annotation {
        /// Name of the annotation.
        name: &'static str,
        /// Value of the annotation.
        value: String,
    },
    /// The table cannot be read, or is not the one that the manifest refers to.
    #[error("offset {offset}: cannot read the table")]
    Read {
        /// Offset in the layer.
        offset: u64,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The end of the layer does not point to the table.
    #[error("offset {0}: no footer points to the table")]
    Footer(u64),
    /// The stream around the table is malformed.
    #[error("the stream around the table cannot be read")]
    Tar(#[source] TarError),
    /// The table is malformed.
    #[error("the table is malformed")]
    Json(#[source] serde_json::Error),
    /// The table has an unknown version.
    #[error("tables of version {0} are not supported")]
    Version(u32),
    /// An entry has an invalid path or link.
    #[error("cannot read entry {number} of the table")]
    Path {
        /// Number of the entry.
        number: u64,
        /// The cause.
        #[source]
        source: TarError,
    },
    /// An entry has an unknown type.
    #[error("entry {number} of the table has the unknown type {kind:?}")]
    Kind {
        /// Number of the entry.
        number: u64,
        /// Type of the entry.
        kind: String,
    },
    /// The pieces of a file are not contiguous, or are beyond the end.
    #[error("entry {0} of the table has an impossible offset")]
    Range(u64),
}
