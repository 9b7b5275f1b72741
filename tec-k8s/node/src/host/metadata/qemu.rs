//! The metadata service for QEMU virtual machines.

use crate::metadata::{Instance, MetadataSource};
use async_trait::async_trait;
use tec_core::port::PortError;

use super::{MetadataError, Record, parsed};
use crate::host::http::Ask;

/// Its address (Constellation).
const DEFAULT: &str = "http://10.42.0.1:8080";

/// Asks `/self`, `/peers`, `/endpoint` and `/initsecrethash`.
#[derive(Clone, Debug)]
pub struct QemuMetadata {
    base: String,
}

impl QemuMetadata {
    /// Uses this base URL, or the usual one.
    pub fn new(base: Option<String>) -> Self {
        let base = base.unwrap_or_else(|| DEFAULT.to_owned());
        let base = base.trim_end_matches('/').to_owned();
        Self { base }
    }

    async fn ask(&self, path: &str) -> Result<Vec<u8>, MetadataError> {
        Ok(Ask::get(format!("{}{path}", self.base)).body().await?)
    }
}

#[async_trait]
impl MetadataSource for QemuMetadata {
    async fn this(&self) -> Result<Instance, PortError> {
        let answer = self.ask("/self").await;
        let record = answer.and_then(|json| parsed::<Record>(&json));
        let instance = record.and_then(|record| record.instance());
        instance.map_err(|error| error.during("ask which instance this is"))
    }

    async fn instances(&self) -> Result<Vec<Instance>, PortError> {
        let answer = self.ask("/peers").await;
        let records = answer.and_then(|json| parsed::<Vec<Record>>(&json));
        let records = records.map_err(|error| error.during("list the instances"))?;
        Ok(Record::instances(&records))
    }

    async fn api_server(&self) -> Result<String, PortError> {
        let answer = self.ask("/endpoint").await;
        let name = answer.and_then(|json| parsed(&json));
        name.map_err(|error| error.during("find the API server"))
    }

    async fn init_secret_hash(&self) -> Result<String, PortError> {
        let answer = self.ask("/initsecrethash").await;
        let text = answer.and_then(|bytes| {
            let text = String::from_utf8(bytes);
            text.map_err(|_| MetadataError::Member("initsecrethash"))
        });
        let text = text.map_err(|error| error.during("read the hash of the init secret"))?;
        Ok(text.trim().to_owned())
    }
}
