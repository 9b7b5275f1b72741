//! Why a table of contents cannot be used.

use std::io;

use crate::compute::input::tar::TarError;

/// The table of contents of a layer cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The annotation that leads to it is not of its form.
    #[error("the annotation {name} is {value:?}, which is not of its form")]
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
    #[error("offset {offset}: there is no footer that leads to the table")]
    Footer {
        /// Where in the layer.
        offset: u64,
    },
    /// The stream around it is not of its form.
    #[error("the stream around the table cannot be read")]
    Tar(#[source] TarError),
    /// It is not of its form.
    #[error("the table is not of its form")]
    Json(#[source] serde_json::Error),
    /// It has a version that is not known.
    #[error("tables of version {version} are not known")]
    Version {
        /// The version.
        version: u32,
    },
    /// An entry has a path or a link that is none.
    #[error("entry {number} of the table")]
    Path {
        /// Which entry.
        number: u64,
        /// Why.
        #[source]
        source: TarError,
    },
    /// An entry is of a type that is not known.
    #[error("entry {number} of the table is of type {kind:?}, which is not known")]
    Kind {
        /// Which entry.
        number: u64,
        /// Its type.
        kind: String,
    },
    /// The pieces of a file do not follow each other, or lie beyond the end.
    #[error("entry {number} of the table lies where no file can lie")]
    Range {
        /// Which entry.
        number: u64,
    },
}
