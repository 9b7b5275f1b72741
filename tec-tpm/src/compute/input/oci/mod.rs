//! An image in an OCI image layout (OCI Image Specification 1.1): `index.json`, manifest, layers.
//!
//! A layout is files by path, so whatever is a [`BootImage`] may hold one: a directory, an archive,
//! and whoever serves `index.json` and `blobs/…` from elsewhere.

mod blob;
mod descriptor;
mod error;

use std::io;
use std::io::Read as _;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tec_core::reference::BootImage;

use self::blob::Blob;
pub use self::blob::BlobError;
use self::descriptor::Descriptor;
use self::descriptor::MediaType;
use self::descriptor::for_platform;
use self::descriptor::named;
pub use self::error::OciError;
use super::layers::Layer;
use super::layers::LayeredImage;
use super::layers::Whiteouts;
use super::tar::EndMark;
use super::unpack::Stream;

/// Largest index or manifest: what registries take (Distribution Specification 1.1, "Pushing
/// Manifests").
const MAX_JSON: u64 = 4 << 20;
/// Most layers; overlayfs takes 500.
const MAX_LAYERS: usize = 512;
/// Most indexes that refer to each other.
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
) -> Result<LayeredImage, OciError> {
    let marker: Marker = read_json(layout, MARKER, None)?;
    if !marker.image_layout_version.starts_with("1.") {
        return Err(OciError::Version {
            version: marker.image_layout_version,
        });
    }
    let index: Index = read_json(layout, INDEX, None)?;
    let image = match reference {
        Some(reference) => named(index.manifests, reference)?,
        None => for_platform(index.manifests)?,
    };
    let (file, manifest) = manifest(layout, image)?;
    if manifest.layers.len() > MAX_LAYERS {
        return Err(OciError::TooMany {
            file,
            limit: MAX_LAYERS,
            what: "layers",
        });
    }
    let layers = manifest.layers.iter();
    let blobs = layers.map(|layer| layer.layer(layout, &file));
    overlay(blobs.collect::<Result<_, _>>()?)
}

/// Puts layers over each other.
fn overlay(blobs: Vec<Blob>) -> Result<LayeredImage, OciError> {
    let paths: Vec<String> = blobs.iter().map(Blob::path).collect();
    // A digest tells that a layer is whole.
    let layer = |blob| Layer::Stream(Box::new(blob), EndMark::Optional);
    let layers = blobs.into_iter().map(layer).collect();
    LayeredImage::open(layers, Whiteouts::Removing).map_err(|(number, source)| OciError::Layer {
        file: paths.into_iter().nth(number).unwrap_or_default(),
        source,
    })
}

/// The manifest that a descriptor of the index leads to, and its path.
fn manifest(
    layout: &Arc<dyn BootImage>,
    mut descriptor: Descriptor,
) -> Result<(String, Manifest), OciError> {
    let mut file = INDEX.to_owned();
    for _ in 0..MAX_NESTED {
        let blob = descriptor.blob(layout, &file)?;
        match descriptor.media_type()? {
            MediaType::Manifest => {
                let path = blob.path();
                let manifest = read_json(layout, &path, Some(&blob))?;
                return Ok((path, manifest));
            }
            MediaType::Index => {
                file = blob.path();
                let index: Index = read_json(layout, &file, Some(&blob))?;
                descriptor = for_platform(index.manifests)?;
            }
            MediaType::Layer => return Err(descriptor.unknown()),
        }
    }
    Err(OciError::TooMany {
        file,
        limit: MAX_NESTED,
        what: "indexes above it",
    })
}

/// Reads a small file, whose digest is checked if it is a blob.
fn read_json<T: DeserializeOwned>(
    layout: &Arc<dyn BootImage>,
    file: &str,
    blob: Option<&Blob>,
) -> Result<T, OciError> {
    let refuse = |source| OciError::Read {
        file: file.to_owned(),
        source,
    };
    let reader: Stream = match blob {
        Some(blob) => blob.verified().map_err(refuse)?,
        None => Box::new(layout.open(file).map_err(refuse)?),
    };
    let mut text = Vec::new();
    let size = reader.take(MAX_JSON + 1).read_to_end(&mut text);
    if size.map_err(refuse)? as u64 > MAX_JSON {
        return Err(refuse(io::ErrorKind::FileTooLarge.into()));
    }
    serde_json::from_slice(&text).map_err(|source| OciError::Json {
        file: file.to_owned(),
        source,
    })
}
