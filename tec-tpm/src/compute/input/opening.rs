//! Opens files as images.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use tec_core::reference::BootImage;

use super::allowance::{Allowance, Meter};
use super::bytes::Bytes;
use super::disk::{DiskError, Partition};
use super::error::InputError;
use super::ext4::{Ext4Image, is_ext4};
use super::fat::FatImage;
use super::format::Format;
use super::layers::{Layer, LayeredImage, Whiteouts};
use super::mounted::{Mount, Mounted};
use super::oci::OciError;
use super::ostree::Folders;
use super::parts::{Extent, ImageParts};
use super::program::ProgramImage;
use super::source::{BootSource, OpenImage, SourceKind};
use super::tar::EndMark;
use super::unpack::{Source, Stream, unpack};
use super::{disk, docker, oci, ostree};
use crate::compute::DirectoryImage;

/// Largest stream that is copied to a temporary file.
const MAX_STREAM: u64 = 64 << 30;

type OpenLayers =
    fn(&Arc<dyn BootImage>, Option<&str>, &Allowance) -> Result<LayeredImage, OciError>;

impl BootSource {
    /// Opens a directory, a file, a block device or a pipe. The output of a pipe is copied to a
    /// temporary file.
    ///
    /// # Errors
    /// [`InputError`], which names the file and, if there is one, the offset.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<OpenImage, InputError> {
        let opening = Opening { source: self, file: path.as_ref() };
        if opening.file.is_dir() {
            return opening.directory();
        }
        let bytes = File::open(opening.file).and_then(|file| Bytes::open(file, MAX_STREAM));
        opening.file(&bytes.map_err(|source| opening.unreadable(source))?)
    }

    /// Reads an image from a stream, such as standard input; errors call it `-`. It is copied to a
    /// temporary file.
    pub fn read(&self, reader: impl Read) -> Result<OpenImage, InputError> {
        let opening = Opening { source: self, file: Path::new("-") };
        let bytes = Bytes::copy(reader, MAX_STREAM);
        opening.file(&bytes.map_err(|source| opening.unreadable(source))?)
    }

    /// Opens an OCI image whose parts are stored elsewhere, such as in a registry. `manifest` is
    /// its image manifest (not an index), whose digest the caller has verified; errors call the
    /// image `name`.
    ///
    /// Layers with a table of contents (estargz, zstd:chunked) are not read as a whole: only the
    /// table, and the files that are opened later.
    ///
    /// # Security
    /// Layers that are read as a whole are verified against the digest in the manifest; tables and
    /// files of the others, against digests that follow from it. Software that unpacks a whole
    /// layer may find other files in it than its table lists; the values computed here then match
    /// no boot of the image, and unlock nothing.
    pub fn open_parts(
        &self,
        name: &str,
        manifest: &[u8],
        parts: &Arc<dyn ImageParts>,
        extent: Extent,
    ) -> Result<OpenImage, InputError> {
        let opening = Opening { source: self, file: Path::new(name) };
        opening.parts(name, manifest, parts, extent)
    }
}

/// An image that is being opened.
pub(super) struct Opening<'s> {
    pub(super) source: &'s BootSource,
    pub(super) file: &'s Path,
}

