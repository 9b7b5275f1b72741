//! An archive as `docker save` made it before version 25 and `podman save` makes it by default.

use std::io;
use std::sync::Arc;

use serde::Deserialize;
use tec_core::reference::BootImage;

use super::allowance::{Allowance, Meter};
use super::layers::{Layer, LayeredImage, Whiteouts};
use super::oci::{MAX_LAYERS, OciError, layer_error, read_json};
use super::tar::EndMark;
use super::unpack::{Source, Stream, unpack};

/// The file that lists images and their layers (Docker Image Specification 1.2, "Combined Image JSON + Filesystem
/// Changeset Format").
pub(super) const MANIFEST: &str = "manifest.json";

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// Opens the image with this reference, or the only one.
pub(super) fn open(
    archive: &Arc<dyn BootImage>,
    reference: Option<&str>,
    allowance: &Allowance,
) -> Result<LayeredImage, OciError> {
    let all: Vec<Saved> = read_json(MANIFEST, archive.open(MANIFEST))?;
    let saved = chosen(all, reference)?;
    if saved.layers.len() > MAX_LAYERS {
        return Err(OciError::TooMany {
            file: MANIFEST.to_owned(),
            limit: MAX_LAYERS,
            what: "layers",
        });
    }
    let layer = |path: &String| {
        let (archive, path) = (Arc::clone(archive), path.clone());
        Layer::Stream(Box::new(Part { archive, path, meter: allowance.meter() }), EndMark::Optional)
    };
    let image = LayeredImage::open(saved.layers.iter().map(layer).collect(), Whiteouts::Removing);
    image.map_err(|error| layer_error(&saved.layers, error))
}

fn chosen(all: Vec<Saved>, reference: Option<&str>) -> Result<Saved, OciError> {
    let candidates =
        all.iter().flat_map(|saved| saved.repo_tags.iter().flatten().cloned()).collect();
    let is_it = |saved: &Saved| {
        reference.is_none_or(|wanted| saved.repo_tags.iter().flatten().any(|tag| tag == wanted))
    };
    let mut fitting = all.into_iter().filter(is_it);
    match (fitting.next(), fitting.next()) {
        (Some(only), None) => Ok(only),
        (Some(_), Some(_)) => Err(OciError::SeveralImages { candidates }),
        (None, _) => {
            let reference = reference.unwrap_or_default().to_owned();
            Err(OciError::NoSuchReference { reference, candidates })
        }
    }
}

#[derive(Debug)]
struct Part {
    archive: Arc<dyn BootImage>,
    path: String,
    meter: Arc<Meter>,
}

impl Source for Part {
    fn open(&self) -> io::Result<Stream> {
        unpack(Box::new(self.archive.open(&self.path)?), &self.meter)
    }
}
