//! Images, made on the spot.

use std::collections::BTreeMap;
use std::io::Write as _;

use serde_json::Value;
use serde_json::json;
use tec_core::digest::Sha256Digest;
use tec_core::reference::BootImage as _;
use tec_tpm::compute::testing::debian_chain;
use tec_tpm::compute::testing::layer::TableLayer;

pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+";

/// Blobs and manifests by digest, as a registry has them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    pub(crate) blobs: BTreeMap<String, Vec<u8>>,
    /// With their media types.
    pub(crate) manifests: BTreeMap<String, (String, Vec<u8>)>,
}

pub(crate) fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", Sha256Digest::of(bytes))
}

impl Content {
    pub(crate) fn blob(&mut self, bytes: &[u8]) -> Value {
        let digest = digest(bytes);
        self.blobs.insert(digest.clone(), bytes.to_vec());
        json!({ "digest": digest, "size": bytes.len() })
    }

    pub(crate) fn manifest(&mut self, media_type: &str, json: &Value) -> String {
        let bytes = json.to_string().into_bytes();
        let digest = digest(&bytes);
        let stored = (media_type.to_owned(), bytes);
        self.manifests.insert(digest.clone(), stored);
        digest
    }

    /// An image with these labels and layers; the answer is the digest of its manifest.
    pub(crate) fn image(&mut self, labels: &Value, layers: &[(&str, TableLayer)]) -> String {
        let config = json!({
            "architecture": "amd64", "os": "linux", "config": { "Labels": labels },
            "rootfs": { "type": "layers", "diff_ids": [] },
        });
        let mut config = self.blob(config.to_string().as_bytes());
        config["mediaType"] = CONFIG.into();
        let layers: Vec<Value> = layers
            .iter()
            .map(|(kind, layer)| {
                let mut descriptor = self.blob(&layer.bytes);
                descriptor["mediaType"] = format!("{LAYER}{kind}").into();
                descriptor["annotations"] = json!(layer.annotations);
                descriptor
            })
            .collect();
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers,
        });
        self.manifest(MANIFEST, &manifest)
    }
}

/// An ordinary layer with these files.
pub(crate) fn gzip(files: &[(&str, &[u8])]) -> (&'static str, TableLayer) {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, content) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        archive.append_data(&mut header, path, *content).unwrap();
    }
    let archive = archive.into_inner().unwrap();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&archive).unwrap();
    let mut layer = TableLayer::default();
    layer.bytes = packed.finish().unwrap();
    ("gzip", layer)
}

/// The boot files of Debian's layout, with a path each.
pub(crate) fn boot_files() -> Vec<(String, Vec<u8>)> {
    let image = debian_chain("2.12");
    let paths = image.files("").unwrap().into_iter();
    paths
        .map(|path| {
            let content = image.content(&path).unwrap().to_vec();
            (path, content)
        })
        .collect()
}

pub(crate) fn borrowed(files: &[(String, Vec<u8>)]) -> Vec<(&str, &[u8])> {
    let pairs = files.iter();
    pairs
        .map(|(path, content)| (path.as_str(), content.as_slice()))
        .collect()
}

/// Bytes that cannot be packed.
pub(crate) fn noise(size: usize) -> Vec<u8> {
    let mut state = 1_u64;
    std::iter::repeat_with(|| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        u8::try_from(state >> 56).unwrap()
    })
    .take(size)
    .collect()
}
