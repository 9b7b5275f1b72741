//! Forms of the older implementation (document 004): the platform gives the machine its
//! credentials, and key names are in base64.

use core::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use tec_core::secret::SecretBytes;

use super::UriError;
use super::query::{Extent, Parsed, Writer};

/// A cloud key, used with the permissions of the machine's own identity.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlatformKey {
    /// `kms://aws?keyPolicy=&kekID=`
    Aws {
        /// JSON policy that a new key would get.
        key_policy: String,
        /// The wrapping key.
        kek: String,
    },
    /// `kms://azure-kms?name=&type=&kekID=`
    AzureVault {
        /// Name of the vault.
        name: String,
        /// Domain of the vault.
        kind: String,
        /// The wrapping key.
        kek: String,
    },
    /// `kms://azure-hsm?name=&kekID=`
    AzureHsm {
        /// Name of the managed HSM.
        name: String,
        /// The wrapping key.
        kek: String,
    },
    /// `kms://gcp?project=&location=&keyRing=&protectionLvl=&kekID=`
    Gcp {
        /// Project.
        project: String,
        /// Location.
        location: String,
        /// Key ring.
        key_ring: String,
        /// Protection of a new key: 1 is software, 2 a hardware module (Google Cloud KMS,
        /// `ProtectionLevel`).
        protection_level: u32,
        /// The wrapping key.
        kek: String,
    },
}

const KEK: &str = "kekID";
const LEVEL: &str = "protectionLvl";

impl PlatformKey {
    /// Host of its URI.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Aws { .. } => "aws",
            Self::AzureVault { .. } => "azure-kms",
            Self::AzureHsm { .. } => "azure-hsm",
            Self::Gcp { .. } => "gcp",
        }
    }

    /// `None` for a URI in any other form.
    pub(super) fn parse(from: &mut Parsed<'_>) -> Result<Option<Self>, UriError> {
        let by_name = matches!(from.kind, "azure-kms" | "azure-hsm");
        if !by_name && !from.has(KEK) {
            return Ok(None);
        }
        Ok(Some(match from.kind {
            "aws" => Self::Aws { key_policy: from.text("keyPolicy")?, kek: kek(from)? },
            "azure-kms" => Self::AzureVault {
                name: from.name("name")?,
                kind: from.name("type")?,
                kek: kek(from)?,
            },
            "azure-hsm" => Self::AzureHsm { name: from.name("name")?, kek: kek(from)? },
            "gcp" => Self::Gcp {
                project: from.name("project")?,
                location: from.name("location")?,
                key_ring: from.name("keyRing")?,
                protection_level: level(from)?,
                kek: kek(from)?,
            },
            _ => return Ok(None),
        }))
    }

    pub(super) fn write(&self, to: Writer) -> Writer {
        let encoded = |kek: &str| URL_SAFE.encode(kek);
        match self {
            Self::Aws { key_policy, kek } => {
                to.with("keyPolicy", key_policy.as_bytes()).with(KEK, encoded(kek).as_bytes())
            }
            Self::AzureVault { name, kind, kek } => to
                .with("name", name.as_bytes())
                .with("type", kind.as_bytes())
                .with(KEK, encoded(kek).as_bytes()),
            Self::AzureHsm { name, kek } => {
                to.with("name", name.as_bytes()).with(KEK, encoded(kek).as_bytes())
            }
            Self::Gcp { project, location, key_ring, protection_level, kek } => to
                .with("project", project.as_bytes())
                .with("location", location.as_bytes())
                .with("keyRing", key_ring.as_bytes())
                .with(LEVEL, protection_level.to_string().as_bytes())
                .with(KEK, encoded(kek).as_bytes()),
        }
    }
}

fn kek(from: &mut Parsed<'_>) -> Result<String, UriError> {
    let decoded = URL_SAFE.decode(from.text(KEK)?).ok();
    let name = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
    name.filter(|name| !name.is_empty()).ok_or(UriError::Encoding {
        parameter: KEK,
        form: "a name in base64 of the URL-safe alphabet, padded",
    })
}

fn level(from: &mut Parsed<'_>) -> Result<u32, UriError> {
    let digits = from.text(LEVEL)?;
    // `parse` would accept a sign.
    let level = digits.parse().ok().filter(|level: &u32| level.to_string() == digits);
    level.ok_or(UriError::Encoding { parameter: LEVEL, form: "a number" })
}

