//! Our part of the pod template: volumes, their mounts, and one annotation.

use serde_json::{Value, json};
use tec_core::digest::Sha256Digest;

use super::super::desired::canonical;

/// Annotation of the pod template with the digest of everything whose change requires a new pod.
pub const RESTART_ANNOTATION: &str = "trusted-execution-clusters.io/trustee-restart-digest";

/// Separates this digest from all other uses of the hash.
const RESTART_LABEL: &str = "tec trustee restart v1\n";

/// Name of the container of the KBS.
const KBS: &str = "kbs";

/// A volume of the pod.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// Its source in the form of the Kubernetes API: one member such as `configMap`.
    pub source: Value,
}

/// Where a volume is mounted, read-only, in the container of the KBS.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Mount {
    /// The path. Mounts sort so that each one precedes those below it.
    pub path: String,
    /// The volume.
    pub volume: String,
}

/// What the pod template must contain.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Pod {
    /// The volumes, by name.
    pub volumes: Vec<Volume>,
    /// Their mounts.
    pub mounts: Vec<Mount>,
    /// Digest of the configuration, the volumes and the mounts.
    pub restart_digest: Sha256Digest,
}

impl Pod {
    /// Adds a volume and mounts it at this path.
    pub(super) fn mount(&mut self, name: &str, source: Value, path: String) {
        self.volumes.push(Volume { name: name.to_owned(), source });
        self.mounts.push(Mount { path, volume: name.to_owned() });
    }

    /// Sorts the parts and computes the digest.
    pub(super) fn sealed(mut self, config: &str) -> Self {
        self.volumes.sort_by(|a, b| a.name.cmp(&b.name));
        self.mounts.sort();
        let pod = canonical(&self.spec());
        self.restart_digest = Sha256Digest::of(format!("{RESTART_LABEL}{pod}\n{config}"));
        self
    }

    /// Our part of the pod template: for a server-side apply or a strategic merge.
    pub fn to_json(&self) -> Value {
        json!({
            "metadata": {"annotations": {RESTART_ANNOTATION: self.restart_digest.to_string()}},
            "spec": self.spec(),
        })
    }

    fn spec(&self) -> Value {
        let volumes: Vec<Value> = self.volumes.iter().map(volume).collect();
        let mounts: Vec<Value> = self.mounts.iter().map(mounted).collect();
        json!({"containers": [{"name": KBS, "volumeMounts": mounts}], "volumes": volumes})
    }
}

fn volume(volume: &Volume) -> Value {
    let mut whole = volume.source.clone();
    if let Some(members) = whole.as_object_mut() {
        members.insert("name".to_owned(), volume.name.as_str().into());
    }
    whole
}

fn mounted(mount: &Mount) -> Value {
    json!({"mountPath": mount.path, "name": mount.volume, "readOnly": true})
}
