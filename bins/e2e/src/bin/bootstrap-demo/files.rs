//! Files that the programs of a host read.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use tec_core::digest::Sha256Digest;
use tec_e2e::admin::{INIT_SECRET, VERSION};

use crate::host::Host;
use crate::network::GATEWAY;

pub(crate) const NAMESPACE: &str = "trusted-execution-clusters";
/// Address of the first control plane, where the API server is.
pub(crate) const API_SERVER: &str = "10.99.0.1";
pub(crate) const JOIN_PORT: u16 = 30090;

fn record(name: &str, role: &str, address: &str) -> serde_json::Value {
    json!({"Name": name, "Role": role, "VPCIP": address})
}

/// Metadata and settings of the bootstrapper; `join_service` is the key of the join service.
pub(crate) fn write_node(
    host: &Host,
    role: &str,
    join_service: Option<&str>,
    (stub, kubeadm): (&Path, &Path),
) -> anyhow::Result<()> {
    let metadata = json!({
        "self": record(&host.name, role, &host.address),
        "peers": [record("n1", "ControlPlane", API_SERVER)],
        "endpoint": API_SERVER,
        "initSecretHash": format!("sha256:{}", Sha256Digest::of(INIT_SECRET)),
    });
    fs::write(host.path("metadata.json"), metadata.to_string())?;
    let keys = join_service.map(|key| format!("'{key}'")).unwrap_or_default();
    let (dir, stub, kubeadm) = (host.dir.display(), stub.display(), kubeadm.display());
    let settings = format!(
        "state_directory = '/run/state/constellation'\njoin_port = {JOIN_PORT}\n\
         [metadata]\nkind = 'file'\npath = '{dir}/metadata.json'\n\
         [tpm]\ntcti = 'swtpm:host=127.0.0.1,port=2321'\n\
         [disk]\ndevice = '{dir}/disk'\nkey_file = '{dir}/state.key'\n\
         header_file = '{dir}/state.header'\nunits = ['state.mount']\n\
         dangerous_formatted_elsewhere = true\n\
         dangerous_without_integrity = true\n\
         dangerous_state_elsewhere = true\n\
         [join_services]\nattestation_keys = [{keys}]\ndangerous_any_measurements = true\n\
         [kubernetes]\nexternal_etcd = ['http://{GATEWAY}:2379']\n\
         ignored_preflight_errors = ['all']\n\
         [programs]\nsystemctl = ['{stub}', 'systemctl']\n\
         kubeadm = ['{stub}', 'kubeadm', '{kubeadm}']\n"
    );
    Ok(fs::write(host.path("bootstrapper.toml"), settings)?)
}

/// What the join service on this host reads: it takes these nodes.
pub(crate) fn write_join_service(
    host: &Host,
    nodes: &[&str],
    control_planes: &[&str],
) -> anyhow::Result<()> {
    let list = |keys: &[&str]| {
        let keys: Vec<String> = keys.iter().map(|key| format!("'{key}'")).collect();
        keys.join(", ")
    };
    let dir = host.dir.display();
    let components = json!({"kubernetesVersion": VERSION, "components": []});
    fs::write(host.path("components.json"), components.to_string())?;
    let settings = format!(
        "listen = '0.0.0.0:{JOIN_PORT}'\napi_server = '{API_SERVER}:6443'\n\
         namespace = '{NAMESPACE}'\nstorage_uri = '/run/state/tec/storage-uri'\n\
         components = '{dir}/components.json'\ncontrol_planes = [{}]\n\
         [tpm]\ntcti = 'swtpm:host=127.0.0.1,port=2321'\n\
         [nodes]\nattestation_keys = [{}]\ndangerous_any_measurements = true\n",
        list(control_planes),
        list(nodes),
    );
    Ok(fs::write(host.path("join-service.toml"), settings)?)
}

/// The cluster object, whose approval policy the join service keeps to.
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

/// How the join service reaches the API server: with the token of its account.
pub(crate) fn write_kubeconfig(host: &Host, token: &str) -> anyhow::Result<()> {
    let server = format!("https://{API_SERVER}:6443");
    let ca = "/etc/kubernetes/pki/ca.crt";
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority": ca}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "d", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "d",
    });
    Ok(fs::write(host.path("join-service.kubeconfig"), config.to_string())?)
}
