//! Where data keys come from.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use tec_core::digest::Sha256Digest;
use tec_core::endpoint::BaseUrl;
use tec_core::id::ResourcePath;
use tec_core::secret::SecretBytes;
use zeroize::Zeroizing;

use super::UriError;
use super::query::{Extent, Parsed, Writer};
use crate::derive::MasterSecret;

const SCHEME: &str = "kms";

/// A key of AWS KMS.
#[derive(Debug)]
#[non_exhaustive]
pub struct AwsKey {
    /// Region.
    pub region: String,
    /// Access key ID.
    pub access_key_id: String,
    /// Its secret.
    pub access_key: SecretBytes,
    /// Alias of the wrapping key, without `alias/`.
    pub key_name: String,
    /// URL of the server; default: the one of the region.
    pub endpoint: Option<BaseUrl>,
}

/// A key of Azure Key Vault or a managed HSM.
#[derive(Debug)]
#[non_exhaustive]
pub struct AzureKey {
    /// Tenant.
    pub tenant_id: String,
    /// Client ID.
    pub client_id: String,
    /// Its secret.
    pub client_secret: SecretBytes,
    /// Name of the vault.
    pub vault_name: String,
    /// Domain of the vault, such as `vault.azure.net` or `managedhsm.azure.net`.
    pub vault_type: String,
    /// Name of the wrapping key.
    pub key_name: String,
}

/// A key of Google Cloud KMS.
#[derive(Debug)]
#[non_exhaustive]
pub struct GcpKey {
    /// Project.
    pub project_id: String,
    /// Location.
    pub location: String,
    /// Key ring.
    pub key_ring: String,
    /// Credentials file on the node.
    pub credentials_path: String,
    /// Name of the wrapping key.
    pub key_name: String,
}

/// A resource of a Trustee, released after the node attests.
#[derive(Debug)]
#[non_exhaustive]
pub struct TrusteeKey {
    /// URL of the KBS.
    pub url: BaseUrl,
    /// Path of the master secret, in the form that [`MasterSecret::from_json`] accepts.
    pub path: ResourcePath,
    /// CA of the KBS, PEM; default: the CAs of the host.
    pub ca: Option<String>,
}

/// A key of the transit engine of OpenBao.
#[derive(Debug)]
#[non_exhaustive]
pub struct OpenBaoKey {
    /// URL of the server.
    pub url: BaseUrl,
    /// Mount path of the engine.
    pub mount: String,
    /// Name of the wrapping key.
    pub key_name: String,
    /// Token with permission to use it.
    pub token: SecretBytes,
    /// CA of the server, PEM; default: the CAs of the host.
    pub ca: Option<String>,
}

/// Where data keys come from.
#[derive(Debug)]
#[non_exhaustive]
pub enum KmsUri {
    /// Derived from a master secret: `kms://cluster-kms?key=&salt=`.
    Cluster(MasterSecret),
    /// `kms://aws?region=&accessKeyID=&accessKey=&keyName=[&endpoint=]`
    Aws(AwsKey),
    /// `kms://azure?tenantID=&clientID=&clientSecret=&vaultName=&vaultType=&keyName=`
    Azure(AzureKey),
    /// `kms://gcp?projectID=&location=&keyRing=&credentialsPath=&keyName=`
    Gcp(GcpKey),
    /// Derived from a master secret that a Trustee releases to this node:
    /// `kms://trustee?url=&path=[&ca=]`
    Trustee(TrusteeKey),
    /// `kms://openbao?url=&mount=&keyName=&token=[&ca=]`
    OpenBao(OpenBaoKey),
}