/// A cloud bucket, used with the permissions of the machine's own identity.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlatformBucket {
    /// `storage://aws?bucket=`
    Aws {
        /// Name.
        bucket: String,
    },
    /// `storage://gcp?project=&bucket=`, also with `projects`: the older implementation wrote one
    /// and read the other.
    Gcp {
        /// Project.
        project: String,
        /// Name.
        bucket: String,
    },
}

impl PlatformBucket {
    /// Host of its URI.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Aws { .. } => "aws",
            Self::Gcp { .. } => "gcp",
        }
    }

    /// `None` for a URI in any other form.
    pub(super) fn parse(from: &mut Parsed<'_>) -> Result<Option<Self>, UriError> {
        let is_newer =
            ["region", "accessKeyID", "accessKey", "endpoint"].iter().any(|one| from.has(one));
        match from.kind {
            "aws" if !is_newer => {
                let bucket = from.name("bucket")?;
                Ok(Some(Self::Aws { bucket }))
            }
            "gcp" if from.has("project") || from.has("projects") => {
                let of = ["project", "projects"].into_iter().find(|one| from.has(one));
                Ok(Some(Self::Gcp {
                    project: from.name(of.unwrap_or("project"))?,
                    bucket: from.name("bucket")?,
                }))
            }
            _ => Ok(None),
        }
    }

    pub(super) fn write(&self, to: Writer) -> Writer {
        match self {
            Self::Aws { bucket } => to.with("bucket", bucket.as_bytes()),
            Self::Gcp { project, bucket } => {
                to.with("project", project.as_bytes()).with("bucket", bucket.as_bytes())
            }
        }
    }
}

/// An account of Azure Storage with its key, in the form that Azure provides (Microsoft, "Configure
/// Azure Storage connection strings").
#[derive(Debug)]
#[non_exhaustive]
pub struct AzureConnection {
    /// Container.
    pub container: String,
    /// Storage account.
    pub account: String,
    /// Its key, in base64.
    pub key: SecretBytes,
    /// URL of its blobs, with a path if one server has many accounts.
    pub endpoint: String,
    text: SecretBytes,
}

/// Default domain, if the connection string names none.
const SUFFIX: &str = "core.windows.net";

impl AzureConnection {
    /// Distinguishes these URIs from other Azure URIs.
    pub(super) const PARAMETER: &'static str = "connectionString";

    pub(super) fn take(from: &mut Parsed<'_>) -> Result<Self, UriError> {
        let container = from.name("container")?;
        let text = from.secret(Self::PARAMETER)?;
        let parsed = std::str::from_utf8(text.expose("take its parts")).ok();
        let parts = parsed.and_then(Parts::of).ok_or(UriError::Encoding {
            parameter: Self::PARAMETER,
            form: "that of an account with its key, over TLS or on this machine",
        })?;
        Ok(Self {
            container,
            account: parts.account.to_owned(),
            key: SecretBytes::new(parts.key.as_bytes().to_vec()),
            endpoint: parts.endpoint,
            text,
        })
    }

    /// The key is part of the connection string, which can name its account in several ways.
    pub(super) fn write(&self, to: Writer, extent: Extent, why: &'static str) -> Writer {
        let to = to.with("container", self.container.as_bytes());
        match extent {
            Extent::Whole => to.with(Self::PARAMETER, self.text.expose(why)),
            Extent::Named => to
                .with("account", self.account.as_bytes())
                .with("endpoint", self.endpoint.as_bytes()),
        }
    }
}

struct Parts<'t> {
    account: &'t str,
    key: &'t str,
    endpoint: String,
}

impl<'t> Parts<'t> {
    fn of(text: &'t str) -> Option<Self> {
        let member = |name: &str| {
            let mut all = text.split(';').filter_map(|one| one.split_once('='));
            all.find(|(found, _)| *found == name).map(|(_, value)| value)
        };
        let account = member("AccountName").filter(|one| super::query::is_name(one))?;
        let key = member("AccountKey").filter(|key| !key.is_empty())?;
        STANDARD.decode(key).ok()?;
        let endpoint = if let Some(url) = member("BlobEndpoint") {
            url.trim_end_matches('/').to_owned()
        } else {
            let protocol = member("DefaultEndpointsProtocol")?;
            let suffix = member("EndpointSuffix").unwrap_or(SUFFIX);
            format!("{protocol}://{account}.blob.{suffix}")
        };
        let server = endpoint.strip_suffix(&format!("/{account}"));
        let server = FromStr::from_str(server.unwrap_or(&endpoint)).ok();
        server.filter(super::query::is_protected)?;
        Some(Self { account, key, endpoint })
    }
}
