//! The instance metadata service of AWS, version 2: every request has a session token.

use crate::metadata::Instance;
use async_trait::async_trait;
use serde::Deserialize;

use super::{MetadataError, Record, Tagged, parsed, tag};
use crate::host::http::{Ask, HttpError};

/// Its address, the same on every instance (Amazon EC2, "Use the Instance Metadata Service").
const DEFAULT: &str = "http://169.254.169.254";
const SESSION: &str = "/latest/api/token";
const IDENTITY: &str = "/latest/dynamic/instance-identity/document";
/// The name by which AWS's controllers know the node.
const HOST_NAME: &str = "/latest/meta-data/local-hostname";
/// Tags are available if the instance was launched with that option.
const TAGS: &str = "/latest/meta-data/tags/instance";
const LIFETIME_HEADER: &str = "X-aws-ec2-metadata-token-ttl-seconds";
/// Lifetime of a session, in seconds: enough for one query.
const LIFETIME: &str = "60";
const TOKEN_HEADER: &str = "X-aws-ec2-metadata-token";
const NOT_FOUND: u16 = 404;

/// Reads the identity document and tags of the instance.
#[derive(Clone, Debug)]
pub struct AwsMetadata {
    base: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Identity {
    instance_id: String,
    availability_zone: String,
    private_ip: String,
}

/// A session with the service.
struct Session<'m> {
    metadata: &'m AwsMetadata,
    token: String,
}

impl Session<'_> {
    async fn ask(&self, path: &str) -> Result<Vec<u8>, MetadataError> {
        let metadata = self.metadata;
        let request = Ask::get(format!("{}{path}", metadata.base));
        Ok(request.header(TOKEN_HEADER, self.token.clone()).body().await?)
    }

    async fn text(&self, path: &str, name: &'static str) -> Result<String, MetadataError> {
        match self.ask(path).await {
            Ok(text) => {
                let text = String::from_utf8(text).map_err(|_| MetadataError::Member(name))?;
                Ok(text.trim().to_owned())
            }
            Err(MetadataError::Http(HttpError::Status(NOT_FOUND))) => {
                Err(MetadataError::Member(name))
            }
            Err(error) => Err(error),
        }
    }

    async fn tag(&self, name: &'static str) -> Result<String, MetadataError> {
        self.text(&format!("{TAGS}/{name}"), name).await
    }

    async fn instance(&self) -> Result<Instance, MetadataError> {
        let identity: Identity = parsed(&self.ask(IDENTITY).await?)?;
        let (zone, id) = (&identity.availability_zone, &identity.instance_id);
        let record = Record {
            name: self.text(HOST_NAME, "local-hostname").await?,
            provider_id: format!("aws:///{zone}/{id}"),
            role: self.tag(tag::ROLE).await?.into(),
            address: identity.private_ip,
        };
        record.instance()
    }
}

impl AwsMetadata {
    /// Uses this base URL, or the address that is the same on every instance.
    pub fn new(base: Option<String>) -> Self {
        let base = base.unwrap_or_else(|| DEFAULT.to_owned());
        Self { base: base.trim_end_matches('/').to_owned() }
    }

    async fn session(&self) -> Result<Session<'_>, MetadataError> {
        let request = Ask::put(format!("{}{SESSION}", self.base));
        let token = request.header(LIFETIME_HEADER, LIFETIME).body().await?;
        let token = String::from_utf8(token).ok();
        let token = token.filter(|token| !token.trim().is_empty());
        Ok(Session { metadata: self, token: token.ok_or(MetadataError::Member("token"))? })
    }
}

#[async_trait]
impl Tagged for AwsMetadata {
    async fn instance(&self) -> Result<Instance, MetadataError> {
        self.session().await?.instance().await
    }

    async fn tag(&self, name: &'static str) -> Result<String, MetadataError> {
        self.session().await?.tag(name).await
    }
}
