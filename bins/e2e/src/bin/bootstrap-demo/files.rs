//! Files that the programs of a host read.

use std::fs;
use std::path::PathBuf;

use serde_json::json;
use tec_core::digest::Sha256Digest;
use tec_e2e::admin::{INIT_SECRET, VERSION};

use crate::host::{Host, TPM_PORT};

pub(crate) const NAMESPACE: &str = "trusted-execution-clusters";
/// Address of the control plane, where the API server runs.
pub(crate) const API_SERVER: &str = "198.51.100.1";
const NETWORK: &str = include_str!("network.yaml");
/// Connection tracking limits belong to the machine, and no network namespace may change them.
const KUBE_PROXY: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\n\
    kind: KubeProxyConfiguration\nmode: nftables\nconntrack: {maxPerCore: 0, min: 0}\n";

fn record(name: &str, role: &str, address: &str) -> serde_json::Value {
    json!({"Name": name, "Role": role, "VPCIP": address})
}

/// Metadata and settings of the bootstrapper; `join_service` is the key of the join service.
pub(crate) fn write_node(
    host: &Host,
    role: &str,
    join_service: Option<&str>,
) -> anyhow::Result<()> {
    let metadata = json!({
        "self": record(&host.name, role, &host.address),
        "peers": [record("n1", "ControlPlane", API_SERVER)],
        "endpoint": API_SERVER,
        "initSecretHash": format!("sha256:{}", Sha256Digest::of(INIT_SECRET)),
    });
    fs::write(host.path("metadata.json"), metadata.to_string())?;
    fs::write(host.path("network.yaml"), NETWORK)?;
    fs::write(host.path("kube-proxy.yaml"), KUBE_PROXY)?;
    let keys = join_service.map(|key| format!("'{key}'")).unwrap_or_default();
    let dir = host.dir.display();
    let settings = format!(
        "[metadata]\nkind = 'file'\npath = '{dir}/metadata.json'\n\
         [tpm]\ntcti = 'swtpm:host=127.0.0.1,port={TPM_PORT}'\n\
         [disk]\ndevice = '{dir}/disk'\nkey_file = '{dir}/state.key'\n\
         header_file = '{dir}/state.header'\nunits = ['state.mount']\n\
         dangerous_formatted_elsewhere = true\n\
         dangerous_without_integrity = true\n\
         dangerous_state_elsewhere = true\n\
         [join_services]\nattestation_keys = [{keys}]\ndangerous_any_measurements = true\n\
         [kubernetes]\nnetwork = '{dir}/network.yaml'\nkube_proxy = '{dir}/kube-proxy.yaml'\n"
    );
    Ok(fs::write(host.path("bootstrapper.toml"), settings)?)
}

/// Configuration of the join service, as the ConfigMap in its manifest: it admits these nodes.
pub(crate) fn write_join_service(host: &Host, nodes: &[&str]) -> anyhow::Result<PathBuf> {
    let keys: Vec<String> = nodes.iter().map(|key| format!("'{key}'")).collect();
    let settings = format!(
        "api_server = '{API_SERVER}:6443'\nnamespace = '{NAMESPACE}'\n\
         storage_uri = '/run/state/tec/storage-uri'\ncomponents = '/etc/tec/components.json'\n\
         [tpm]\ntcti = 'swtpm:host=127.0.0.1,port={TPM_PORT}'\n\
         [nodes]\nattestation_keys = [{}]\ndangerous_any_measurements = true\n",
        keys.join(", "),
    );
    let components = json!({"kubernetesVersion": VERSION, "components": []});
    let map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "tec-join-service", "namespace": "tec-join-service"},
        "data": {"join-service.toml": settings, "components.json": components.to_string()},
    });
    let path = host.path("join-service.json");
    fs::write(&path, map.to_string())?;
    Ok(path)
}

/// The cluster object, whose approval policy the join service follows.
pub(crate) fn write_cluster(host: &Host) -> anyhow::Result<PathBuf> {
    let cluster = json!({
        "apiVersion": "trusted-execution-clusters.io/v1alpha1",
        "kind": "TrustedExecutionCluster",
        "metadata": {"name": "trusted-execution-cluster", "namespace": NAMESPACE},
        "spec": {"approval": {"policy": "FirstUse"}},
    });
    let path = host.path("cluster.json");
    fs::write(&path, cluster.to_string())?;
    Ok(path)
}
