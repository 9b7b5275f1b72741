//! Why a FAT file system cannot be read.

use std::io;

use crate::compute::input::tree::TreeError;

/// A FAT file system cannot be read. Offsets count bytes from the start of the image that it lies
/// in.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FatError {
    /// Reading failed.
    #[error("offset {offset}: reading failed")]
    Read {
        /// Offset of the read.
        offset: u64,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The image ends too early.
    #[error("offset {offset}: the image ends within {part}")]
    Truncated {
        /// Where the part begins.
        offset: u64,
        /// What is cut off.
        part: &'static str,
    },
    /// A field of the boot sector contradicts the specification or another field.
    #[error("offset {offset}: {field} is {value}, which is invalid")]
    Field {
        /// Where the field is.
        offset: u64,
        /// The field.
        field: &'static str,
        /// Value of the field.
        value: u64,
    },
    /// A chain of clusters leads to one that cannot belong to it.
    #[error("offset {offset}: cluster {cluster} does not belong to any file")]
    Cluster {
        /// Where the number of the cluster is.
        offset: u64,
        /// The number.
        cluster: u32,
    },
    /// A chain of clusters ends before the file does.
    #[error("offset {offset}: the file ends {missing} bytes too early")]
    Short {
        /// Where the end of the chain is.
        offset: u64,
        /// Bytes missing from the size that its folder states.
        missing: u64,
    },
    /// Two folders share the same clusters.
    #[error("offset {offset}: folder {path:?} shares its clusters with another folder")]
    SharedFolder {
        /// Where the entry of the folder is.
        offset: u64,
        /// Path of the folder.
        path: String,
    },
    /// Two names are the same to firmware, which ignores case.
    #[error("offset {offset}: {path:?} duplicates the name of another file")]
    SameName {
        /// Where the entry of the second one is.
        offset: u64,
        /// Path of the second one.
        path: String,
    },
    /// A folder has more entries than the specification allows, or all folders together exceed the
    /// limit.
    #[error("offset {offset}: folder {path:?} has too many entries")]
    TooManyEntries {
        /// Where the folder begins.
        offset: u64,
        /// Path of the folder.
        path: String,
    },
    /// A name cannot be part of a path.
    #[error("offset {offset}: the name of an entry is invalid")]
    Name {
        /// Where the entry is.
        offset: u64,
        /// The cause.
        #[source]
        source: TreeError,
    },
}
