//! One entry point for all types of images.

use std::io;

use tec_core::reference::{BootImage, ImageFile};

use super::program::PROGRAM;

/// An image of an operating system, in any form.
///
/// The form is detected from the content: a directory, an OCI image layout (a directory, or an
/// archive of one), an archive of `docker save`, the root of an OSTree installation, a tar stream (plain, gzip or
/// zstd), a raw disk with GPT or MBR, a FAT or ext4 file system, or a single EFI program.
///
/// # Example
/// ```
/// # #[cfg(feature = "test-util")] {
/// use tec_core::pcr::PcrIndex;
/// use tec_core::reference::BootImage;
/// use tec_core::reference::PcrComputer;
/// use tec_tpm::compute::ChainComputer;
/// use tec_tpm::compute::SecureBoot;
/// use tec_tpm::compute::input::BootSource;
/// use tec_tpm::compute::input::SourceKind;
/// # use tec_tpm::compute::testing::debian_chain;
///
/// # let memory = debian_chain("2.12");
/// # let mut archive = tar::Builder::new(Vec::new());
/// # for path in memory.files("")? {
/// #     let content = memory.content(&path).unwrap();
/// #     let mut header = tar::Header::new_ustar();
/// #     header.set_size(content.len() as u64);
/// #     archive.append_data(&mut header, path, content)?;
/// # }
/// # let stdin = std::io::Cursor::new(archive.into_inner()?);
/// let image = BootSource::new().read(stdin)?; // or `open(path)`
/// assert_eq!(image.kind(), SourceKind::Tar);
/// assert!(image.files("boot")?.contains(&"boot/vmlinuz-6.12.0-amd64".to_owned()));
///
/// let expected = ChainComputer::new(SecureBoot::On).compute(&image)?;
/// assert!(expected.pcr(PcrIndex::BOOT_MANAGER).is_some());
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BootSource {
    pub(super) reference: Option<String>,
    pub(super) partition: Option<u32>,
    pub(super) deployment: Option<String>,
}

/// An opened image.
///
/// # Security
/// Everything in it is bounded, and nothing leaves its root. Its content is whatever the file
/// holds: only the layers of an OCI image are verified against digests.
#[derive(Debug)]
pub struct OpenImage {
    pub(super) kind: SourceKind,
    pub(super) image: Box<dyn BootImage>,
}

/// The detected form of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SourceKind {
    /// A directory.
    Directory,
    /// A raw disk with partitions.
    Disk,
    /// An ext4 file system.
    Ext4,
    /// A FAT file system.
    Fat,
    /// A tar stream.
    Tar,
    /// An OCI image layout.
    Oci,
    /// A single EFI program, such as a unified kernel image.
    Program,
}

impl BootSource {
    /// Selects everything automatically; if there are several candidates, the error lists them.
    pub fn new() -> Self {
        Self::default()
    }

    /// Selects this image of an OCI image layout: a name (`org.opencontainers.image.ref.name`) or a
    /// digest.
    pub fn with_reference(mut self, reference: impl Into<String>) -> Self {
        self.reference = Some(reference.into());
        self
    }

    /// Selects this partition of a disk, counted from 1.
    pub fn with_partition(mut self, number: u32) -> Self {
        self.partition = Some(number);
        self
    }

    /// Selects this deployment of an OSTree installation: its path from the root,
    /// `ostree/deploy/<name>/deploy/<checksum>.<serial>`.
    pub fn with_deployment(mut self, path: impl Into<String>) -> Self {
        self.deployment = Some(path.into());
        self
    }
}

impl OpenImage {
    /// The detected form of the image.
    pub fn kind(&self) -> SourceKind {
        self.kind
    }

    /// What firmware starts if the image is a single program: the name under which its file is
    /// listed. Boot entries in the variables of a machine do not name it, so the predictor receives
    /// it as input.
    pub fn starts(&self) -> Option<&'static str> {
        (self.kind == SourceKind::Program).then_some(PROGRAM)
    }
}

impl BootImage for OpenImage {
    fn files(&self, prefix: &str) -> io::Result<Vec<String>> {
        self.image.files(prefix)
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn ImageFile>> {
        self.image.open(path)
    }
}
