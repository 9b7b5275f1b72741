//! What the platform says about this instance and its peers.
//!
//! # Security
//! Metadata come from whoever runs the platform, and are not believed further than that: a role
//! that they claim has to be granted by the join service, and an address has to prove itself.

use core::net::IpAddr;
use std::fmt;

use async_trait::async_trait;

use super::state::Role;
use super::ticket::NodeName;
use crate::port::PortError;

/// One instance.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "readers write all of it out")]
pub struct Instance {
    /// Name of its node.
    pub name: NodeName,
    /// What it is to be.
    pub role: Role,
    /// Address in the network of the cluster.
    pub address: IpAddr,
    /// Name of the instance for the cloud's controllers; empty without.
    pub provider_id: String,
}

/// Reads metadata. *Contract*: each call may ask the platform again, and has a deadline.
#[async_trait]
pub trait MetadataSource: fmt::Debug + Send + Sync {
    /// This instance.
    async fn this(&self) -> Result<Instance, PortError>;

    /// All instances of the cluster, this one too; those without name or role are left out.
    async fn instances(&self) -> Result<Vec<Instance>, PortError>;

    /// Name or address under which the API server is reached, without a port.
    async fn api_server(&self) -> Result<String, PortError>;

    /// Hash of the secret that admits a caller of Init: `sha256:<64 hex>`.
    async fn init_secret_hash(&self) -> Result<String, PortError>;
}
