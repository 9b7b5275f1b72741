//! Connection strings of Azure Storage.

use core::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tec_core::secret::SecretBytes;

use super::UriError;
use super::query::{Extent, Parsed, Writer};

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
