//! Settings of the node's programs.

use std::path::Path;

/// Address of the node (RFC 5737, reserved for documentation).
pub const ADDRESS: &str = "192.0.2.10";
pub(super) const NODE: &str = "n1";
pub(super) const SERVICES: &str = "10.96.0.0/16";
const DNS: &str = "10.96.0.10";
const PODS: &str = "10.244.0.0/16";
/// URLs that etcd serves inside the namespace.
const ETCD: [&str; 2] = ["http://127.0.0.1:2379", "http://127.0.0.1:2380"];

pub(super) fn kubeadm(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        r#"apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {{advertiseAddress: {ADDRESS}, bindPort: 6443}}
nodeRegistration: {{name: {NODE}, criSocket: "unix://{dir}/containerd.sock"}}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v1.34.3
certificatesDir: {dir}/conf/pki
networking: {{serviceSubnet: {SERVICES}, podSubnet: {PODS}}}
"#
    )
}

pub(super) fn containerd(dir: &Path) -> String {
    let dir = dir.display();
    // Without CAP_SYS_RESOURCE, runc cannot lower OOM scores.
    format!(
        r#"version = 2
root = "{dir}/containerd"
state = "{dir}/containerd-state"
[grpc]
  address = "{dir}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  sandbox_image = "{PAUSE}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{dir}/cni"
"#,
        PAUSE = super::PAUSE,
    )
}

/// Addresses that are in use are recorded in the node's directory, so that none outlives the node.
pub(super) fn bridge(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        r#"{{
  "cniVersion": "1.0.0",
  "name": "tec",
  "plugins": [
    {{
      "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
      "ipam": {{
        "type": "host-local",
        "dataDir": "{dir}/addresses",
        "ranges": [[{{"subnet": "10.244.0.0/24"}}]],
        "routes": [{{"dst": "0.0.0.0/0"}}]
      }}
    }},
    {{"type": "portmap", "capabilities": {{"portMappings": true}}}}
  ]
}}
"#
    )
}

pub(super) fn kubelet(dir: &Path) -> String {
    // The disk belongs to whoever runs the test and may be nearly full, and a removed image would never be
    // pulled again.
    let dir = dir.display();
    format!(
        r#"apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: "unix://{dir}/containerd.sock"
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
clusterDNS: ["{DNS}"]
clusterDomain: cluster.local
authentication: {{x509: {{clientCAFile: "{dir}/conf/pki/ca.crt"}}, anonymous: {{enabled: false}}}}
authorization: {{mode: Webhook}}
evictionHard: {{memory.available: 100Mi, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%}}
imageGCHighThresholdPercent: 100
"#
    )
}

pub(super) fn proxy(dir: &Path) -> String {
    // Connection tracking limits belong to the machine, and not every root user may change them.
    let dir = dir.display();
    format!(
        r#"apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {{kubeconfig: "{dir}/conf/super-admin.conf"}}
clusterCIDR: {PODS}
hostnameOverride: {NODE}
conntrack: {{maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}
"#
    )
}

pub(super) fn etcd(dir: &Path) -> Vec<String> {
    let [client, peer] = ETCD;
    vec![
        format!("--data-dir={}/etcd", dir.display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=default={peer}"),
        "--log-level=warn".into(),
    ]
}

pub(super) fn api_server(dir: &Path) -> Vec<String> {
    let pki = dir.join("conf/pki");
    let pki = pki.display();
    vec![
        format!("--advertise-address={ADDRESS}"),
        format!("--etcd-servers={}", ETCD[0]),
        format!("--service-cluster-ip-range={SERVICES}"),
        "--secure-port=6443".into(),
        format!("--client-ca-file={pki}/ca.crt"),
        format!("--tls-cert-file={pki}/apiserver.crt"),
        format!("--tls-private-key-file={pki}/apiserver.key"),
        "--allow-privileged".into(),
        "--enable-bootstrap-token-auth".into(),
        format!("--kubelet-client-certificate={pki}/apiserver-kubelet-client.crt"),
        format!("--kubelet-client-key={pki}/apiserver-kubelet-client.key"),
        // The name of the node is not in DNS.
        "--kubelet-preferred-address-types=InternalIP".into(),
        format!("--service-account-key-file={pki}/sa.pub"),
        format!("--service-account-signing-key-file={pki}/sa.key"),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        "--authorization-mode=Node,RBAC".into(),
        "--enable-admission-plugins=NodeRestriction".into(),
    ]
}

pub(super) fn controllers(dir: &Path) -> Vec<String> {
    let conf = dir.join("conf");
    let conf = conf.display();
    vec![
        format!("--kubeconfig={conf}/controller-manager.conf"),
        format!("--authentication-kubeconfig={conf}/controller-manager.conf"),
        format!("--service-account-private-key-file={conf}/pki/sa.key"),
        format!("--root-ca-file={conf}/pki/ca.crt"),
        format!("--cluster-signing-cert-file={conf}/pki/ca.crt"),
        format!("--cluster-signing-key-file={conf}/pki/ca.key"),
        "--allocate-node-cidrs".into(),
        format!("--cluster-cidr={PODS}"),
        "--use-service-account-credentials".into(),
        "--controllers=*,bootstrapsigner,tokencleaner".into(),
        "--leader-elect=false".into(),
    ]
}

pub(super) fn scheduler(dir: &Path) -> Vec<String> {
    let kubeconfig = format!("--kubeconfig={}/conf/scheduler.conf", dir.display());
    vec![kubeconfig, "--leader-elect=false".into()]
}

pub(super) fn kubelet_flags(dir: &Path) -> Vec<String> {
    let dir = dir.display();
    vec![
        format!("--kubeconfig={dir}/conf/kubelet.conf"),
        format!("--config={dir}/conf/kubelet.yaml"),
        format!("--root-dir={dir}/kubelet"),
        format!("--hostname-override={NODE}"),
        format!("--node-ip={ADDRESS}"),
    ]
}
