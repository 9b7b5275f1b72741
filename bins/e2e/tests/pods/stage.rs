//! A node with our images, and the charts on it.

use std::path::PathBuf;
use std::time::Duration;

use tec_e2e::kube::program;
use tec_e2e::packages::{directory, tool};
use tec_e2e::pods::{FOLDER, Image, Node, until};
use tec_e2e::settings::cache;
use tec_k8s::render::Installation;

pub(crate) const NAMESPACE: &str = "trusted-execution-clusters";
pub(crate) const OPERATOR: &str = "trusted-cluster-operator";
pub(crate) const SERVERS: [&str; 2] = ["register-server", "attestation-key-register"];
const CLUSTER: &str = r"
apiVersion: trusted-execution-clusters.io/v1alpha1
kind: TrustedExecutionCluster
metadata:
  name: cluster
spec:
  publicTrusteeAddr: kbs.example.com:8080
  publicAttestationKeyRegisterAddr: keys.example.com:8001
  publicRegisterServerAddr: register.example.com:8000
";

pub(crate) struct Stage {
    node: Node,
    files: tempfile::TempDir,
}

impl Stage {
    /// A new node that has the images which the charts name by default. It is the one of `cargo xtask
    /// cluster`, too: there is one per machine.
    pub(crate) fn begin() -> Self {
        let files = tempfile::tempdir().unwrap();
        let kubernetes = tool("bin/kubelet").unwrap().parent().unwrap().to_owned();
        let node = Node::at(cache().unwrap().join(FOLDER), kubernetes);
        let stage = Self { node, files };
        stage.node.up().unwrap();
        let installation = Installation::default();
        let images = &installation.deploy.images;
        for (tag, name) in [
            (&installation.image, "operator"),
            (&images.register_server, "register-server"),
            (&images.attestation_key_register, "attestation-key-register"),
            (&images.kbs_guard, "kbs-guard"),
            (&images.compute_pcrs, "compute-pcrs"),
        ] {
            stage.node.load(&Image::of(tag, program(name).unwrap())).unwrap();
        }
        stage
    }

    pub(crate) fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let namespace = ["--namespace", NAMESPACE];
        self.node.kubectl(&[&namespace[..], arguments].concat())
    }

    /// What `kubectl tec` prints, whether it succeeds or not.
    pub(crate) fn tec(&self, arguments: &[&str]) -> String {
        let mut tec = self.node.command(program("tec").unwrap());
        tec.args(["kube", "--namespace", NAMESPACE]).args(arguments);
        let output = tec.output().unwrap();
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr)
    }

    fn helm(&self, arguments: &[&str]) {
        let mut helm = self.node.command(tool("bin/helm").unwrap());
        let output = helm.args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "helm {arguments:?}: {said}");
    }

    /// The charts with default values, into a namespace that enforces "restricted".
    pub(crate) fn install(&self) {
        self.node.kubectl(&["create", "namespace", NAMESPACE]).unwrap();
        let enforce = "pod-security.kubernetes.io/enforce=restricted";
        self.node.kubectl(&["label", "namespace", NAMESPACE, enforce]).unwrap();
        let chart = |name: &str| directory().join("helm").join(name).display().to_string();
        self.helm(&["install", "tec-crds", &chart("tec-crds")]);
        self.helm(&["install", "tec", &chart("tec-operator"), "--namespace", NAMESPACE]);
        self.available(OPERATOR);
    }

    pub(crate) fn apply_cluster(&self) {
        let file: PathBuf = self.files.path().join("cluster.yaml");
        std::fs::write(&file, CLUSTER).unwrap();
        self.kubectl(&["apply", "--filename", file.to_str().unwrap()]).unwrap();
    }

    /// Waits until all pods of a Deployment are ready.
    pub(crate) fn available(&self, name: &str) {
        let deployment = format!("deployment/{name}");
        let limit = Duration::from_mins(1);
        until(name, limit, || self.kubectl(&["get", &deployment]).is_ok()).unwrap();
        let status = ["rollout", "status", &deployment, "--timeout=60s"];
        if let Err(error) = self.kubectl(&status) {
            let words = ["get", "pods,events", "--output=wide"];
            panic!("{error:#}\n{}", self.kubectl(&words).unwrap_or_default());
        }
    }

    /// Names of the pods of a Deployment.
    pub(crate) fn pods(&self, name: &str) -> Vec<String> {
        let all = self.kubectl(&["get", "pods", "--output=name"]).unwrap();
        let pods = all.lines().filter_map(|line| line.strip_prefix("pod/"));
        pods.filter(|pod| pod.starts_with(&format!("{name}-"))).map(str::to_owned).collect()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.node.down();
    }
}
