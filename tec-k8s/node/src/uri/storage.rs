//! Where wrapped data keys are stored.

use tec_core::digest::Sha256Digest;
use tec_core::endpoint::BaseUrl;
use tec_core::secret::SecretBytes;

use super::UriError;
use super::connection::AzureConnection;
use super::query::{Extent, Parsed, Writer};

const SCHEME: &str = "storage";

/// A bucket of S3 or of an S3-compatible server.
#[derive(Debug)]
#[non_exhaustive]
pub struct S3Bucket {
    /// Name.
    pub bucket: String,
    /// Region.
    pub region: String,
    /// Access key ID.
    pub access_key_id: String,
    /// Its secret.
    pub access_key: SecretBytes,
    /// URL of the server, if it is not AWS.
    pub endpoint: Option<BaseUrl>,
}

/// A container of Azure Blob Storage.
#[derive(Debug)]
#[non_exhaustive]
pub struct AzureBlobs {
    /// Storage account.
    pub account: String,
    /// Container.
    pub container: String,
    /// Tenant.
    pub tenant_id: String,
    /// Client ID.
    pub client_id: String,
    /// Its secret.
    pub client_secret: SecretBytes,
}

/// A bucket of Google Cloud Storage.
#[derive(Debug)]
#[non_exhaustive]
pub struct GcpBucket {
    /// Project.
    pub project_id: String,
    /// Name.
    pub bucket: String,
    /// Credentials file on the node.
    pub credentials_path: String,
}

/// A directory.
#[derive(Debug)]
#[non_exhaustive]
pub struct FileStore {
    /// Absolute path.
    pub path: String,
}

/// Where wrapped data keys are stored.
#[derive(Debug)]
#[non_exhaustive]
pub enum StorageUri {
    /// Nowhere: `storage://no-store`. Only derived keys need no storage.
    NoStore,
    /// `storage://aws?bucket=&region=&accessKeyID=&accessKey=[&endpoint=]`, also `storage://s3`
    S3(S3Bucket),
    /// `storage://azure?account=&container=&tenantID=&clientID=&clientSecret=`
    Azure(AzureBlobs),
    /// `storage://gcp?projectID=&bucket=&credentialsPath=`
    Gcp(GcpBucket),
    /// `storage://azure?container=&connectionString=`
    AzureConnection(AzureConnection),
    /// `storage://file?path=`
    File(FileStore),
}

impl StorageUri {
    /// Parses the text.
    ///
    /// # Errors
    /// [`UriError`], which names parameters but never values.
    pub fn parse(text: &str) -> Result<Self, UriError> {
        let mut from = Parsed::parse(SCHEME, text)?;
        let uri = match from.kind {
            "no-store" => Self::NoStore,
            "aws" | "s3" => Self::S3(S3Bucket {
                bucket: from.name("bucket")?,
                region: from.name("region")?,
                access_key_id: from.text("accessKeyID")?,
                access_key: from.secret("accessKey")?,
                endpoint: from.optional_url("endpoint")?,
            }),
            "azure" if from.has(AzureConnection::PARAMETER) => {
                Self::AzureConnection(AzureConnection::take(&mut from)?)
            }
            "azure" => Self::Azure(AzureBlobs {
                account: from.name("account")?,
                container: from.name("container")?,
                tenant_id: from.name("tenantID")?,
                client_id: from.text("clientID")?,
                client_secret: from.secret("clientSecret")?,
            }),
            "gcp" => Self::Gcp(GcpBucket {
                project_id: from.name("projectID")?,
                bucket: from.name("bucket")?,
                credentials_path: from.text("credentialsPath")?,
            }),
            "file" => Self::File(FileStore { path: absolute(from.text("path")?)? }),
            _ => return Err(UriError::UnknownType(SCHEME)),
        };
        from.finish().map(|()| uri)
    }

    /// The text, which [`parse`](Self::parse) reads back.
    pub fn to_secret_text(&self, why: &'static str) -> SecretBytes {
        self.text(Extent::Whole, why)
    }

    /// SHA-256 over everything that identifies this store: a different store changes the digest, different
    /// credentials for the same store do not.
    pub fn identity(&self) -> Sha256Digest {
        const WHY: &str = "which store it is";
        Sha256Digest::of(self.text(Extent::Named, WHY).expose(WHY))
    }

    pub(super) fn text(&self, extent: Extent, why: &'static str) -> SecretBytes {
        let new = |kind| Writer::new(SCHEME, kind, extent);
        match self {
            Self::NoStore => new("no-store"),
            Self::S3(bucket) => new("aws")
                .with("bucket", bucket.bucket.as_bytes())
                .with("region", bucket.region.as_bytes())
                .with_access("accessKeyID", bucket.access_key_id.as_bytes())
                .with_access("accessKey", bucket.access_key.expose(why))
                .with_some("endpoint", bucket.endpoint.as_ref().map(BaseUrl::as_str)),
            Self::Azure(blobs) => new("azure")
                .with("account", blobs.account.as_bytes())
                .with("container", blobs.container.as_bytes())
                .with("tenantID", blobs.tenant_id.as_bytes())
                .with_access("clientID", blobs.client_id.as_bytes())
                .with_access("clientSecret", blobs.client_secret.expose(why)),
            Self::Gcp(bucket) => new("gcp")
                .with("projectID", bucket.project_id.as_bytes())
                .with("bucket", bucket.bucket.as_bytes())
                .with_access("credentialsPath", bucket.credentials_path.as_bytes()),
            Self::AzureConnection(one) => one.write(new("azure"), extent, why),
            Self::File(store) => new("file").with("path", store.path.as_bytes()),
        }
        .finish()
    }
}

fn absolute(path: String) -> Result<String, UriError> {
    if path.starts_with('/') && !path.split('/').any(|part| part == "..") {
        return Ok(path);
    }
    Err(UriError::Encoding { parameter: "path", form: "an absolute path that leads nowhere up" })
}
