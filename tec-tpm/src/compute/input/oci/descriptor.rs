//! Descriptors of the parts of an image (descriptor.md).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;

use super::error::OciError;
use crate::compute::input::allowance::Allowance;
use crate::compute::input::blob::{Blob, BlobDigest};
use crate::compute::input::parts::ImageParts;

/// Annotations with the name of an image (annotations.md), and the one that containerd uses.
const NAMES: [&str; 2] = ["org.opencontainers.image.ref.name", "io.containerd.image.name"];

/// Describes a part.
#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    media_type: String,
    digest: String,
    size: u64,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    platform: Option<Platform>,
}

#[derive(Clone, Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

/// What a descriptor describes.
pub(super) enum MediaType {
    Index,
    Manifest,
    Layer,
}

impl Descriptor {
    fn names(&self) -> impl Iterator<Item = &str> {
        let names = NAMES.iter().filter_map(|name| self.annotations.get(*name));
        names.map(String::as_str)
    }

    /// Types of the specification and of Docker, whose images have the same form.
    pub(super) fn media_type(&self) -> Result<MediaType, OciError> {
        match self.media_type.as_str() {
            "application/vnd.oci.image.index.v1+json"
            | "application/vnd.docker.distribution.manifest.list.v2+json" => Ok(MediaType::Index),
            "application/vnd.oci.image.manifest.v1+json"
            | "application/vnd.docker.distribution.manifest.v2+json" => Ok(MediaType::Manifest),
            "application/vnd.oci.image.layer.v1.tar"
            | "application/vnd.oci.image.layer.v1.tar+gzip"
            | "application/vnd.oci.image.layer.v1.tar+zstd"
            | "application/vnd.docker.image.rootfs.diff.tar.gzip"
            | "application/vnd.docker.image.rootfs.diff.tar.zstd" => Ok(MediaType::Layer),
            _ => Err(self.unknown()),
        }
    }

    /// The value of an annotation.
    pub(super) fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations.get(name).map(String::as_str)
    }

    pub(super) fn unknown(&self) -> OciError {
        OciError::MediaType { digest: self.digest.clone(), media_type: self.media_type.clone() }
    }

    pub(super) fn layer(
        &self,
        parts: &Arc<dyn ImageParts>,
        file: &str,
        allowance: &Allowance,
    ) -> Result<Blob, OciError> {
        match self.media_type()? {
            MediaType::Layer => self.blob(parts, file, allowance),
            MediaType::Index | MediaType::Manifest => Err(self.unknown()),
        }
    }

    /// The part that it describes; `file` is where the descriptor is.
    pub(super) fn blob(
        &self,
        parts: &Arc<dyn ImageParts>,
        file: &str,
        allowance: &Allowance,
    ) -> Result<Blob, OciError> {
        let Ok(digest) = self.digest.parse::<BlobDigest>() else {
            return Err(OciError::Digest {
                file: file.to_owned(),
                digest: self.digest.chars().take(256).collect(),
            });
        };
        Ok(Blob::new(Arc::clone(parts), digest, self.size, allowance))
    }
}

impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = self.names().next() {
            write!(f, "{name} ")?;
        }
        f.write_str(&self.digest)?;
        match &self.platform {
            Some(platform) => write!(f, " ({}/{})", platform.os, platform.architecture),
            None => Ok(()),
        }
    }
}

/// The image with this name or digest.
pub(super) fn named(descriptors: Vec<Descriptor>, reference: &str) -> Result<Descriptor, OciError> {
    let (found, others): (Vec<_>, Vec<_>) = descriptors
        .into_iter()
        .partition(|d| d.digest == reference || d.names().any(|name| name == reference));
    if found.is_empty() {
        return Err(OciError::NoSuchReference {
            reference: reference.to_owned(),
            candidates: list(&others),
        });
    }
    for_platform(found)
}

/// The one image for x86-64. An image without a platform counts as well; one for `unknown/unknown`
/// only describes another image.
pub(super) fn for_platform(descriptors: Vec<Descriptor>) -> Result<Descriptor, OciError> {
    let all = list(&descriptors);
    let fits = |descriptor: &Descriptor| {
        let platform = descriptor.platform.as_ref();
        platform.is_none_or(|p| p.os == "linux" && p.architecture == "amd64")
    };
    let found: Vec<Descriptor> = descriptors.into_iter().filter(fits).collect();
    match found.as_slice() {
        [] => Err(OciError::NoPlatform { candidates: all }),
        [only] => Ok(only.clone()),
        several => Err(OciError::SeveralImages { candidates: list(several) }),
    }
}

fn list(descriptors: &[Descriptor]) -> Vec<String> {
    let names = descriptors.iter().map(Descriptor::to_string);
    names.collect()
}