impl Opening<'_> {
    pub(super) fn directory(&self) -> Result<OpenImage, InputError> {
        let image = DirectoryImage::open(self.file).map_err(|source| self.unreadable(source))?;
        if image.open(oci::MARKER).is_ok() {
            return self.layered(image, oci::open, &Allowance::default());
        }
        let rooted = self.rooted(&image)?;
        let image = match rooted {
            Some(path) => DirectoryImage::open(image.root().join(path)),
            None => Ok(image),
        };
        self.opened(SourceKind::Directory, image.map_err(|source| self.unreadable(source))?)
    }

    pub(super) fn file(&self, bytes: &Arc<Bytes>) -> Result<OpenImage, InputError> {
        match Format::of(bytes).map_err(|source| self.unreadable(source))? {
            Format::Fat => self.opened(SourceKind::Fat, self.fat(bytes, 0..bytes.size())?),
            Format::Ext4 => self.opened(SourceKind::Ext4, self.ext4(bytes, 0..bytes.size())?),
            Format::Disk => self.disk(bytes),
            Format::Program => self.opened(SourceKind::Program, ProgramImage(Arc::clone(bytes))),
            Format::Tar => self.tar(Layer::Plain(Arc::clone(bytes)), &Allowance::default()),
            Format::PackedTar => {
                let allowance = Allowance::default();
                let packed = Packed { bytes: Arc::clone(bytes), meter: allowance.meter() };
                let layer = Layer::Stream(Box::new(packed), EndMark::Required);
                self.tar(layer, &allowance.within())
            }
            Format::Unsupported { what, hint } => {
                Err(InputError::Unsupported { file: self.file.to_owned(), what, hint })
            }
            Format::Unknown => Err(InputError::Unknown(self.file.to_owned())),
        }
    }

    fn fat(&self, bytes: &Arc<Bytes>, range: Range<u64>) -> Result<FatImage, InputError> {
        let refuse = |source| InputError::Fat { file: self.file.to_owned(), source };
        FatImage::open(bytes, range).map_err(refuse)
    }

    fn ext4(&self, bytes: &Arc<Bytes>, range: Range<u64>) -> Result<Ext4Image, InputError> {
        Ext4Image::open(bytes, range).map_err(|source| self.unreadable(source))
    }

    /// The chosen partition, or else what the machine mounts: the system partition, `/boot` and the root.
    fn disk(&self, bytes: &Arc<Bytes>) -> Result<OpenImage, InputError> {
        let refuse = |source| InputError::Disk { file: self.file.to_owned(), source };
        let partitions = disk::partitions(bytes).map_err(refuse)?;
        if let Some(number) = self.source.partition {
            let chosen = partitions.iter().find(|one| one.number == number).cloned();
            let none = || refuse(DiskError::NoSuchPartition { number, candidates: partitions });
            return self.opened(SourceKind::Disk, self.fat(bytes, chosen.ok_or_else(none)?.range)?);
        }
        let system = disk::boot_partition(&partitions).map_err(refuse)?;
        let fat = self.fat(bytes, system.range.clone())?;
        let mut mounted = self.beside(bytes, &partitions, system)?;
        if mounted.is_empty() {
            return self.opened(SourceKind::Disk, fat);
        }
        mounted.insert(0, ("boot/efi/", Box::new(fat)));
        self.opened(SourceKind::Disk, Mounted(mounted))
    }

    /// The file systems beside the system partition that hold boot files.
    fn beside(
        &self,
        bytes: &Arc<Bytes>,
        partitions: &[Partition],
        system: &Partition,
    ) -> Result<Vec<Mount>, InputError> {
        let refuse = |source| InputError::Disk { file: self.file.to_owned(), source };
        let mut found: BTreeMap<&'static str, Vec<(Partition, Ext4Image)>> = BTreeMap::new();
        for partition in partitions.iter().filter(|partition| *partition != system) {
            let (number, system) = (partition.number, system.number);
            let unread = |source| refuse(DiskError::FileSystem { number, system, source });
            if is_ext4(bytes, partition.range.start).map_err(unread)? {
                let image = Ext4Image::open(bytes, partition.range.clone()).map_err(unread)?;
                if let Some(place) = image.place().map_err(unread)? {
                    found.entry(place).or_default().push((partition.clone(), image));
                }
            }
        }
        let mut mounted = Vec::new();
        for (place, mut candidates) in found.into_iter().rev() {
            if candidates.len() > 1 {
                let candidates = candidates.into_iter().map(|(partition, _)| partition).collect();
                return Err(refuse(DiskError::SeveralAt { place, candidates }));
            }
            mounted
                .extend(candidates.pop().map(|(_, image)| -> Mount { (place, Box::new(image)) }));
        }
        Ok(mounted)
    }

    /// `within` is for packed streams inside it.
    fn tar(&self, layer: Layer, within: &Allowance) -> Result<OpenImage, InputError> {
        let image = LayeredImage::open(vec![layer], Whiteouts::Ordinary);
        let image =
            image.map_err(|(_, source)| InputError::Tar { file: self.file.to_owned(), source })?;
        // An archive of a layout: its files are few and beside each other.
        if image.has_file(oci::MARKER) {
            return self.layered(image, oci::open, within);
        }
        if image.has_file(docker::MANIFEST) && !image.has_file("usr") {
            return self.layered(image, docker::open, within);
        }
        let image = match self.rooted(&image)? {
            Some(path) => image.within(&path),
            None => image,
        };
        self.opened(SourceKind::Tar, image)
    }

    /// An image in layers that are files of another image.
    fn layered(
        &self,
        layout: impl BootImage + 'static,
        open: OpenLayers,
        allowance: &Allowance,
    ) -> Result<OpenImage, InputError> {
        let layout: Arc<dyn BootImage> = Arc::new(layout);
        let image = open(&layout, self.source.reference.as_deref(), allowance);
        let image =
            image.map_err(|source| InputError::Oci { file: self.file.to_owned(), source })?;
        self.opened(SourceKind::Oci, image)
    }

    pub(super) fn parts(
        &self,
        name: &str,
        manifest: &[u8],
        parts: &Arc<dyn ImageParts>,
        extent: Extent,
    ) -> Result<OpenImage, InputError> {
        if self.source.reference.is_some() {
            return Err(self.no_choice("image references"));
        }
        let image = oci::open_parts(name, manifest, parts, extent);
        let image =
            image.map_err(|source| InputError::Oci { file: self.file.to_owned(), source })?;
        self.opened(SourceKind::Oci, image)
    }

    /// Path of the deployment to use, if this is the root of an OSTree installation.
    fn rooted(&self, image: &dyn Folders) -> Result<Option<String>, InputError> {
        let found = ostree::deployments(image).map_err(|source| self.unreadable(source))?;
        if found.is_empty() {
            return match self.source.deployment {
                Some(_) => Err(self.no_choice("deployments")),
                None => Ok(None),
            };
        }
        let file = self.file.to_owned();
        match (&self.source.deployment, found.as_slice()) {
            (None, [only]) => Ok(Some(only.clone())),
            (None, _) => Err(InputError::SeveralDeployments { file, candidates: found }),
            (Some(chosen), _) if found.contains(chosen) => Ok(Some(chosen.clone())),
            (Some(chosen), _) => Err(InputError::NoSuchDeployment {
                file,
                deployment: chosen.clone(),
                candidates: found,
            }),
        }
    }

    /// The opened image, unless something was selected that cannot be selected in it.
    fn opened(
        &self,
        kind: SourceKind,
        image: impl BootImage + 'static,
    ) -> Result<OpenImage, InputError> {
        let chosen = self.source;
        if chosen.reference.is_some() && kind != SourceKind::Oci {
            return Err(self.no_choice("image references"));
        }
        if chosen.partition.is_some() && kind != SourceKind::Disk {
            return Err(self.no_choice("partitions"));
        }
        if chosen.deployment.is_some() && !matches!(kind, SourceKind::Directory | SourceKind::Tar) {
            return Err(self.no_choice("deployments"));
        }
        let image = Box::new(image);
        Ok(OpenImage { kind, image })
    }

    fn no_choice(&self, of: &'static str) -> InputError {
        InputError::NoChoice { file: self.file.to_owned(), of }
    }

    pub(super) fn unreadable(&self, source: io::Error) -> InputError {
        InputError::Read { file: self.file.to_owned(), source }
    }
}

/// A packed file.
#[derive(Debug)]
struct Packed {
    bytes: Arc<Bytes>,
    meter: Arc<Meter>,
}

impl Source for Packed {
    fn open(&self) -> io::Result<Stream> {
        let whole = self.bytes.window(0..self.bytes.size());
        unpack(Box::new(whole), &self.meter)
    }
}
