//! Images, generated on demand.

use std::collections::BTreeMap;
use std::io;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tec_core::digest::Sha256Digest;
use tec_tpm::compute::testing::layer::TableLayer;

/// Media type of an index.
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// Media type of a manifest.
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(super) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+";

/// Blobs and manifests by digest, as a registry has them.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Content {
    /// Configurations and layers.
    pub blobs: BTreeMap<String, Vec<u8>>,
    /// Manifests and indexes, with their media types.
    pub manifests: BTreeMap<String, (String, Vec<u8>)>,
}

impl Content {
    /// Adds a blob; returns a descriptor without media type.
    pub fn blob(&mut self, bytes: &[u8]) -> Value {
        let digest = digest(bytes);
        self.blobs.insert(digest.clone(), bytes.to_vec());
        json!({ "digest": digest, "size": bytes.len() })
    }

    /// Adds a manifest or index; returns its digest.
    pub fn manifest(&mut self, media_type: &str, json: &Value) -> String {
        let bytes = json.to_string().into_bytes();
        let digest = digest(&bytes);
        let stored = (media_type.to_owned(), bytes);
        self.manifests.insert(digest.clone(), stored);
        digest
    }

    /// Adds an image with these labels and layers, each with the name of its compression; returns
    /// the digest of its manifest.
    pub fn image(&mut self, labels: &Value, layers: &[(&str, TableLayer)]) -> String {
        let config = json!({
            "architecture": "amd64", "os": "linux", "config": { "Labels": labels },
            "rootfs": { "type": "layers", "diff_ids": [] },
        });
        let blob = self.blob(config.to_string().as_bytes());
        let config = with(blob, &[("mediaType", CONFIG.into())]);
        let layers: Vec<Value> = layers
            .iter()
            .map(|(kind, layer)| {
                let media_type = format!("{LAYER}{kind}").into();
                let annotations = json!(layer.annotations);
                let more = [("mediaType", media_type), ("annotations", annotations)];
                with(self.blob(&layer.bytes), &more)
            })
            .collect();
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers,
        });
        self.manifest(MANIFEST, &manifest)
    }
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", Sha256Digest::of(bytes))
}

pub(super) fn with(mut object: Value, more: &[(&str, Value)]) -> Value {
    if let Value::Object(members) = &mut object {
        let more = more.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        members.extend(more);
    }
    object
}

/// An ordinary layer with these files, and the name of its compression.
pub fn gzip(files: &[(&str, &[u8])]) -> io::Result<(&'static str, TableLayer)> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, content) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        archive.append_data(&mut header, path, *content)?;
    }
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(&archive.into_inner()?)?;
    let mut layer = TableLayer::default();
    layer.bytes = packed.finish()?;
    Ok(("gzip", layer))
}

/// Incompressible bytes, always the same, from a linear congruential generator (Knuth, MMIX).
pub fn noise(size: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(&mut next).take(size).collect()
}
