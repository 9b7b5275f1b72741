//! Containers of Azure Blob Storage and buckets of Google Cloud Storage.

use std::sync::Arc;
use std::{fs, io};

use crate::uri::{AzureBlobs, AzureConnection, GcpBucket};
use object_store::ObjectStore;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use tec_core::port::{PortError, PortErrorKind};

use super::connect::{options, retry, text, unusable};

/// Maximum size of a file with credentials.
const MAX_CREDENTIALS: u64 = 64 * 1024;
/// Bucket name for clients for which the API requires one that they never use.
pub(super) const NO_BUCKET: &str = "none";

pub(super) fn azure(from: &AzureBlobs) -> Result<Arc<dyn ObjectStore>, PortError> {
    let built = MicrosoftAzureBuilder::new()
        .with_account(&from.account)
        .with_container_name(&from.container)
        .with_client_secret_authorization(
            &from.client_id,
            text(&from.client_secret)?,
            &from.tenant_id,
        )
        .with_client_options(options())
        .with_retry(retry());
    Ok(Arc::new(built.build().map_err(unusable)?))
}

/// An account with its key: at its own domain, or at a server that is compatible with Azure.
pub(super) fn azure_account(from: &AzureConnection) -> Result<Arc<dyn ObjectStore>, PortError> {
    // The URI allows it only for the local machine.
    let is_plain = from.endpoint.starts_with("http://");
    let built = MicrosoftAzureBuilder::new()
        .with_account(&from.account)
        .with_container_name(&from.container)
        .with_access_key(text(&from.key)?)
        .with_endpoint(from.endpoint.clone())
        .with_client_options(options().with_allow_http(is_plain))
        .with_retry(retry());
    Ok(Arc::new(built.build().map_err(unusable)?))
}

pub(super) fn gcp(from: &GcpBucket) -> Result<Arc<dyn ObjectStore>, PortError> {
    let built = google(&from.credentials_path, &from.bucket)?;
    Ok(Arc::new(built.build().map_err(unusable)?))
}

/// A client with the credentials of this file.
pub(super) fn google(
    credentials_path: &str,
    bucket: &str,
) -> Result<GoogleCloudStorageBuilder, PortError> {
    Ok(GoogleCloudStorageBuilder::new()
        .with_service_account_key(credentials(credentials_path)?)
        .with_bucket_name(bucket)
        .with_client_options(options())
        .with_retry(retry()))
}

/// Unauthenticated callers name the file: something else, such as a terminal, or a file without a length,
/// such as a kernel log, would block the thread forever.
fn credentials(path: &str) -> Result<String, PortError> {
    let read = || -> io::Result<String> {
        let found = fs::metadata(path)?;
        if !found.is_file() || !(1..=MAX_CREDENTIALS).contains(&found.len()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        fs::read_to_string(path)
    };
    read().map_err(|error| {
        let operation = "read the credentials of Google Cloud";
        PortError::new(PortErrorKind::Invalid, operation).because(error)
    })
}
