//! Certificates of kubelets, and none for an address of another node.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use crate::instance::authority::Authority;
use crate::rpc::KubeletSigner;
use async_trait::async_trait;
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use tec_core::node::ticket::NodeName;
use tec_core::port::{PortError, PortErrorKind};

/// Signs as an [`Authority`] does. All nodes have certificates of the same CA: whoever had one for the
/// address of another node could be its kubelet, or, on a control plane, its API server.
#[derive(Clone)]
pub struct Signer {
    authority: Authority,
    nodes: Api<Node>,
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer").finish_non_exhaustive()
    }
}

impl Signer {
    /// In this cluster.
    pub fn new(authority: Authority, client: Client) -> Self {
        Self { authority, nodes: Api::all(client) }
    }
}

/// Addresses of all nodes but this one.
pub(super) async fn taken(
    nodes: &Api<Node>,
    node: &NodeName,
) -> Result<BTreeSet<IpAddr>, PortError> {
    let nodes = nodes.list(&ListParams::default()).await;
    let nodes = nodes.map_err(|error| {
        PortError::new(PortErrorKind::Unavailable, "list the nodes").because(error)
    })?;
    let others = nodes.iter().filter(|one| one.name_any() != node.as_str());
    let addresses = others.filter_map(|one| one.status.as_ref()?.addresses.as_ref()).flatten();
    // Names of hosts are among them, too.
    Ok(addresses.filter_map(|one| one.address.parse::<IpAddr>().ok()).collect())
}

#[async_trait]
impl KubeletSigner for Signer {
    fn name(&self, csr: &[u8]) -> Result<NodeName, PortError> {
        self.authority.name(csr)
    }

    async fn sign(&self, csr: &[u8]) -> Result<String, PortError> {
        let node = self.authority.name(csr)?;
        let taken = taken(&self.nodes, &node).await?;
        self.authority.clone().reserving(taken).sign(csr).await
    }
}

#[cfg(test)]
mod tests;
