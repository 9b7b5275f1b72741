//! Why an image cannot be opened.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use tec_core::code::Code;
use tec_core::port::causes;

use super::disk::DiskError;
use super::layers::LayerError;
use super::oci::OciError;
use super::unpack_error::UnpackError;

/// An image cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// The file cannot be opened or read.
    #[error("cannot read {file}")]
    Read {
        /// The file.
        file: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The format of the file is not known.
    #[error(
        "{0} is not a directory, raw disk, FAT or ext4 file system, tar stream, OCI layout or unified kernel image"
    )]
    Unknown(PathBuf),
    /// The format of the file is known, but not supported.
    #[error("{file} is {what}: {hint}")]
    Unsupported {
        /// The file.
        file: PathBuf,
        /// What it is.
        what: &'static str,
        /// What to do.
        hint: &'static str,
    },
    /// The partitions of a disk cannot be determined.
    #[error("cannot find the boot partition of {file}")]
    Disk {
        /// The file.
        file: PathBuf,
        /// The cause.
        #[source]
        source: DiskError,
    },
    /// A FAT file system cannot be read.
    #[error("cannot read the FAT file system in {file}")]
    Fat {
        /// The file.
        file: PathBuf,
        /// The cause.
        #[source]
        source: DiskError,
    },
    /// A tar stream cannot be read.
    #[error("cannot read the tar stream {file}")]
    Tar {
        /// The file.
        file: PathBuf,
        /// The cause.
        #[source]
        source: LayerError,
    },
    /// An OCI image layout cannot be read.
    #[error("cannot read the OCI image in {file}")]
    Oci {
        /// The file.
        file: PathBuf,
        /// The cause.
        #[source]
        source: OciError,
    },
    /// An OSTree installation has several deployments, and none was chosen.
    #[error("{file} has several deployments: {}", candidates.join(", "))]
    SeveralDeployments {
        /// The file.
        file: PathBuf,
        /// All of them.
        candidates: Vec<String>,
    },
    /// The chosen deployment does not exist.
    #[error("{file} has no deployment {deployment:?}; available: {}", candidates.join(", "))]
    NoSuchDeployment {
        /// The file.
        file: PathBuf,
        /// The one that was chosen.
        deployment: String,
        /// All of them.
        candidates: Vec<String>,
    },
    /// Something was selected that cannot be selected in this kind of image.
    #[error("{of} cannot be selected in {file}")]
    NoChoice {
        /// The file.
        file: PathBuf,
        /// What was selected.
        of: &'static str,
    },
}

impl InputError {
    /// The code that tells users what to do.
    pub fn code(&self) -> Code {
        match causes(self).find_map(<dyn Error>::downcast_ref) {
            Some(UnpackError::Ratio { .. } | UnpackError::TooLarge(_)) => Code::ImageBomb,
            Some(UnpackError::Damaged { .. }) | None => Code::ImageUnreadable,
        }
    }
}
