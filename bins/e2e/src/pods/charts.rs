//! The charts on a node, installed as an administrator would, and node ports for machines.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use kube::ResourceExt as _;
use serde_json::{Value, json};
use tec_k8s::api::GROUP;
use tec_k8s::render::{DANGEROUS_DELETE, OPERATOR_IMAGE, RelatedImage, definition_guard, image};

use super::image::Release;
use super::registry::Authority;
use super::{ADDRESS, FOLDER, Image, Node, output, until};
use crate::kube::program;
use crate::packages::{REGISTRY, SET_REGISTRY, directory, tool};
use crate::settings::cache;

/// Namespace of the operator.
pub const NAMESPACE: &str = "trusted-execution-clusters";
/// Deployment of the operator.
pub const OPERATOR: &str = "trusted-cluster-operator";
/// Deployment of the built-in key broker.
pub const BROKER: &str = "key-broker";
/// Deployments of the two servers.
pub const SERVERS: [&str; 2] = ["register-server", "attestation-key-register"];
/// Each Service, with the port at which machines reach it.
const PORTS: [(&str, u16, u16); 3] = [
    ("kbs-service", 8080, 30080),
    ("register-server", 8000, 30000),
    ("attestation-key-register", 8001, 30001),
];
/// Programs in the pods of both charts.
const PROGRAMS: [&str; 6] = [
    "operator",
    "register-server",
    "attestation-key-register",
    "compute-pcrs",
    "kbs-guard",
    "key-broker",
];
/// Deadline for a Deployment to be available.
const AVAILABLE: Duration = Duration::from_mins(2);

/// A node with our images and, once installed, our charts.
#[derive(Debug)]
pub struct Charts {
    node: Node,
    files: tempfile::TempDir,
    pub(super) authority: Authority,
}

impl Charts {
    /// A new node with the images that the charts name in this registry; the calling thread is in its network from
    /// now on. There is only one such node per machine, including that of `cargo xtask cluster`.
    ///
    /// # Errors
    /// A tool or a program is missing, or the node does not become ready.
    pub fn begin() -> anyhow::Result<Self> {
        let kubernetes = tool("bin/kubelet")?.parent().context("no folder of tools")?.to_owned();
        let node = Node::at(cache()?.join(FOLDER), kubernetes);
        let charts = Self { node, files: tempfile::tempdir()?, authority: Authority::new()? };
        charts.node.up()?;
        charts.node.enter()?;
        charts.load_release()?;
        Ok(charts)
    }

    /// Builds from the Containerfile of a release. The registry's CA stands in for public ones.
    fn load_release(&self) -> anyhow::Result<()> {
        let work = tempfile::tempdir_in(&self.node.dir)?;
        let release = Release::new(work, &PROGRAMS, self.authority.pem())?;
        let related = RelatedImage::ALL.into_iter().filter(|image| *image != RelatedImage::Trustee);
        for target in related.map(RelatedImage::image_name).chain([OPERATOR_IMAGE]) {
            self.node.import(&release.build(target, &image(REGISTRY, target))?)?;
        }
        Ok(())
    }

    /// Loads an image into the node.
    pub fn load(&self, image: &Image) -> anyhow::Result<()> {
        self.node.load(image)
    }

    /// The node.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// A folder for the files of this installation.
    pub fn files(&self) -> &Path {
        self.files.path()
    }

