//! Signs kubelet certificates, but none for an address of another node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use tec_core::port::PortError;
use tec_k8s::client::list_all;
use tec_node::rpc::KubeletSigner;
use tec_node::ticket::NodeName;

use crate::instance::authority::Authority;

/// Signs like an [`Authority`]. All nodes have certificates from the same CA: a certificate for another
/// node's address would let its holder act as that node's kubelet or, on a control plane, its API server.
#[derive(Clone, Debug)]
pub struct Signer {
    authority: Authority,
    nodes: Api<Node>,
}

impl Signer {
    /// Signs for nodes of this cluster.
    pub fn new(authority: Authority, client: Client) -> Self {
        Self { authority, nodes: Api::all(client) }
    }
}

/// Addresses of all nodes.
pub(super) async fn addresses(
    nodes: &Api<Node>,
) -> Result<BTreeMap<String, BTreeSet<IpAddr>>, PortError> {
    let all = list_all(nodes, ListParams::default()).await?;
    Ok(all.iter().map(|node| (node.name_any(), addresses_of(node))).collect())
}

fn addresses_of(node: &Node) -> BTreeSet<IpAddr> {
    let all = node.status.as_ref().and_then(|status| status.addresses.as_ref());
    // They include host names too.
    all.into_iter().flatten().filter_map(|one| one.address.parse().ok()).collect()
}

/// Addresses of all nodes but this one.
pub(super) fn taken(all: &BTreeMap<String, BTreeSet<IpAddr>>, node: &NodeName) -> BTreeSet<IpAddr> {
    let others = all.iter().filter(|(name, _)| name.as_str() != node.as_str());
    others.flat_map(|(_, addresses)| addresses).copied().collect()
}

#[async_trait]
impl KubeletSigner for Signer {
    fn named(&self, csr: &[u8]) -> Result<(NodeName, BTreeSet<IpAddr>), PortError> {
        self.authority.named(csr)
    }

    async fn sign(&self, csr: &[u8]) -> Result<String, PortError> {
        let (node, _) = self.authority.named(csr)?;
        let taken = taken(&addresses(&self.nodes).await?, &node);
        self.authority.clone().reserving(taken).sign(csr).await
    }
}

#[cfg(test)]
mod tests;
