//! Root on a worker, with everything that a join left there, tries to assume a different identity.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::files::API_SERVER;
use crate::host::Host;
use crate::stage::{Stage, until};

/// The kubeconfig of a worker's kubelet, and one with the certificate from its join.
const KUBELET: &str = "/etc/kubernetes/kubelet.conf";
const JOINED: &str = "joined.conf";
/// Signers of kubelet certificates, and the key usages they allow.
const CLIENT: (&str, &str) = ("kubernetes.io/kube-apiserver-client-kubelet", "client auth");
const SERVER: (&str, &str) = ("kubernetes.io/kubelet-serving", "server auth");
/// Names and groups for which certificates are requested.
const NAMES: [(&str, &str); 4] = [
    ("system:node:n1", "system:nodes"),
    ("system:node:n9", "system:nodes"),
    ("system:bootstrap:abcdef", "system:bootstrappers"),
    ("admin", "kubeadm:cluster-admins"),
];
/// What no worker may do. A Secret not mounted by any pod of this node stands for all others.
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

/// A certificate request.
struct Asking<'a> {
    request: &'a str,
    name: &'a str,
    group: &'a str,
    /// Address of a server.
    address: &'a str,
    signer: (&'a str, &'a str),
}

/// Nothing on the worker leads to another identity, and nothing in the cluster would give one to the holder
/// of a bootstrap token.
pub(crate) fn check(stage: &Stage<'_>, worker: &Host, first: &Host) -> anyhow::Result<()> {
    let joined = worker.path(JOINED);
    std::fs::write(&joined, kubeconfig().to_string())?;
    let joined = joined.display().to_string();
    for (number, config) in [KUBELET, joined.as_str()].into_iter().enumerate() {
        denied(stage, worker, config)?;
        names(stage, worker, first, (number, config))?;
    }
    server(stage, worker, first)?;
    for binding in ["kubeadm:node-autoapprove-bootstrap", "kubeadm:kubelet-bootstrap"] {
        let found = stage.kubectl(first, &["get", "clusterrolebinding", binding]);
        anyhow::ensure!(found.is_err(), "{binding} exists");
    }
    let secrets = ["get", "secrets", "-A", "-o", "json"];
    let secrets = stage.kubectl(first, &secrets)?;
    for text in ["bootstrap.kubernetes.io/token", "kms-uri"] {
        anyhow::ensure!(!secrets.contains(text), "a Secret contains {text}");
    }
    stage.say("root on a worker tried every call, and became nobody else")
}

fn denied(stage: &Stage<'_>, worker: &Host, config: &str) -> anyhow::Result<()> {
    let kubectl = stage.args.kubernetes.join("kubectl");
    for arguments in DENIED {
        let call = [&["--kubeconfig", config], arguments].concat();
        let why = worker.refusal(&kubectl, &call)?;
        // Any other error means that the call did not reach the authorizer.
        let what = arguments.join(" ");
        anyhow::ensure!(why.contains(" is forbidden: "), "{config}: {what}: {why}");
    }
    Ok(())
}

/// A worker gets client certificates only for its own name.
fn names(
    stage: &Stage<'_>,
    worker: &Host,
    first: &Host,
    (number, config): (usize, &str),
) -> anyhow::Result<()> {
    let mut asked = Vec::new();
    for (at, (name, group)) in NAMES.iter().enumerate() {
        let request = format!("intruder-{number}-{at}");
        let asking = Asking { request: &request, name, group, address: "", signer: CLIENT };
        // An immediate refusal is just as good.
        if request_certificate(stage, worker, config, &asking).is_ok() {
            asked.push((request, *name));
        }
    }
    // The join service approves what a node may have: its own name, again.
    let (request, group) = (format!("intruder-{number}-own"), "system:nodes");
    let name = format!("system:node:{}", worker.name);
    let asking = Asking { request: &request, name: &name, group, address: "", signer: CLIENT };
    request_certificate(stage, worker, config, &asking)?;
    until("the node's own certificate", || {
        certificate(stage, first, &request).is_ok_and(|found| found.is_some())
    })?;
    // By now it has processed all earlier requests.
    for (request, name) in asked {
        let found = certificate(stage, first, &request)?;
        anyhow::ensure!(found.is_none(), "a worker got a certificate for {name}");
    }
    Ok(())
}

