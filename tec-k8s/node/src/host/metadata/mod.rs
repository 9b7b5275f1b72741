//! Metadata that platforms provide about instances.

mod aws;
mod azure;
mod certificate;
mod file;
mod gcp;
mod qemu;
mod tag;

use std::fmt;
use std::net::IpAddr;

use crate::metadata::{Instance, MetadataSource};
use crate::state::Role;
use crate::ticket::NodeName;
use async_trait::async_trait;
use serde::Deserialize;
use tec_core::code::Code;
use tec_core::port::{PortError, PortErrorKind};

pub use self::aws::AwsMetadata;
pub use self::azure::AzureMetadata;
pub use self::certificate::AzureCertificates;
pub use self::file::FileMetadata;
pub use self::gcp::GcpMetadata;
pub use self::qemu::QemuMetadata;
use super::http::HttpError;

/// Metadata that cannot be obtained or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// The service gave no answer.
    #[error("cannot reach the metadata service")]
    Http(#[from] HttpError),
    /// The answer is not as expected.
    #[error("the answer is malformed")]
    Malformed(#[source] serde_json::Error),
    /// A member is missing or invalid.
    #[error("the instance's {0} is missing or malformed")]
    Member(&'static str),
    /// The file cannot be read.
    #[error("the metadata file cannot be read")]
    File(#[source] std::io::Error),
}

impl MetadataError {
    fn during(self, operation: &'static str) -> PortError {
        // All of it may be different with the next call: instances are set up while they boot.
        PortError::new(PortErrorKind::Unavailable, operation)
            .with_code(Code::BootstrapMetadata)
            .because(self)
    }
}

/// A service that lists no peers: they, and all else, come from tags of the instance.
#[async_trait]
trait Tagged: fmt::Debug + Send + Sync {
    async fn instance(&self) -> Result<Instance, MetadataError>;

    async fn tag(&self, name: &'static str) -> Result<String, MetadataError>;
}

#[async_trait]
impl<T: Tagged> MetadataSource for T {
    async fn this(&self) -> Result<Instance, PortError> {
        let instance = self.instance().await;
        instance.map_err(|error| error.during("ask which instance this is"))
    }

    async fn instances(&self) -> Result<Vec<Instance>, PortError> {
        let list = self.tag(tag::CONTROL_PLANES).await;
        let list = list.map_err(|error| error.during("list the instances"))?;
        Ok(tag::control_planes(&list))
    }

    async fn api_server(&self) -> Result<String, PortError> {
        let name = self.tag(tag::API_SERVER).await;
        name.map_err(|error| error.during("find the API server"))
    }

    async fn init_secret_hash(&self) -> Result<String, PortError> {
        let hash = self.tag(tag::INIT_SECRET_HASH).await;
        hash.map_err(|error| error.during("read the hash of the init secret"))
    }
}

/// An instance in the form that QEMU's metadata service and the file use (Constellation).
#[derive(Clone, Debug, Deserialize)]
struct Record {
    #[serde(rename = "Name")]
    name: String,
    #[serde(rename = "ProviderID", default)]
    provider_id: String,
    #[serde(rename = "Role")]
    role: serde_json::Value,
    #[serde(rename = "VPCIP")]
    address: String,
}

impl Record {
    fn instance(&self) -> Result<Instance, MetadataError> {
        let role = self.role.as_str().and_then(Role::of_name);
        // Older services write the number in their enumeration.
        let role = role.or(match self.role.as_u64() {
            Some(1) => Some(Role::ControlPlane),
            Some(2) => Some(Role::Worker),
            _ => None,
        });
        let address: Option<IpAddr> = self.address.parse().ok();
        // The node's certificate would be for every address, or for a group.
        let address = address.filter(|one| !one.is_unspecified() && !one.is_multicast());
        Ok(Instance {
            name: NodeName::of_instance(&self.name).map_err(|_| MetadataError::Member("Name"))?,
            role: role.ok_or(MetadataError::Member("Role"))?,
            address: address.ok_or(MetadataError::Member("VPCIP"))?,
            provider_id: self.provider_id.clone(),
        })
    }

    /// The valid instances.
    fn instances(records: &[Self]) -> Vec<Instance> {
        records.iter().filter_map(|one| one.instance().ok()).collect()
    }
}

fn parsed<T: for<'de> Deserialize<'de>>(json: &[u8]) -> Result<T, MetadataError> {
    serde_json::from_slice(json).map_err(MetadataError::Malformed)
}

#[cfg(test)]
mod tests;
