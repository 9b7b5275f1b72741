//! Reference values: from the files of an image to the PCR values that booting it leaves.

use std::io::Read;
use std::{fmt, io};

use crate::image::ExpectedPcrs;

/// A file of an image, opened for reading.
pub trait ImageFile: Read + Send {
    /// Size in bytes, if known before reading.
    fn size(&self) -> Option<u64>;
}

/// The boot files of an operating system image, wherever they are stored.
///
/// *Contract*: paths are relative, separated by `/`, and sorted; `open` streams.
/// *Implemented by* the directory and memory images of `tec_tpm::compute`.
pub trait BootImage: fmt::Debug + Send + Sync {
    /// Paths of all files below `prefix` (empty for all).
    fn files(&self, prefix: &str) -> io::Result<Vec<String>>;

    /// Opens a file.
    fn open(&self, path: &str) -> io::Result<Box<dyn ImageFile>>;
}

/// Computes what is measured when an image boots.
///
/// *Contract*: deterministic; anything that cannot be predicted is an error, never a guess.
/// *Implemented by* `tec_tpm::compute`.
#[cfg_attr(any(test, feature = "test-util"), mockall::automock)]
pub trait PcrComputer: fmt::Debug + Send + Sync {
    /// Computes the PCR values, each with the events that produce it.
    fn compute(&self, image: &dyn BootImage) -> Result<ExpectedPcrs, ComputeError>;
}

/// An image's PCR values cannot be computed.
#[derive(Debug, thiserror::Error)]
#[error("cannot compute the PCR values of {file}")]
#[non_exhaustive]
pub struct ComputeError {
    /// The file or search that failed.
    pub file: String,
    /// The cause.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

impl ComputeError {
    /// A failure at `file`.
    pub fn new(
        file: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { file: file.into(), source: source.into() }
    }
}
