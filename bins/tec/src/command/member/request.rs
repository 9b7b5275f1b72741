//! What `tec node init` requests from a node.

use tec_core::secret::SecretBytes;
use tec_node::rpc::generated::init::{InitRequest, KubernetesComponent};
use tec_node::ticket::{Component, ComponentForm};

use super::keys::Uris;

/// The request, which may be sent repeatedly.
pub(super) struct Request {
    pub(super) uris: Uris,
    pub(super) init_secret: SecretBytes,
    pub(super) kubernetes_version: String,
    pub(super) components: Vec<Component>,
    pub(super) keep_proxy: bool,
}

/// How far a node should go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// Only check whether the node could become a cluster.
    Check,
    /// Create the cluster.
    Whole,
}

impl Request {
    pub(super) fn message(&self, extent: Extent) -> InitRequest {
        let component = |one: &Component| KubernetesComponent {
            url: one.url.clone(),
            hash: format!("sha256:{}", one.hash),
            install_path: one.install_path.clone(),
            extract: one.form == ComponentForm::Archive,
        };
        InitRequest {
            kms_uri: self.uris.kms(),
            storage_uri: self.uris.storage(),
            kubernetes_version: self.kubernetes_version.clone(),
            conformance_mode: self.keep_proxy,
            kubernetes_components: self.components.iter().map(component).collect(),
            init_secret: self.init_secret.expose("prove that we may").to_vec(),
            check: extent == Extent::Check,
            ..InitRequest::default()
        }
    }
}
