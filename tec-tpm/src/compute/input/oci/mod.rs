//! An image in an OCI image layout (OCI Image Specification 1.1): `index.json`, manifest, layers.
//!
//! A layout consists of files by path, so any [`BootImage`] can hold one: a directory or an
//! archive. For an image stored elsewhere, such as in a registry, the manifest and its
//! [`ImageParts`] are enough.

mod descriptor;
mod error;

use std::io;
use std::io::Read;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tec_core::reference::BootImage;

use self::descriptor::{Descriptor, MediaType, for_platform, named};
pub use self::error::OciError;
use super::allowance::Allowance;
use super::blob::{Blob, LayoutParts};
use super::layers::{Layer, LayerError, LayeredImage, Whiteouts};
use super::parts::{Extent, ImageParts};
use super::table::{Place, Table};
use super::tar::EndMark;
use crate::compute::find_boot_files;
use crate::compute::resolve::all;

/// Largest index or manifest: what registries accept (Distribution Specification 1.1, "Pushing
/// Manifests").
const MAX_JSON: u64 = 4 << 20;
/// Maximum number of layers; overlayfs supports 500.
pub(super) const MAX_LAYERS: usize = 512;
/// Maximum number of indexes that refer to each other.
const MAX_NESTED: usize = 4;
/// The file that marks an image layout (image-layout.md).
pub(super) const MARKER: &str = "oci-layout";
const INDEX: &str = "index.json";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Marker {
    image_layout_version: String,
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Manifest {
    layers: Vec<Descriptor>,
}

/// Opens the image with this reference, or the only one.
pub(super) fn open(
    layout: &Arc<dyn BootImage>,
    reference: Option<&str>,
    allowance: &Allowance,
) -> Result<LayeredImage, OciError> {
    let marker: Marker = read_json(MARKER, layout.open(MARKER))?;
    if !marker.image_layout_version.starts_with("1.") {
        return Err(OciError::Version(marker.image_layout_version));
    }
    let index: Index = read_json(INDEX, layout.open(INDEX))?;
    let image = match reference {
        Some(reference) => named(index.manifests, reference)?,
        None => for_platform(index.manifests)?,
    };
    let parts: Arc<dyn ImageParts> = Arc::new(LayoutParts(Arc::clone(layout)));
    let (file, manifest) = manifest(&parts, image)?;
    let blobs = manifest.blobs(&parts, &file, allowance)?;
    let paths: Vec<String> = blobs.iter().map(Blob::path).collect();
    let layers = blobs.into_iter().map(whole).collect();
    let image = LayeredImage::open(layers, Whiteouts::Removing);
    image.map_err(|error| layer_error(&paths, error))
}

/// Opens the image with this manifest; errors call it `name`. Of layers with a table of contents,
/// only the requested files are read.
pub(super) fn open_parts(
    name: &str,
    manifest: &[u8],
    parts: &Arc<dyn ImageParts>,
    extent: Extent,
) -> Result<LayeredImage, OciError> {
    let manifest: Manifest = parse(name, manifest)?;
    let blobs = manifest.blobs(parts, name, &Allowance::default())?;
    let paths: Vec<String> = blobs.iter().map(Blob::path).collect();
    let mut layers = Vec::new();
    for ((descriptor, blob), path) in manifest.layers.iter().zip(blobs).zip(&paths) {
        let place = Place::of(|name| descriptor.annotation(name));
        let table = place.map(|place| Table::read(&place, &blob)).transpose();
        let table = table.map_err(|source| OciError::Table { file: path.clone(), source })?;
        layers.push(table.flatten().map_or_else(|| whole(blob), Layer::Table));
    }
    let image = match extent {
        Extent::Whole => LayeredImage::open(layers, Whiteouts::Removing),
        Extent::UntilBootable => LayeredImage::open_until(layers, &is_bootable),
    };
    image.map_err(|error| layer_error(&paths, error))
}

impl Manifest {
    /// The layers; `file` is where they are listed.
    fn blobs(
        &self,
        parts: &Arc<dyn ImageParts>,
        file: &str,
        allowance: &Allowance,
    ) -> Result<Vec<Blob>, OciError> {
        if self.layers.len() > MAX_LAYERS {
            return Err(OciError::TooMany {
                file: file.to_owned(),
                limit: MAX_LAYERS,
                what: "layers",
            });
        }
        let layers = self.layers.iter();
        layers.map(|layer| layer.layer(parts, file, allowance)).collect()
    }
}

/// A layer that is read as a stream. Its digest proves that it is complete.
fn whole(blob: Blob) -> Layer {
    Layer::Stream(Box::new(blob), EndMark::Optional)
}

pub(super) fn layer_error(paths: &[String], (number, source): (usize, LayerError)) -> OciError {
    OciError::Layer { file: paths.get(number).cloned().unwrap_or_default(), source }
}

/// Whether there is a boot chain where bootc images have theirs.
fn is_bootable(image: &LayeredImage) -> bool {
    find_boot_files(image).is_ok_and(|files| {
        let all = [&files.shim, &files.grub].into_iter().chain(&files.kernels);
        !files.kernels.is_empty() && all.into_iter().all(|path| path.starts_with("usr/lib/"))
    })
}

/// The manifest that a descriptor of the index leads to, and its path.
fn manifest(
    parts: &Arc<dyn ImageParts>,
    mut descriptor: Descriptor,
) -> Result<(String, Manifest), OciError> {
    let mut file = INDEX.to_owned();
    for _ in 0..MAX_NESTED {
        // Indexes and manifests are not packed.
        let blob = descriptor.blob(parts, &file, &Allowance::default())?;
        match descriptor.media_type()? {
            MediaType::Manifest => {
                let path = blob.path();
                let manifest = read_json(&path, blob.verified())?;
                return Ok((path, manifest));
            }
            MediaType::Index => {
                file = blob.path();
                let index: Index = read_json(&file, blob.verified())?;
                descriptor = for_platform(index.manifests)?;
            }
            MediaType::Layer => return Err(descriptor.unknown()),
        }
    }
    Err(OciError::TooMany { file, limit: MAX_NESTED, what: "indexes above it" })
}

/// Reads a small file.
pub(super) fn read_json<T: DeserializeOwned>(
    file: &str,
    opened: io::Result<impl Read>,
) -> Result<T, OciError> {
    let refuse = |source| OciError::Read { file: file.to_owned(), source };
    let text = opened.and_then(|reader| all(reader, MAX_JSON)).map_err(refuse)?;
    parse(file, &text)
}

fn parse<T: DeserializeOwned>(file: &str, text: &[u8]) -> Result<T, OciError> {
    serde_json::from_slice(text).map_err(|source| OciError::Json { file: file.to_owned(), source })
}
