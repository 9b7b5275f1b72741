//! Why a table of contents cannot be used.

use std::io;

use crate::compute::input::tar::TarError;

/// The table of contents of a layer cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The annotation that leads to it is malformed.
    #[error("the annotation {name} has the malformed value {value:?}")]
    Annotation {
        /// Name of the annotation.
        name: &'static str,
        /// What it says.
        value: String,
    },
    /// It cannot be read, or is not the one that the manifest means.
    #[error("offset {offset}: cannot read the table")]
    Read {
        /// Where in the layer.
        offset: u64,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The end of the layer does not lead to it.
    #[error("offset {offset}: no footer points to the table")]
    Footer {
        /// Where in the layer.
        offset: u64,
    },
    /// The stream around it is malformed.
    #[error("the stream around the table cannot be read")]
    Tar(#[source] TarError),
    /// It is malformed.
    #[error("the table is malformed")]
    Json(#[source] serde_json::Error),
    /// It has an unknown version.
    #[error("tables of version {version} are not supported")]
    Version {
        /// The version.
        version: u32,
    },
    /// An entry has an invalid path or link.
    #[error("cannot read entry {number} of the table")]
    Path {
        /// Which entry.
        number: u64,
        /// Why.
        #[source]
        source: TarError,
    },
    /// An entry has an unknown type.
    #[error("entry {number} of the table has the unknown type {kind:?}")]
    Kind {
        /// Which entry.
        number: u64,
        /// Its type.
        kind: String,
    },
    /// The pieces of a file are not contiguous, or are beyond the end.
    #[error("entry {number} of the table has an impossible offset")]
    Range {
        /// Which entry.
        number: u64,
    },
}