/// The join service denies a serving certificate for the address of the API server.
fn server(stage: &Stage<'_>, worker: &Host, first: &Host) -> anyhow::Result<()> {
    let (request, group) = ("intruder-server", "system:nodes");
    let name = format!("system:node:{}", worker.name);
    let address = API_SERVER;
    let asking = Asking { request, name: &name, group, address, signer: SERVER };
    request_certificate(stage, worker, KUBELET, &asking)?;
    let denied = || -> anyhow::Result<bool> {
        let found = stage.json(first, &["csr", request])?;
        let condition = found.pointer("/status/conditions/0/type").and_then(Value::as_str);
        anyhow::ensure!(
            condition != Some("Approved"),
            "a worker's request for an API server certificate was approved"
        );
        Ok(condition == Some("Denied"))
    };
    until("a refusal", || denied().unwrap_or(true))?;
    anyhow::ensure!(denied()?, "the request was not denied");
    Ok(())
}

/// A removed node still has certificates that the API server accepts. It can neither register a Node with
/// them nor get new ones.
pub(crate) fn is_out(
    stage: &Stage<'_>,
    removed: &Host,
    (other, first): (&Host, &Host),
) -> anyhow::Result<()> {
    let node = removed.path("node.json");
    let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": removed.name}});
    std::fs::write(&node, object.to_string())?;
    let node = node.display().to_string();
    let create = ["--kubeconfig", KUBELET, "create", "--validate=false", "-f", &node];
    let why = removed.refusal(&stage.args.kubernetes.join("kubectl"), &create)?;
    anyhow::ensure!(why.contains("no member is named"), "a removed node registers: {why}");
    let own = |host: &Host, request: &str, config| {
        let (name, group) = (format!("system:node:{}", host.name), "system:nodes");
        let asking = Asking { request, name: &name, group, address: "", signer: CLIENT };
        request_certificate(stage, host, config, &asking)
    };
    own(removed, "removed", KUBELET)?;
    own(other, "member", KUBELET)?;
    // A pending request would be approved when another node has the name.
    for (request, expected) in [("removed", "Denied"), ("member", "Approved")] {
        until(&format!("an answer to {request}"), || {
            stage.json(first, &["csr", request]).is_ok_and(|found| {
                found.pointer("/status/conditions/0/type") == Some(&json!(expected))
            })
        })?;
    }
    Ok(())
}

fn kubeconfig() -> Value {
    let pair = |name: &str| format!("/run/state/kubelet/pki/kubelet-client-{name}.pem");
    let user = json!({"client-certificate": pair("crt"), "client-key": pair("key")});
    let server = format!("https://{API_SERVER}:6443");
    let ca = "/etc/kubernetes/pki/ca.crt";
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority": ca}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "d", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "d",
    })
}

fn request_certificate(
    stage: &Stage<'_>,
    worker: &Host,
    config: &str,
    asking: &Asking<'_>,
) -> anyhow::Result<()> {
    let (key, csr) = (worker.path("intruder.key"), worker.path("intruder.csr"));
    let (key, csr) = (key.display().to_string(), csr.display().to_string());
    let subject = format!("/O={}/CN={}", asking.group, asking.name);
    let curve = "ec_paramgen_curve:P-256";
    let mut arguments = vec!["req", "-new", "-newkey", "ec", "-pkeyopt", curve, "-nodes"];
    arguments.extend(["-subj", &subject, "-keyout", &key, "-out", &csr]);
    let address = format!("subjectAltName=IP:{}", asking.address);
    if !asking.address.is_empty() {
        arguments.extend(["-addext", &address]);
    }
    worker.output(Path::new("openssl"), &arguments)?;
    let (signer, usage) = asking.signer;
    let object = json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": asking.request},
        "spec": {
            "request": STANDARD.encode(std::fs::read(&csr)?),
            "signerName": signer,
            "usages": ["digital signature", usage],
        },
    });
    let file = worker.path("intruder.json");
    std::fs::write(&file, object.to_string())?;
    let file = file.display().to_string();
    let create = ["create", "--validate=false", "-f", &file];
    let call = [&["--kubeconfig", config], &create[..]].concat();
    worker.output(&stage.args.kubernetes.join("kubectl"), &call).map(drop)
}

/// The certificate issued for a request, if any.
fn certificate(stage: &Stage<'_>, first: &Host, request: &str) -> anyhow::Result<Option<String>> {
    let found = stage.json(first, &["csr", request])?;
    let signed = found.pointer("/status/certificate").and_then(Value::as_str);
    Ok(signed.map(str::to_owned))
}
