//! The parts of an image that are stored elsewhere.

use std::io::Read;
use std::ops::Range;
use std::{fmt, io};

/// The parts of an OCI image by digest, wherever they are stored.
///
/// *Contract*: returns the bytes as they are stored. The reader verifies sizes and digests, so the
/// bytes may come from anyone. *Implemented by* OCI image layouts here, and by readers of
/// registries.
pub trait ImageParts: fmt::Debug + Send + Sync {
    /// Opens the part with this digest, such as `sha256:…`, at the beginning of `range`, in bytes.
    /// Nothing after the range is read.
    fn open(&self, digest: &str, range: Range<u64>) -> io::Result<Box<dyn Read + Send>>;
}

/// How much of an image is examined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All layers.
    Whole,
    /// From the last layer down, until a shim, a GRUB and a kernel are found below `usr`. For
    /// images that guarantee a single kernel, as bootc images do (bootc, "bootc-compatible
    /// images").
    UntilBootable,
}
