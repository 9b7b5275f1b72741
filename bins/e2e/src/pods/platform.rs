//! The services' chart on a node, installed as an administrator would, with the images that it names.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;

use super::{FOLDER, Node, output, services};
use crate::packages::{SET_REGISTRY, tool};
use crate::settings::cache;

/// Namespace of the chart.
pub const PLATFORM: &str = "platform";
/// Namespace of components.
pub const APPS: &str = "apps";
const AUTHORITIES: &str = "services-bootstrap-ca";
/// The chart's claims, bound manually because this node has no provisioner.
const VOLUMES: [&str; 7] =
    ["vault-0", "vault-1", "vault-2", "nats-0", "nats-1", "nats-2", "opensearch-0"];

/// A node with our images and, once installed, our chart.
#[derive(Debug)]
pub struct Platform {
    node: Node,
}

impl Platform {
    /// A new node with images, volumes and namespaces that enforce the Pod Security Standard "restricted";
    /// the calling thread is in its network from now on.
    ///
    /// # Errors
    /// A tool or a program is missing, or the node does not become ready.
    pub fn begin() -> anyhow::Result<Self> {
        let kubernetes = tool("bin/kubelet")?.parent().context("no folder of tools")?.to_owned();
        let platform = Self { node: Node::at(cache()?.join(FOLDER), kubernetes) };
        platform.node.up()?;
        platform.node.enter()?;
        platform.load()?;
        for namespace in [PLATFORM, APPS] {
            platform.kubectl(&["create", "namespace", namespace])?;
            let enforce = "pod-security.kubernetes.io/enforce=restricted";
            platform.kubectl(&["label", "namespace", namespace, enforce])?;
        }
        VOLUMES.iter().try_for_each(|name| platform.volume(name))?;
        Ok(platform)
    }

    fn load(&self) -> anyhow::Result<()> {
        self.node.load(&services::services()?)?;
        self.node.load(&services::nats()?)?;
        self.node.load(&services::component()?)
    }

    /// Also loads the telemetry images, which take longest.
    ///
    /// # Errors
    /// OpenSearch is missing, or containerd does not accept an image.
    pub fn load_telemetry(&self) -> anyhow::Result<()> {
        self.node.load(&services::collector()?)?;
        self.node.load(&services::opensearch()?)
    }

    /// Creates a volume for the claim `data-<name>`.
    fn volume(&self, name: &str) -> anyhow::Result<()> {
        let place = self.node.dir.join("volumes").join(name);
        std::fs::create_dir_all(&place)?;
        let here = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]});
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"],
                "claimRef": {"namespace": PLATFORM, "name": format!("data-{name}")},
                "local": {"path": place},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
            },
        });
        let file = self.node.dir.join(format!("volume-{name}.json"));
        std::fs::write(&file, volume.to_string())?;
        self.apply(PLATFORM, &file)
    }

    /// Runs kubectl, in the namespace given in its arguments.
    ///
    /// # Errors
    /// kubectl fails; the error contains its output.
    pub fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        self.node.kubectl(arguments)
    }

    /// Applies a file in a namespace.
    pub fn apply(&self, namespace: &str, file: &Path) -> anyhow::Result<()> {
        let file = file.to_str().context("the path of the file is not UTF-8")?;
        self.kubectl(&["--namespace", namespace, "apply", "--filename", file]).map(drop)
    }

    /// `helm install` with default values, except for these.
    pub fn install(&self, values: &[&str]) -> anyhow::Result<()> {
        let mut helm = self.node.command(tool("bin/helm")?);
        helm.args(["install", "services", SET_REGISTRY, "--namespace", PLATFORM]).arg(chart());
        output(helm.args(values.iter().flat_map(|value| ["--set", value]))).map(drop)
    }

    /// Waits until all pods of a StatefulSet or Deployment are ready.
    ///
    /// # Errors
    /// The deadline passes; the error shows pods and Events.
    pub fn ready(&self, namespace: &str, object: &str, limit: Duration) -> anyhow::Result<()> {
        let limit = format!("--timeout={}s", limit.as_secs());
        let status = ["--namespace", namespace, "rollout", "status", object, &limit];
        self.kubectl(&status).map(drop).with_context(|| {
            let all = ["--namespace", namespace, "get", "pods,events", "--output=wide"];
            self.kubectl(&all).unwrap_or_default()
        })
    }

    /// The authorities, as published by the controller.
    pub fn authorities(&self) -> anyhow::Result<String> {
        let template = "--output=jsonpath={.data.ca\\.crt}";
        self.kubectl(&["--namespace", PLATFORM, "get", "configmap", AUTHORITIES, template])
    }

    /// A folder for the files of this platform.
    pub fn files(&self) -> &Path {
        &self.node.dir
    }

    /// Copies the authorities to the components, as an administrator would.
    ///
    /// # Errors
    /// The authorities are not published, or the API server refuses.
    pub fn share_authorities(&self) -> anyhow::Result<()> {
        let (name, ca) = (AUTHORITIES, self.authorities()?);
        let ca = format!("--from-literal=ca.crt={ca}");
        self.kubectl(&["--namespace", APPS, "create", "configmap", name, &ca]).map(drop)
    }
}

impl Drop for Platform {
    fn drop(&mut self) {
        self.node.down();
    }
}

fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../services/deploy/helm/tec-services")
}
