//! Finds join services in the metadata; also states what they must prove.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use tec_core::port::PortError;
use tec_node::atls::Endpoint;
use tec_node::metadata::MetadataSource;
use tec_node::rpc::{Dial, Reached};
use tec_node::state::Role;

use crate::instance::transport;

/// Join services on the control planes in the metadata.
#[derive(Clone, Debug)]
pub struct Discovery {
    metadata: Arc<dyn MetadataSource>,
    endpoint: Endpoint,
    port: u16,
}

impl Discovery {
    /// `endpoint` verifies what the metadata only claims.
    pub fn new(metadata: Arc<dyn MetadataSource>, endpoint: Endpoint, port: u16) -> Self {
        Self { metadata, endpoint, port }
    }
}

#[async_trait]
impl Dial for Discovery {
    /// Control planes except this instance, which has no join service yet, or no longer has one.
    async fn addresses(&self) -> Result<Vec<String>, PortError> {
        let this = self.metadata.this().await?;
        let all = self.metadata.instances().await?;
        let others =
            all.iter().filter(|one| one.role == Role::ControlPlane && one.address != this.address);
        let address = |one: &tec_node::metadata::Instance| {
            SocketAddr::new(one.address, self.port).to_string()
        };
        Ok(others.map(address).collect())
    }

    async fn dial(&self, address: &str) -> Result<Reached, PortError> {
        transport::reach(&self.endpoint, address).await
    }
}
