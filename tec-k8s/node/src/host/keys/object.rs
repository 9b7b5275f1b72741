//! Wrapped keys as objects of a bucket: S3 and servers that speak it, Azure Blob Storage, Google
//! Cloud Storage.

use std::sync::Arc;
use std::time::Duration;
use std::{fmt, fs, io};

use async_trait::async_trait;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, Error, ObjectStore, ObjectStoreExt as _, PutMode, RetryConfig,
};
use tec_core::node::derive::DataKeyId;
use tec_core::node::envelope::WrappedKeys;
use tec_core::node::uri::{AzureBlobs, AzureConnection, GcpBucket, S3Bucket, StorageUri};
use tec_core::port::{CreateOutcome, PortError, PortErrorKind};
use tec_core::secret::SecretBytes;

use super::aws::ensure_signable;
use super::{KeyServiceError, refused};

/// A connection with its TLS handshake.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// One request.
const REQUEST_LIMIT: Duration = Duration::from_secs(20);
/// All attempts at one request; who waits for them waits for a ticket.
const RETRY_LIMIT: Duration = Duration::from_secs(20);
const ATTEMPTS: usize = 3;
/// Largest wrapped key.
const MAX_OBJECT: u64 = 16 * 1024;
/// Largest file with credentials.
const MAX_CREDENTIALS: u64 = 64 * 1024;
/// For clients that the API wants a bucket of, and that never ask for it.
pub(super) const NO_BUCKET: &str = "none";

/// A bucket. Its credentials are not part of `Debug`.
pub(super) struct ObjectKeys {
    kind: &'static str,
    store: Arc<dyn ObjectStore>,
}

impl fmt::Debug for ObjectKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ObjectKeys").field(&self.kind).finish()
    }
}

/// Credentials as text, for the crate that keeps them.
fn text(secret: &SecretBytes) -> Result<String, PortError> {
    let text = std::str::from_utf8(secret.expose("authenticate to the bucket"));
    let malformed = |_| PortError::new(PortErrorKind::Invalid, "take the secret of a bucket");
    text.map(str::to_owned).map_err(malformed)
}

fn retry() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: ATTEMPTS,
        retry_timeout: RETRY_LIMIT,
    }
}

fn options() -> ClientOptions {
    ClientOptions::new().with_connect_timeout(CONNECT_LIMIT).with_timeout(REQUEST_LIMIT)
}

fn s3(from: &S3Bucket) -> Result<Arc<dyn ObjectStore>, PortError> {
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(&from.bucket)
        .with_region(&from.region)
        .with_access_key_id(&from.access_key_id)
        .with_secret_access_key(text(&from.access_key)?);
    let mut options = options();
    let url = match &from.endpoint {
        Some(endpoint) => endpoint.as_str().to_owned(),
        None => format!("https://s3.{}.amazonaws.com", from.region),
    };
    ensure_signable(&url, &from.access_key_id)?;
    if let Some(endpoint) = &from.endpoint {
        builder = builder.with_endpoint(endpoint.as_str());
        // The URI admits it for the own machine only.
        options = options.with_allow_http(!endpoint.is_tls());
    }
    let built = builder.with_client_options(options).with_retry(retry());
    Ok(Arc::new(built.build().map_err(unusable)?))
}

fn azure(from: &AzureBlobs) -> Result<Arc<dyn ObjectStore>, PortError> {
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

/// An account with its key: its own domain, or a server that speaks as Azure does.
fn azure_account(from: &AzureConnection) -> Result<Arc<dyn ObjectStore>, PortError> {
    // The URI admits it for the own machine only.
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

fn gcp(from: &GcpBucket) -> Result<Arc<dyn ObjectStore>, PortError> {
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

/// Callers that proved nothing name the file: what is none, such as a terminal, or has no length,
/// such as a log of the kernel, would keep the thread for ever.
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

fn unusable(error: Error) -> PortError {
    PortError::new(PortErrorKind::Invalid, "use the bucket as the URI says").because(error)
}

fn failed(operation: &str, id: &DataKeyId, error: Error) -> PortError {
    let kind = match &error {
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => PortErrorKind::Denied,
        Error::InvalidPath { .. } | Error::NotSupported { .. } => PortErrorKind::Invalid,
        _ => PortErrorKind::Unavailable,
    };
    PortError::new(kind, format!("{operation} {id}")).because(error)
}

impl ObjectKeys {
    pub(super) fn new(storage: &StorageUri) -> Result<Self, PortError> {
        let (kind, store) = match storage {
            StorageUri::S3(bucket) => ("s3", s3(bucket)?),
            StorageUri::Azure(blobs) => ("azure", azure(blobs)?),
            StorageUri::AzureConnection(account) => ("azure", azure_account(account)?),
            StorageUri::Gcp(bucket) => ("gcp", gcp(bucket)?),
            _ => return Err(refused(KeyServiceError::Unknown)),
        };
        Ok(Self { kind, store })
    }
}

#[async_trait]
impl WrappedKeys for ObjectKeys {
    async fn find(&self, id: &DataKeyId) -> Result<Option<Vec<u8>>, PortError> {
        let lost = |error| failed("read", id, error);
        let found = match self.store.get(&Path::from(id.as_str())).await {
            Err(Error::NotFound { .. }) => return Ok(None),
            found => found.map_err(lost)?,
        };
        if found.meta.size > MAX_OBJECT {
            let what = format!("read {id}, which has more than {MAX_OBJECT} bytes");
            return Err(PortError::new(PortErrorKind::Invalid, what));
        }
        Ok(Some(found.bytes().await.map_err(lost)?.to_vec()))
    }

    async fn add(&self, id: &DataKeyId, wrapped: &[u8]) -> Result<CreateOutcome, PortError> {
        let payload = wrapped.to_vec().into();
        let path = Path::from(id.as_str());
        let put = self.store.put_opts(&path, payload, PutMode::Create.into());
        match put.await {
            Ok(_) => Ok(CreateOutcome::Created),
            Err(Error::AlreadyExists { .. }) => Ok(CreateOutcome::Existed),
            Err(error) => Err(failed("store", id, error)),
        }
    }
}
