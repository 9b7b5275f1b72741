//! Why an OCI image layout cannot be read.

use std::io;

use crate::compute::input::layers::LayerError;
use crate::compute::input::table::TableError;

/// An OCI image layout cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OciError {
    /// A file of the layout cannot be read, or has the wrong digest.
    #[error("cannot read {file}")]
    Read {
        /// Path in the layout.
        file: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A file is not the expected JSON.
    #[error("{file} is malformed")]
    Json {
        /// Path in the layout.
        file: String,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
    /// The layout has an unknown version.
    #[error("image layouts of version {0:?} are not supported")]
    Version(String),
    /// No image has the chosen reference.
    #[error("no image is named {reference:?}; available: {}", candidates.join(", "))]
    NoSuchReference {
        /// The reference.
        reference: String,
        /// References and digests of all images.
        candidates: Vec<String>,
    },
    /// Several images match.
    #[error("several images match: {}", candidates.join(", "))]
    SeveralImages {
        /// References and digests of these images.
        candidates: Vec<String>,
    },
    /// No image is for Linux on x86-64, the only platform supported here.
    #[error("no image is for linux/amd64; available: {}", candidates.join(", "))]
    NoPlatform {
        /// References and digests of all images.
        candidates: Vec<String>,
    },
    /// A digest is not of a known type.
    #[error("{digest:?} in {file} is not a SHA-256 or SHA-512 digest")]
    Digest {
        /// The file that contains the digest.
        file: String,
        /// The digest as given.
        digest: String,
    },
    /// A part of the image has an unknown type.
    #[error("{digest} has the unknown type {media_type:?}")]
    MediaType {
        /// Digest of the part.
        digest: String,
        /// The type.
        media_type: String,
    },
    /// Indexes are nested too deeply, or there are too many layers.
    #[error("{file} has more than {limit} {what}")]
    TooMany {
        /// Path in the layout.
        file: String,
        /// Limit.
        limit: usize,
        /// What there are too many of.
        what: &'static str,
    },
    /// A layer cannot be applied over the ones before it.
    #[error("cannot read layer {file}")]
    Layer {
        /// Path in the layout.
        file: String,
        /// The cause.
        #[source]
        source: LayerError,
    },
    /// The table of contents of a layer cannot be used.
    #[error("cannot read the table of contents of layer {file}")]
    Table {
        /// Path in a layout.
        file: String,
        /// The cause.
        #[source]
        source: TableError,
    },
}
