//! The instance metadata service of Azure.

use crate::metadata::Instance;
use async_trait::async_trait;
use serde::Deserialize;

use super::{MetadataError, Record, Tagged, parsed, tag};
use crate::host::http::Ask;

/// Its address, the same on every instance (Azure Instance Metadata Service, "Access").
pub(super) const DEFAULT: &str = "http://169.254.169.254";
/// The header that the service requires, so that no server on the machine can be tricked into sending a
/// request.
pub(super) const HEADER: &str = "Metadata";
const INSTANCE: &str = "/metadata/instance?format=json&api-version=2021-02-01";
/// Reads the instance's own document. Peers come from its tags, since listing them would need the cloud's API
/// and an account.
#[derive(Clone, Debug)]
pub struct AzureMetadata {
    base: String,
}

#[derive(Deserialize)]
struct Document {
    compute: Compute,
    network: Network,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Compute {
    resource_id: String,
    os_profile: OsProfile,
    tags_list: Vec<Tag>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OsProfile {
    computer_name: String,
}

#[derive(Deserialize)]
struct Tag {
    name: String,
    value: String,
}

#[derive(Deserialize)]
struct Network {
    interface: Vec<Interface>,
}

#[derive(Deserialize)]
struct Interface {
    ipv4: Addresses,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Addresses {
    ip_address: Vec<Address>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Address {
    private_ip_address: String,
}

impl Document {
    fn tag(&self, name: &'static str) -> Result<&str, MetadataError> {
        let mut tags = self.compute.tags_list.iter();
        tags.find(|tag| tag.name == name)
            .map(|tag| tag.value.as_str())
            .ok_or(MetadataError::Member(name))
    }

    fn address(&self) -> Option<&str> {
        let interface = self.network.interface.first()?;
        let address = interface.ipv4.ip_address.first()?;
        Some(&address.private_ip_address)
    }

    fn instance(&self) -> Result<Instance, MetadataError> {
        let record = Record {
            name: self.compute.os_profile.computer_name.clone(),
            provider_id: format!("azure://{}", self.compute.resource_id),
            role: self.tag(tag::ROLE)?.into(),
            address: self.address().unwrap_or_default().to_owned(),
        };
        record.instance()
    }
}

impl AzureMetadata {
    /// Uses this base URL, or the address that is the same on every instance.
    pub fn new(base: Option<String>) -> Self {
        let base = base.unwrap_or_else(|| DEFAULT.to_owned());
        let base = base.trim_end_matches('/').to_owned();
        Self { base }
    }

    async fn document(&self) -> Result<Document, MetadataError> {
        let request = Ask::get(format!("{}{INSTANCE}", self.base));
        parsed(&request.header(HEADER, "true").body().await?)
    }
}

#[async_trait]
impl Tagged for AzureMetadata {
    async fn instance(&self) -> Result<Instance, MetadataError> {
        self.document().await?.instance()
    }

    async fn tag(&self, name: &'static str) -> Result<String, MetadataError> {
        self.document().await?.tag(name).map(str::to_owned)
    }
}
