//! Wrapped keys as objects in a bucket: S3 and compatible servers; with the feature `experimental-clouds`
//! also Azure Blob Storage and Google Cloud Storage.

use std::fmt;
use std::sync::Arc;

use crate::derive::DataKeyId;
use crate::envelope::WrappedKeys;
use crate::uri::{S3Bucket, StorageUri};
use async_trait::async_trait;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt as _, PutMode};
use tec_core::port::{CreateOutcome, PortError, PortErrorKind};

use super::aws::ensure_signable;
#[cfg(feature = "experimental-clouds")]
use super::bucket;
use super::connect::{options, retry, text, unusable};
use super::{KeyServiceError, refused};

/// Maximum size of a wrapped key.
const MAX_OBJECT: u64 = 16 * 1024;

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
        // The URI allows it only for the local machine.
        options = options.with_allow_http(!endpoint.is_tls());
    }
    let built = builder.with_client_options(options).with_retry(retry());
    Ok(Arc::new(built.build().map_err(unusable)?))
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
            #[cfg(feature = "experimental-clouds")]
            StorageUri::Azure(blobs) => ("azure", bucket::azure(blobs)?),
            #[cfg(feature = "experimental-clouds")]
            StorageUri::AzureConnection(account) => ("azure", bucket::azure_account(account)?),
            #[cfg(feature = "experimental-clouds")]
            StorageUri::Gcp(bucket) => ("gcp", bucket::gcp(bucket)?),
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
