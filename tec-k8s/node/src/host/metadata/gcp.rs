//! The metadata server of Google Cloud.

use std::collections::BTreeMap;

use crate::metadata::Instance;
use async_trait::async_trait;
use serde::Deserialize;

use super::{MetadataError, Record, Tagged, parsed, tag};
use crate::host::http::Ask;

/// Its address, the same on every instance (Compute Engine, "About VM metadata").
const DEFAULT: &str = "http://169.254.169.254";
const INSTANCE: &str = "/computeMetadata/v1/instance/?recursive=true&alt=json";
const PROJECT: &str = "/computeMetadata/v1/project/project-id";
/// Required in a request, and present in a genuine answer: other servers that listen at the address do not
/// send it.
const FLAVOR: &str = "Metadata-Flavor";
const GOOGLE: &str = "Google";

/// Reads the instance's own document; the rest comes from attributes of the instance.
#[derive(Clone, Debug)]
pub struct GcpMetadata {
    base: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    name: String,
    /// `projects/<number>/zones/<zone>`
    zone: String,
    network_interfaces: Vec<Interface>,
    #[serde(default)]
    attributes: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Interface {
    ip: String,
}

impl Document {
    fn attribute(&self, name: &'static str) -> Result<&str, MetadataError> {
        let value = self.attributes.get(name).map(String::as_str);
        value.ok_or(MetadataError::Member(name))
    }

    fn instance(&self, project: &str) -> Result<Instance, MetadataError> {
        let zone = self.zone.rsplit('/').next().unwrap_or_default();
        let address = self.network_interfaces.first().map(|one| one.ip.clone());
        let record = Record {
            name: self.name.clone(),
            provider_id: format!("gce://{project}/{zone}/{}", self.name),
            role: self.attribute(tag::ROLE)?.into(),
            address: address.unwrap_or_default(),
        };
        record.instance()
    }
}

impl GcpMetadata {
    /// Uses this base URL, or the address that is the same on every instance.
    pub fn new(base: Option<String>) -> Self {
        let base = base.unwrap_or_else(|| DEFAULT.to_owned());
        Self { base: base.trim_end_matches('/').to_owned() }
    }

    async fn ask(&self, path: &str) -> Result<Vec<u8>, MetadataError> {
        let request = Ask::get(format!("{}{path}", self.base));
        let request = request.header(FLAVOR, GOOGLE).marked(FLAVOR, GOOGLE);
        Ok(request.body().await?)
    }

    async fn document(&self) -> Result<Document, MetadataError> {
        parsed(&self.ask(INSTANCE).await?)
    }
}

#[async_trait]
impl Tagged for GcpMetadata {
    async fn instance(&self) -> Result<Instance, MetadataError> {
        let project = String::from_utf8(self.ask(PROJECT).await?);
        let project = project.map_err(|_| MetadataError::Member("project-id"))?;
        self.document().await?.instance(project.trim())
    }

    async fn tag(&self, name: &'static str) -> Result<String, MetadataError> {
        let document = self.document().await?;
        document.attribute(name).map(str::to_owned)
    }
}