    /// A command in the network of the node, with the kubeconfig of an administrator.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.node.command(program)
    }

    /// Runs kubectl, in the namespace given in its arguments.
    ///
    /// # Errors
    /// kubectl fails; the error contains its output.
    pub fn everywhere(&self, arguments: &[&str]) -> anyhow::Result<String> {
        self.node.kubectl(arguments)
    }

    /// Runs kubectl in the namespace of the operator.
    ///
    /// # Errors
    /// kubectl fails; the error contains its output.
    pub fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let namespace = ["--namespace", NAMESPACE];
        self.node.kubectl(&[&namespace[..], arguments].concat())
    }

    /// Output of `kubectl tec`, whether it succeeds or not.
    pub fn tec(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let mut tec = self.node.command(program("tec")?);
        tec.args(["--namespace", NAMESPACE]).args(arguments);
        let output = tec.output()?;
        let texts = [output.stdout, output.stderr];
        Ok(texts.iter().map(|text| String::from_utf8_lossy(text)).collect())
    }

    /// Applies objects of the operator's namespace.
    pub fn apply(&self, name: &str, objects: &str) -> anyhow::Result<()> {
        let file = self.files().join(name);
        std::fs::write(&file, objects)?;
        let file = file.to_str().context("the path of the files is not UTF-8")?;
        self.kubectl(&["apply", "--filename", file]).map(drop)
    }

    fn helm(&self, arguments: &[&str]) -> anyhow::Result<()> {
        output(self.node.command(tool("bin/helm")?).args(arguments)).map(drop)
    }

    /// `helm install` or `helm upgrade` of both charts, from a folder.
    pub fn charts(&self, verb: &str, charts: &Path) -> anyhow::Result<()> {
        self.helm(&[verb, "tec-crds", &charts.join("tec-crds").display().to_string()])?;
        self.operator(verb, charts)
    }

    /// Like [`charts`](Self::charts), only for the operator's chart.
    pub fn operator(&self, verb: &str, charts: &Path) -> anyhow::Result<()> {
        let chart = charts.join("tec-operator").display().to_string();
        self.helm(&[verb, "tec", &chart, SET_REGISTRY, "--namespace", NAMESPACE])?;
        self.available(OPERATOR)
    }

    /// Upgrades to the current chart with one value set.
    pub fn upgrade_with(&self, value: &str) -> anyhow::Result<()> {
        let chart = charts_of_today().join("tec-operator").display().to_string();
        let upgrade = ["upgrade", "tec", &chart, SET_REGISTRY, "--namespace", NAMESPACE];
        self.helm(&[&upgrade[..], &["--set", value]].concat())
    }

    /// Rolls back to the revision before the last.
    pub fn roll_back(&self) -> anyhow::Result<()> {
        self.helm(&["rollback", "tec", "--namespace", NAMESPACE])
    }

    /// Uninstalls the operator's chart.
    pub fn uninstall(&self) -> anyhow::Result<()> {
        self.helm(&["uninstall", "tec", "--namespace", NAMESPACE, "--wait"])
    }

    /// Creates a namespace that enforces the Pod Security Standard "restricted".
    ///
    /// # Errors
    /// The namespace exists already.
    pub fn namespace(&self) -> anyhow::Result<()> {
        self.everywhere(&["create", "namespace", NAMESPACE])?;
        let enforce = "pod-security.kubernetes.io/enforce=restricted";
        self.everywhere(&["label", "namespace", NAMESPACE, enforce]).map(drop)
    }

    /// Removes everything, so that the next installation finds nothing.
    pub fn remove_everything(&self) -> anyhow::Result<()> {
        let said = format!("{DANGEROUS_DELETE}=yes");
        self.kubectl(&["annotate", "trustedexecutionclusters", "--all", &said])?;
        let objects = "trustedexecutionclusters,machines,approvedimages,attestationkeys";
        self.kubectl(&["delete", objects, "--all", "--timeout=90s"])?;
        self.uninstall()?;
        self.helm(&["uninstall", "tec-crds"])?;
        let all = self.everywhere(&["get", "crds", "--output=name"])?;
        let ours: Vec<&str> = all.lines().filter(|name| name.ends_with(GROUP)).collect();
        self.everywhere(&[&["annotate"][..], &ours, &[&said]].concat())?;
        self.everywhere(&[&["delete"][..], &ours].concat())?;
        let guards = "validatingadmissionpolicies,validatingadmissionpolicybindings";
        self.everywhere(&["delete", guards, &definition_guard().0.name_any()])?;
        self.everywhere(&["delete", "namespace", NAMESPACE]).map(drop)
    }

    /// Creates the cluster object with this key broker; machines reach everything through node ports.
    pub fn cluster(&self, key_broker: &str) -> anyhow::Result<()> {
        let object = json!({
            "apiVersion": format!("{GROUP}/v1alpha1"),
            "kind": "TrustedExecutionCluster",
            "metadata": {"name": "cluster"},
            "spec": {
                "keyBroker": key_broker,
                "publicTrusteeAddr": format!("{ADDRESS}:30080"),
                "publicAttestationKeyRegisterAddr": format!("{ADDRESS}:30001"),
                "publicRegisterServerAddr": format!("{ADDRESS}:30000"),
            },
        });
        self.apply("cluster.json", &object.to_string())
    }

    /// Creates node ports for the current three Services.
    pub fn expose(&self) -> anyhow::Result<()> {
        for (service, port, node_port) in PORTS {
            let ports = json!({"spec": {"ports": [{"port": port, "nodePort": node_port}]}});
            let ports = ports.to_string();
            let public = format!("{service}-public");
            let expose = ["expose", "service", service, "--type=NodePort", "--name", &public];
            self.kubectl(&[&expose[..], &["--overrides", &ports]].concat())?;
        }
        Ok(())
    }

    /// Waits until all pods of a Deployment are ready.
    ///
    /// # Errors
    /// The deadline passes; the error shows pods and Events.
    pub fn available(&self, name: &str) -> anyhow::Result<()> {
        let deployment = format!("deployment/{name}");
        until(name, AVAILABLE, || self.kubectl(&["get", &deployment]).is_ok())?;
        let status = ["rollout", "status", &deployment, "--timeout=120s"];
        self.kubectl(&status).map(drop).with_context(|| {
            self.kubectl(&["get", "pods,events", "--output=wide"]).unwrap_or_default()
        })
    }

    /// Names of the pods of a Deployment.
    pub fn pods(&self, name: &str) -> anyhow::Result<Vec<String>> {
        let all = self.kubectl(&["get", "pods", "--output=name"])?;
        let pods = all.lines().filter_map(|line| line.strip_prefix("pod/"));
        Ok(pods.filter(|pod| pod.starts_with(&format!("{name}-"))).map(str::to_owned).collect())
    }

    /// Approves an image, waits until its measurements are known, and returns its status.
    ///
    /// # Errors
    /// The deadline passes; the error shows the Job.
    pub fn approve(&self, name: &str, image: &str) -> anyhow::Result<Value> {
        let said = self.tec(&["image", "approve", name, image])?;
        ensure!(said.contains("approved"), "{said}");
        let object = format!("approvedimage/{name}");
        let wait = ["wait", "--for=condition=Committed", "--timeout=120s", &object];
        if let Err(error) = self.kubectl(&wait) {
            let all = ["get", "approvedimages,jobs,pods,events", "--output=yaml"];
            bail!("{error:#}\n{}", self.kubectl(&all)?);
        }
        let object = self.kubectl(&["get", &object, "--output=json"])?;
        let object: Value = serde_json::from_str(&object)?;
        Ok(object["status"].clone())
    }

    /// The config with which installers direct new machines to the registration server.
    pub fn merge(&self) -> anyhow::Result<Value> {
        let url = format!("https://{ADDRESS}:30000");
        let merge = self.tec(&["ignition", "merge", "--url", &url])?;
        serde_json::from_str(&merge).with_context(|| merge.clone())
    }

    /// The CA that signs the servers' certificates, PEM.
    pub fn ca(&self) -> anyhow::Result<String> {
        let template = "--template={{index .data \"tls.crt\" | base64decode}}";
        self.kubectl(&["get", "secret", "trust-anchor-ca", template])
    }
}

impl Drop for Charts {
    fn drop(&mut self) {
        self.node.down();
    }
}

/// Directory of the current charts.
pub fn charts_of_today() -> PathBuf {
    directory().join("helm")
}
