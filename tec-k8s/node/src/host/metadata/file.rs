//! Metadata in a file, for machines without a platform.

use std::path::PathBuf;

use crate::metadata::{Instance, MetadataSource};
use async_trait::async_trait;
use serde::Deserialize;
use tec_core::port::PortError;

use super::{MetadataError, Record, parsed};

/// A JSON file with the members `self`, `peers`, `endpoint` and `initSecretHash`; it is read on each call.
#[derive(Clone, Debug)]
pub struct FileMetadata(PathBuf);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(rename = "self")]
    this: Record,
    #[serde(default)]
    peers: Vec<Record>,
    endpoint: String,
    #[serde(rename = "initSecretHash")]
    init_secret_hash: String,
}

impl FileMetadata {
    /// Uses this file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    fn read(&self, operation: &'static str) -> Result<Document, PortError> {
        let read = std::fs::read(&self.0).map_err(MetadataError::File);
        read.and_then(|json| parsed(&json)).map_err(|error| error.during(operation))
    }
}

#[async_trait]
impl MetadataSource for FileMetadata {
    async fn this(&self) -> Result<Instance, PortError> {
        let operation = "read which instance this is";
        let document = self.read(operation)?;
        document.this.instance().map_err(|error| error.during(operation))
    }

    async fn instances(&self) -> Result<Vec<Instance>, PortError> {
        Ok(Record::instances(&self.read("list the instances")?.peers))
    }

    async fn api_server(&self) -> Result<String, PortError> {
        Ok(self.read("find the API server")?.endpoint)
    }

    async fn init_secret_hash(&self) -> Result<String, PortError> {
        Ok(self.read("read the hash of the init secret")?.init_secret_hash)
    }
}
