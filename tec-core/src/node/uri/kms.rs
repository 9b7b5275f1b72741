//! Where data keys come from.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use zeroize::Zeroizing;

use super::UriError;
use super::query::Parsed;
use super::query::Writer;
use crate::node::derive::MasterSecret;
use crate::secret::SecretBytes;

const SCHEME: &str = "kms";

/// A key of AWS KMS.
#[derive(Debug)]
#[non_exhaustive]
pub struct AwsKey {
    /// Region.
    pub region: String,
    /// Who asks.
    pub access_key_id: String,
    /// With which secret.
    pub access_key: SecretBytes,
    /// Name of the key that wraps.
    pub key_name: String,
}

/// A key of Azure Key Vault or a managed HSM.
#[derive(Debug)]
#[non_exhaustive]
pub struct AzureKey {
    /// Tenant.
    pub tenant_id: String,
    /// Who asks.
    pub client_id: String,
    /// With which secret.
    pub client_secret: SecretBytes,
    /// Name of the vault.
    pub vault_name: String,
    /// Domain of the vault, such as `vault.azure.net` or `managedhsm.azure.net`.
    pub vault_type: String,
    /// Name of the key that wraps.
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
    /// File of the credentials on the node.
    pub credentials_path: String,
    /// Name of the key that wraps.
    pub key_name: String,
}

/// A resource of a Trustee that attests the node.
#[derive(Debug)]
#[non_exhaustive]
pub struct TrusteeKey {
    /// URL of the KBS.
    pub url: String,
    /// Path of the master secret, three segments.
    pub path: String,
}

/// A key of the transit engine of OpenBao or Vault.
#[derive(Debug)]
#[non_exhaustive]
pub struct OpenBaoKey {
    /// URL of the server.
    pub url: String,
    /// Mount of the engine.
    pub mount: String,
    /// Name of the key that wraps.
    pub key_name: String,
    /// Token that may use it.
    pub token: SecretBytes,
}

/// Where data keys come from.
#[derive(Debug)]
#[non_exhaustive]
pub enum KmsUri {
    /// They are derived from a master secret: `kms://cluster-kms?key=&salt=`.
    Cluster(MasterSecret),
    /// `kms://aws?region=&accessKeyID=&accessKey=&keyName=`
    Aws(AwsKey),
    /// `kms://azure?tenantID=&clientID=&clientSecret=&vaultName=&vaultType=&keyName=`
    Azure(AzureKey),
    /// `kms://gcp?projectID=&location=&keyRing=&credentialsPath=&keyName=`
    Gcp(GcpKey),
    /// `kms://trustee?url=&path=`
    Trustee(TrusteeKey),
    /// `kms://openbao?url=&mount=&keyName=&token=`
    OpenBao(OpenBaoKey),
}

impl KmsUri {
    /// Parses the text.
    ///
    /// # Errors
    /// [`UriError`], which names parameters and never values.
    pub fn parse(text: &str) -> Result<Self, UriError> {
        let mut from = Parsed::parse(SCHEME, text)?;
        let uri = match from.kind {
            "cluster-kms" => Self::Cluster(MasterSecret::new(
                base64(&mut from, "key")?,
                base64(&mut from, "salt")?,
            )),
            "aws" => Self::Aws(AwsKey {
                region: from.text("region")?,
                access_key_id: from.text("accessKeyID")?,
                access_key: from.secret("accessKey")?,
                key_name: from.text("keyName")?,
            }),
            "azure" => Self::Azure(AzureKey {
                tenant_id: from.text("tenantID")?,
                client_id: from.text("clientID")?,
                client_secret: from.secret("clientSecret")?,
                vault_name: from.text("vaultName")?,
                vault_type: from.text("vaultType")?,
                key_name: from.text("keyName")?,
            }),
            "gcp" => Self::Gcp(GcpKey {
                project_id: from.text("projectID")?,
                location: from.text("location")?,
                key_ring: from.text("keyRing")?,
                credentials_path: from.text("credentialsPath")?,
                key_name: from.text("keyName")?,
            }),
            "trustee" => Self::Trustee(TrusteeKey {
                url: from.text("url")?,
                path: from.text("path")?,
            }),
            "openbao" => Self::OpenBao(OpenBaoKey {
                url: from.text("url")?,
                mount: from.text("mount")?,
                key_name: from.text("keyName")?,
                token: from.secret("token")?,
            }),
            _ => return Err(UriError::UnknownType { scheme: SCHEME }),
        };
        from.finish().map(|()| uri)
    }

    /// The text, which [`parse`](Self::parse) reads back.
    pub fn to_secret_text(&self, why: &'static str) -> SecretBytes {
        let new = |kind| Writer::new(SCHEME, kind);
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
                .with("accessKeyID", key.access_key_id.as_bytes())
                .with("accessKey", key.access_key.expose(why))
                .with("keyName", key.key_name.as_bytes()),
            Self::Azure(key) => new("azure")
                .with("tenantID", key.tenant_id.as_bytes())
                .with("clientID", key.client_id.as_bytes())
                .with("clientSecret", key.client_secret.expose(why))
                .with("vaultName", key.vault_name.as_bytes())
                .with("vaultType", key.vault_type.as_bytes())
                .with("keyName", key.key_name.as_bytes()),
            Self::Gcp(key) => new("gcp")
                .with("projectID", key.project_id.as_bytes())
                .with("location", key.location.as_bytes())
                .with("keyRing", key.key_ring.as_bytes())
                .with("credentialsPath", key.credentials_path.as_bytes())
                .with("keyName", key.key_name.as_bytes()),
            Self::Trustee(key) => new("trustee")
                .with("url", key.url.as_bytes())
                .with("path", key.path.as_bytes()),
            Self::OpenBao(key) => new("openbao")
                .with("url", key.url.as_bytes())
                .with("mount", key.mount.as_bytes())
                .with("keyName", key.key_name.as_bytes())
                .with("token", key.token.expose(why)),
        }
        .finish()
    }
}

/// URL-safe base64 with padding, as peers write it.
fn base64(from: &mut Parsed<'_>, parameter: &'static str) -> Result<SecretBytes, UriError> {
    let value = from.value(parameter)?;
    let decoded = URL_SAFE
        .decode(value.as_bytes())
        .map_err(|_| UriError::Encoding {
            parameter,
            form: "base64 of the URL-safe alphabet, padded",
        })?;
    Ok(SecretBytes::new(decoded))
}
