//! What clusters of an image are like.

use std::path::PathBuf;

/// An etcd that is not kubeadm's.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers write all of it out")]
pub struct ExternalEtcd {
    /// URLs.
    pub endpoints: Vec<String>,
    /// Files for `https` endpoints.
    pub tls: Option<EtcdTls>,
}

/// Files with which an etcd is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers write all of it out")]
pub struct EtcdTls {
    /// Its CA.
    pub ca: PathBuf,
    /// Our certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// What clusters of this image are like.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KubeadmSettings {
    /// Name or address under which the API server is reached, without a port.
    pub api_server: String,
    /// Name of the cluster in kubeconfigs.
    pub cluster_name: String,
    /// Further names and addresses of the API server's certificate.
    pub certificate_names: Vec<String>,
    /// Subnet of services.
    pub service_subnet: String,
    /// Socket of the container runtime.
    pub cri_socket: String,
    /// `external` with a cloud's controllers, empty without.
    pub cloud_provider: String,
    /// Findings of kubeadm's preflight that are known and fine.
    pub ignored_preflight_errors: Vec<String>,
    /// An etcd elsewhere; kubeadm's own on the control planes without.
    pub external_etcd: Option<ExternalEtcd>,
}

impl KubeadmSettings {
    /// A cluster whose API server is reached under this name or address.
    pub fn new(api_server: impl Into<String>) -> Self {
        Self {
            api_server: api_server.into(),
            cluster_name: "kubernetes".to_owned(),
            certificate_names: Vec::new(),
            service_subnet: "10.96.0.0/12".to_owned(),
            cri_socket: "unix:///run/containerd/containerd.sock".to_owned(),
            cloud_provider: String::new(),
            ignored_preflight_errors: Vec::new(),
            external_etcd: None,
        }
    }
}
