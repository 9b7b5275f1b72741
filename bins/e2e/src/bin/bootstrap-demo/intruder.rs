//! Root on a worker, with all that a join left there, tries to become somebody else.

use std::path::Path;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::host::Host;
use crate::stage::{Stage, until};

/// Kubeconfigs on a worker.
const CONFIGS: [&str; 2] =
    ["/var/lib/kubelet/pki/bootstrap-kubelet.conf", "/etc/kubernetes/kubelet.conf"];
/// Whose names certificates are asked for, in which groups.
const NAMES: [(&str, &str); 4] = [
    ("system:node:n1", "system:nodes"),
    ("system:node:n9", "system:nodes"),
    ("system:bootstrap:abcdef", "system:bootstrappers"),
    ("admin", "kubeadm:cluster-admins"),
];
/// What no worker may do. A secret that no pod of this node mounts stands for all others.
const DENIED: [&[&str]; 8] = [
    &["get", "secrets", "-A"],
    &["get", "secrets", "-n", "kube-system"],
    &["create", "secret", "generic", "x", "-n", "kube-system"],
    &["create", "token", "default", "-n", "kube-system"],
    &["create", "token", "tec-join-service", "-n", "tec-join-service"],
    &["get", "configmaps", "-n", "trusted-execution-clusters"],
    &["delete", "node", "n1"],
    &["label", "node", "n1", "x=y"],
];

/// Nothing that the worker has leads to another identity, and nothing in the cluster would give one
/// to whoever has a bootstrap token.
pub(crate) fn check(stage: &Stage<'_>, worker: &Host, first: &Host) -> anyhow::Result<()> {
    let kubectl = stage.args.kubernetes.join("kubectl");
    let mut asked = Vec::new();
    for (number, config) in CONFIGS.iter().enumerate() {
        for arguments in DENIED {
            let call = [&["--kubeconfig", config], arguments].concat();
            let why = worker.refusal(&kubectl, &call)?;
            // Anything else would be a call that did not reach the authorizer.
            let what = arguments.join(" ");
            anyhow::ensure!(why.contains(" is forbidden: "), "{config}: {what}: {why}");
        }
        for (at, (name, group)) in NAMES.iter().enumerate() {
            let request = format!("intruder-{number}-{at}");
            // Being refused at once is as good.
            if request_certificate(worker, &kubectl, config, &request, name, group).is_ok() {
                asked.push((request, *name));
            }
        }
        // The controller approves what a node may have: its own name, once more.
        let own = format!("intruder-{number}-own");
        let name = format!("system:node:{}", worker.name);
        request_certificate(worker, &kubectl, config, &own, &name, "system:nodes")?;
        until("the node's own certificate", || {
            certificate(stage, first, &own).is_ok_and(|found| found.is_some())
        })?;
    }
    // It has looked at all that came before by now.
    for (request, name) in asked {
        let found = certificate(stage, first, &request)?;
        anyhow::ensure!(found.is_none(), "a worker got a certificate for {name}");
    }
    for binding in ["kubeadm:node-autoapprove-bootstrap", "kubeadm:kubelet-bootstrap"] {
        let found = stage.kubectl(first, &["get", "clusterrolebinding", binding]);
        anyhow::ensure!(found.is_err(), "{binding} is bound");
    }
    let secrets = ["get", "secrets", "-A", "-o", "json"];
    let secrets = stage.kubectl(first, &secrets)?;
    for text in ["bootstrap.kubernetes.io/token", "kms-uri"] {
        anyhow::ensure!(!secrets.contains(text), "a Secret has {text}");
    }
    stage.say("root on the worker tried every call, and became nobody else")
}

fn request_certificate(
    worker: &Host,
    kubectl: &Path,
    config: &str,
    request: &str,
    name: &str,
    group: &str,
) -> anyhow::Result<()> {
    let (key, csr) = (worker.path("intruder.key"), worker.path("intruder.csr"));
    let (key, csr) = (key.display().to_string(), csr.display().to_string());
    let subject = format!("/O={group}/CN={name}");
    let curve = "ec_paramgen_curve:P-256";
    let arguments = ["req", "-new", "-newkey", "ec", "-pkeyopt", curve, "-nodes"];
    let files = ["-subj", &subject, "-keyout", &key, "-out", &csr];
    worker.output(Path::new("openssl"), &[&arguments[..], &files].concat())?;
    let object = json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": request},
        "spec": {
            "request": STANDARD.encode(std::fs::read(&csr)?),
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "usages": ["digital signature", "client auth"],
        },
    });
    let file = worker.path("intruder.json");
    std::fs::write(&file, object.to_string())?;
    let file = file.display().to_string();
    let create = ["create", "--validate=false", "-f", &file];
    let call = [&["--kubeconfig", config], &create[..]].concat();
    worker.output(kubectl, &call).map(drop)
}

/// What was signed for a request, if anything was.
fn certificate(stage: &Stage<'_>, first: &Host, request: &str) -> anyhow::Result<Option<String>> {
    let found = stage.kubectl(first, &["get", "csr", request, "-o", "json"])?;
    let found: Value = serde_json::from_str(&found).context("read a request")?;
    let signed = found.pointer("/status/certificate").and_then(Value::as_str);
    Ok(signed.map(str::to_owned))
}
