//! Predicts the result of a join, without joining: no ticket is requested, and nothing is changed.

use std::sync::Arc;

use tec_core::ak::Fingerprint;
use tec_core::port::PortError;
use tec_node::derive::DiskId;
use tec_node::lock::MarkerState;
use tec_node::metadata::Instance;
use tec_node::port::StateDisk as _;
use tec_node::rpc::Dial as _;

use crate::instance::discover::Discovery;
use crate::instance::node::Node;
use crate::instance::settings::Settings;

/// What a node that wants to join has and finds.
#[derive(Debug)]
#[non_exhaustive]
pub struct Survey {
    /// Its attestation key, which join services must trust.
    pub ak: Fingerprint,
    /// What its TPM reports about the cluster that it belongs to.
    pub marker: Result<MarkerState, PortError>,
    /// ID of its state disk, and whether the disk is new.
    pub disk: Result<(DiskId, bool), PortError>,
    /// The instance, according to the platform.
    pub instance: Result<Instance, PortError>,
    /// The join services that the platform names.
    pub services: Result<Vec<JoinServiceSeen>, PortError>,
}

/// A join service, and the result.
#[derive(Debug)]
#[non_exhaustive]
pub struct JoinServiceSeen {
    /// `host:port`
    pub address: String,
    /// Whether both ends accepted each other's evidence.
    pub met: Result<(), PortError>,
}

/// Examines everything, even if a part fails.
pub async fn survey(settings: &Settings) -> anyhow::Result<Survey> {
    let node = Node::open(settings)?;
    let endpoint = node.client(&settings.join_services)?;
    let discovery = Discovery::new(Arc::clone(&node.metadata), endpoint, settings.join_port);
    Ok(Survey {
        ak: node.attestation.ak,
        marker: node.attestation.marker.read().await,
        disk: disk(&node).await,
        instance: node.metadata.this().await,
        services: services(&discovery).await,
    })
}

async fn disk(node: &Node) -> Result<(DiskId, bool), PortError> {
    Ok((node.disk.id().await?, node.has_new_disk().await?))
}

async fn services(discovery: &Discovery) -> Result<Vec<JoinServiceSeen>, PortError> {
    let mut found = Vec::new();
    for address in discovery.addresses().await? {
        let met = discovery.dial(&address).await.map(drop);
        found.push(JoinServiceSeen { address, met });
    }
    Ok(found)
}
