//! Kubelet certificates that last minutes, so that they are renewed during the demo.

use std::path::Path;

use serde_json::Value;

use crate::host::Host;
use crate::stage::{Stage, until};

const CONTROLLERS: &str = "/etc/kubernetes/manifests/kube-controller-manager.yaml";
/// A kubelet renews at 70 to 90 percent of a certificate's life, five minutes of which are before it was
/// signed (Kubernetes, controller manager): here after 80 to 190 seconds.
const LIFETIME: &str = "    - --cluster-signing-duration=4m";
const PKI: &str = "/var/lib/kubelet/pki";
/// The client certificate, and the serving certificate.
const PAIRS: [&str; 2] = ["kubelet-client", "kubelet-server"];

/// Makes the cluster sign only certificates that last minutes.
pub(crate) fn live_short(first: &Host) -> anyhow::Result<()> {
    let edit = format!("/^    - kube-controller-manager$/a\\\n{LIFETIME}");
    // Not edited in place: the kubelet would also run a file next to it.
    let edit = format!("sed '{edit}' {CONTROLLERS} > /etc/kubernetes/edited");
    let put = format!("{edit} && mv /etc/kubernetes/edited {CONTROLLERS}");
    first.output(Path::new("sh"), &["-c", &put]).map(drop)
}

/// The file that a kubelet currently uses.
fn current(host: &Host, pair: &str) -> anyhow::Result<String> {
    let link = format!("{PKI}/{pair}-current.pem");
    Ok(host.output(Path::new("readlink"), &[&link])?.trim().to_owned())
}

/// The certificates of a kubelet at some point in time.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Certificates([String; 2]);

impl Certificates {
    /// Those that the cluster issued, once it has.
    pub(crate) fn first(host: &Host) -> anyhow::Result<Self> {
        until(&format!("a serving certificate of {}", host.name), || {
            let current = current(host, PAIRS[1]);
            current.is_ok_and(|file| !file.ends_with("-first.pem"))
        })?;
        Self::now(host)
    }

    fn now(host: &Host) -> anyhow::Result<Self> {
        let [client, server] = PAIRS;
        Ok(Self([current(host, client)?, current(host, server)?]))
    }

    /// Waits until both have changed.
    pub(crate) fn are_renewed(&self, host: &Host) -> anyhow::Result<()> {
        until(&format!("new certificates of {}", host.name), || {
            Self::now(host).is_ok_and(|now| now.0.iter().zip(&self.0).all(|(new, old)| new != old))
        })
    }
}

/// Serving certificate requests of kubelets.
fn serving(stage: &Stage<'_>, first: &Host) -> anyhow::Result<Vec<Value>> {
    let mut requests = stage.items(first, &["csr"])?;
    requests.retain(|one| {
        let text = |path: &str| one.pointer(path).and_then(Value::as_str).unwrap_or_default();
        // As named by kubelets; n3 may have sent requests after its removal.
        text("/metadata/name").starts_with("csr-")
            && !text("/status/conditions/0/message").contains("was removed")
            && text("/spec/signerName") == "kubernetes.io/kubelet-serving"
    });
    Ok(requests)
}

fn answer(request: &Value) -> Option<&str> {
    request.pointer("/status/conditions/0/type").and_then(Value::as_str)
}

/// Number of approved serving certificate requests of kubelets; none is pending or denied.
pub(crate) fn approved(stage: &Stage<'_>, first: &Host) -> anyhow::Result<usize> {
    let mut requests = Vec::new();
    // Kubelets may send requests at any time, and are answered every five seconds.
    until("answers to kubelets", || {
        requests = serving(stage, first).unwrap_or_default();
        !requests.is_empty() && requests.iter().all(|one| answer(one).is_some())
    })?;
    let mut approved = 0;
    for request in &requests {
        let condition = answer(request);
        let node = request.pointer("/spec/username").and_then(Value::as_str);
        anyhow::ensure!(
            condition == Some("Approved"),
            "a request of {node:?} was not approved: \
             {condition:?}"
        );
        approved += 1;
    }
    Ok(approved)
}