impl KmsUri {
    /// Parses the text.
    ///
    /// # Errors
    /// [`UriError`], which names parameters but never values.
    pub fn parse(text: &str) -> Result<Self, UriError> {
        let mut from = Parsed::parse(SCHEME, text)?;
        let uri = match from.kind {
            "cluster-kms" => Self::Cluster(MasterSecret::new(
                base64(&mut from, "key")?,
                base64(&mut from, "salt")?,
            )),
            "aws" => Self::Aws(AwsKey {
                region: from.name("region")?,
                access_key_id: from.text("accessKeyID")?,
                access_key: from.secret("accessKey")?,
                key_name: from.text("keyName")?,
                endpoint: from.optional_url("endpoint")?,
            }),
            "azure" => Self::Azure(AzureKey {
                tenant_id: from.name("tenantID")?,
                client_id: from.text("clientID")?,
                client_secret: from.secret("clientSecret")?,
                vault_name: from.name("vaultName")?,
                vault_type: from.name("vaultType")?,
                key_name: from.name("keyName")?,
            }),
            "gcp" => Self::Gcp(GcpKey {
                project_id: from.name("projectID")?,
                location: from.name("location")?,
                key_ring: from.name("keyRing")?,
                credentials_path: from.text("credentialsPath")?,
                key_name: from.name("keyName")?,
            }),
            "trustee" => Self::Trustee(TrusteeKey {
                url: from.url("url")?,
                path: resource(&mut from, "path")?,
                ca: from.optional_text("ca")?,
            }),
            "openbao" => Self::OpenBao(OpenBaoKey {
                url: from.url("url")?,
                mount: from.names("mount")?,
                key_name: from.name("keyName")?,
                token: from.secret("token")?,
                ca: from.optional_text("ca")?,
            }),
            _ => return Err(UriError::UnknownType(SCHEME)),
        };
        from.finish().map(|()| uri)
    }

    /// The text, which [`parse`](Self::parse) reads back.
    pub fn to_secret_text(&self, why: &'static str) -> SecretBytes {
        self.text(Extent::Whole, why)
    }

    /// SHA-256 over everything that identifies these keys: a different key changes the digest, different
    /// credentials for the same key do not.
    pub fn identity(&self) -> Sha256Digest {
        const WHY: &str = "another master secret is another key";
        Sha256Digest::of(self.text(Extent::Named, WHY).expose(WHY))
    }

    pub(super) fn text(&self, extent: Extent, why: &'static str) -> SecretBytes {
        let new = |kind| Writer::new(SCHEME, kind, extent);
        match self {
            Self::Cluster(master) => {
                let (key, salt) = master.parts();
                let encode = |part: &SecretBytes| Zeroizing::new(URL_SAFE.encode(part.expose(why)));
                new("cluster-kms")
                    .with("key", encode(key).as_bytes())
                    .with("salt", encode(salt).as_bytes())
            }
            Self::Aws(key) => new("aws")
                .with("region", key.region.as_bytes())
                .with_access("accessKeyID", key.access_key_id.as_bytes())
                .with_access("accessKey", key.access_key.expose(why))
                .with("keyName", key.key_name.as_bytes())
                .with_some("endpoint", key.endpoint.as_ref().map(BaseUrl::as_str)),
            Self::Azure(key) => new("azure")
                .with("tenantID", key.tenant_id.as_bytes())
                .with_access("clientID", key.client_id.as_bytes())
                .with_access("clientSecret", key.client_secret.expose(why))
                .with("vaultName", key.vault_name.as_bytes())
                .with("vaultType", key.vault_type.as_bytes())
                .with("keyName", key.key_name.as_bytes()),
            Self::Gcp(key) => new("gcp")
                .with("projectID", key.project_id.as_bytes())
                .with("location", key.location.as_bytes())
                .with("keyRing", key.key_ring.as_bytes())
                .with_access("credentialsPath", key.credentials_path.as_bytes())
                .with("keyName", key.key_name.as_bytes()),
            Self::Trustee(key) => new("trustee")
                .with("url", key.url.as_str().as_bytes())
                .with("path", key.path.as_str().as_bytes())
                .with_some_access("ca", key.ca.as_deref()),
            Self::OpenBao(key) => new("openbao")
                .with("url", key.url.as_str().as_bytes())
                .with("mount", key.mount.as_bytes())
                .with("keyName", key.key_name.as_bytes())
                .with_access("token", key.token.expose(why))
                .with_some_access("ca", key.ca.as_deref()),
        }
        .finish()
    }
}

fn resource(from: &mut Parsed<'_>, parameter: &'static str) -> Result<ResourcePath, UriError> {
    let path = from.text(parameter)?;
    path.parse().map_err(|_| UriError::Encoding { parameter, form: "a path of three segments" })
}

/// URL-safe base64 with padding, as peers write it.
fn base64(from: &mut Parsed<'_>, parameter: &'static str) -> Result<SecretBytes, UriError> {
    let value = from.value(parameter)?;
    let decoded = URL_SAFE.decode(value.as_bytes()).map_err(|_| UriError::Encoding {
        parameter,
        form: "base64 of the URL-safe alphabet, padded",
    })?;
    Ok(SecretBytes::new(decoded))
}
