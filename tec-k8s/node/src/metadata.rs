//! What the platform reports about this instance and its peers.
//!
//! # Security
//! Metadata comes from whoever runs the platform, and is trusted no more than they are: a claimed
//! role must be granted by the join service, and the machine behind an address must prove itself.

use core::net::IpAddr;
use std::fmt;

use async_trait::async_trait;
use tec_core::port::PortError;

use super::state::Role;
use super::ticket::NodeName;

/// One instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Name of its node.
    pub name: NodeName,
    /// Its role.
    pub role: Role,
    /// Address in the cluster network.
    pub address: IpAddr,
    /// Name of the instance for cloud controllers; empty if there is none.
    pub provider_id: String,
}

/// Reads metadata. *Contract*: each call may ask the platform again, and has a deadline.
#[async_trait]
pub trait MetadataSource: fmt::Debug + Send + Sync {
    /// This instance.
    async fn this(&self) -> Result<Instance, PortError>;

    /// All instances of the cluster, including this one; those without name or role are omitted.
    async fn instances(&self) -> Result<Vec<Instance>, PortError>;

    /// Name or address of the API server, without a port.
    async fn api_server(&self) -> Result<String, PortError>;

    /// Hash of the secret that authorizes a caller of Init: `sha256:<64 hex>`.
    async fn init_secret_hash(&self) -> Result<String, PortError>;
}
