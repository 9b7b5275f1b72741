//! Properties of clusters created from an image.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::Deserialize;
use tec_core::port::{PortError, PortErrorKind};

/// An external etcd, not managed by kubeadm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalEtcd {
    /// URLs.
    pub endpoints: Vec<String>,
    /// Files for `https` endpoints.
    pub tls: Option<EtcdTls>,
}

/// Files for reaching an etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdTls {
    /// Its CA.
    pub ca: PathBuf,
    /// Our certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// kube-proxy with nftables, which needs Linux 5.13 and one program in its image.
const KUBE_PROXY: &str = r#"{"apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
 "kind": "KubeProxyConfiguration", "mode": "nftables"}"#;

/// DNS server for pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClusterDns {
    /// kubeadm's add-on.
    #[default]
    CoreDns,
    /// Left to the admin.
    None,
}

/// Properties of clusters created from this image.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KubeadmSettings {
    /// Name or address at which the API server is reached, without a port.
    pub api_server: String,
    /// Name of the cluster in kubeconfigs.
    pub cluster_name: String,
    /// Additional names and addresses in the API server's certificate.
    pub certificate_names: Vec<String>,
    /// Subnet of services.
    pub service_subnet: String,
    /// Subnet of pods, of which each node gets a part. Empty if the network plugin has its own.
    pub pod_subnet: String,
    /// DNS server for pods.
    pub dns: ClusterDns,
    /// Settings of kube-proxy: a document of the kind `KubeProxyConfiguration`.
    pub kube_proxy: String,
    /// Socket of the container runtime.
    pub cri_socket: String,
    /// `external` if a cloud provider's controllers run, otherwise empty.
    pub cloud_provider: String,
    /// Errors of kubeadm's preflight that are known and harmless.
    pub ignored_preflight_errors: Vec<String>,
    /// An external etcd; by default kubeadm runs one on the control planes.
    pub external_etcd: Option<ExternalEtcd>,
}

impl KubeadmSettings {
    /// A cluster whose API server is reached at this name or address.
    pub fn new(api_server: impl Into<String>) -> Self {
        Self {
            api_server: api_server.into(),
            cluster_name: "kubernetes".to_owned(),
            certificate_names: Vec::new(),
            service_subnet: "10.96.0.0/12".to_owned(),
            pod_subnet: "10.244.0.0/16".to_owned(),
            dns: ClusterDns::default(),
            kube_proxy: KUBE_PROXY.to_owned(),
            cri_socket: "unix:///run/containerd/containerd.sock".to_owned(),
            cloud_provider: String::new(),
            ignored_preflight_errors: Vec::new(),
            external_etcd: None,
        }
    }

    /// Checks that a node with this address can be reached: kube-proxy drops traffic to the service subnet
    /// that is not for a service, and a network plugin owns the pod subnet.
    pub(super) fn leave_out(&self, address: IpAddr) -> Result<(), PortError> {
        for (subnets, key) in
            [(&self.service_subnet, "service_subnet"), (&self.pod_subnet, "pod_subnet")]
        {
            if subnets.split(',').any(|subnet| contains(subnet, address)) {
                let operation = format!(
                    "make a cluster: the address {address} of this node is in {key} {subnets}; \
                     set another {key} in [kubernetes]"
                );
                return Err(PortError::new(PortErrorKind::Invalid, operation));
            }
        }
        Ok(())
    }
}

/// Whether an address is in a subnet; kubeadm refuses malformed ones.
fn contains(subnet: &str, address: IpAddr) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => (u128::from(u32::from(address)) << 96, 32),
        IpAddr::V6(address) => (u128::from(address), 128),
    };
    let parsed = subnet.trim().split_once('/').and_then(|(network, length)| {
        Some((network.parse::<IpAddr>().ok()?, length.parse::<u32>().ok()?))
    });
    let Some((network, length)) = parsed else { return false };
    let ((network, all), (address, same)) = (bits(network), bits(address));
    all == same && length <= all && (network ^ address).leading_zeros() >= length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cluster_is_made_of_a_node_whose_address_is_one_of_services_or_pods() {
        let settings = KubeadmSettings::new("api.example.org");
        for (address, is_refused) in [
            ("10.96.0.1", true),
            ("10.99.0.1", true),
            ("10.111.255.255", true),
            ("10.112.0.0", false),
            ("10.244.3.4", true),
            ("10.245.0.1", false),
            ("192.0.2.1", false),
            ("fd00::1", false),
        ] {
            let left_out = settings.leave_out(address.parse().unwrap());
            assert_eq!(left_out.is_err(), is_refused, "{address}");
        }
        let mut dual = settings;
        dual.service_subnet = "10.96.0.0/12, fd00::/108".to_owned();
        assert!(dual.leave_out("fd00::1".parse().unwrap()).is_err());
        assert!(dual.leave_out("fd00::10:0:1".parse().unwrap()).is_ok());
    }
}
