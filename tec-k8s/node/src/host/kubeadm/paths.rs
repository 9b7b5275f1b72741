//! Paths on a node (Constellation).

use std::path::{Path, PathBuf};

use crate::ticket::PkiFile;

/// Paths below the root of a host, or below a substitute in tests.
#[derive(Clone, Debug)]
pub struct KubeadmPaths(PathBuf);

impl KubeadmPaths {
    /// The paths of this host.
    pub fn host() -> Self {
        Self::under("/")
    }

    /// The paths below a different root.
    pub fn under(root: impl Into<PathBuf>) -> Self {
        Self(root.into())
    }

    /// An absolute path of the host.
    pub(super) fn of_host(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    fn kubernetes(&self) -> PathBuf {
        self.of_host("/etc/kubernetes")
    }

    /// Certificates and keys of the cluster.
    pub fn pki(&self) -> PathBuf {
        self.kubernetes().join("pki")
    }

    /// The admin's kubeconfig.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.kubernetes().join("admin.conf")
    }

    pub(super) fn kubelet_kubeconfig(&self) -> PathBuf {
        self.kubernetes().join("kubelet.conf")
    }

    pub(super) fn bootstrap_kubeconfig(&self) -> PathBuf {
        self.kubernetes().join("bootstrap-kubelet.conf")
    }

    pub(super) fn audit_policy(&self) -> PathBuf {
        self.kubernetes().join("audit-policy.yaml")
    }

    /// Certificate of the kubelet.
    pub fn kubelet_certificate(&self) -> PathBuf {
        self.kubelet_pki().join("kubelet-client-crt.pem")
    }

    /// Its key.
    pub fn kubelet_key(&self) -> PathBuf {
        self.kubelet_pki().join("kubelet-client-key.pem")
    }

    /// Directory where the kubelet keeps certificates that the cluster issued to it.
    pub(super) fn kubelet_own_pki(&self) -> PathBuf {
        self.of_host("/var/lib/kubelet/pki")
    }

    /// Mount point of the state disk.
    pub fn state(&self) -> PathBuf {
        self.of_host("/run/state")
    }

    /// Path where a file from a ticket is stored.
    pub fn of_ticket(&self, file: PkiFile) -> PathBuf {
        let name = file.as_str();
        if name.starts_with("tec/") { self.state().join(name) } else { self.pki().join(name) }
    }

    fn kubelet_pki(&self) -> PathBuf {
        self.state().join("kubelet/pki")
    }

    /// A directory in memory, for what must not survive a boot.
    pub fn scratch(&self) -> PathBuf {
        self.of_host("/run/tec-bootstrapper")
    }

    /// The root itself.
    pub fn root(&self) -> &Path {
        &self.0
    }
}
