//! Google Cloud KMS, over REST.

use crate::derive::DataKeyId;
use crate::envelope::KeyWrapper;
use crate::uri::GcpKey;
use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use object_store::gcp::GcpCredentialProvider;
use reqwest::header::CONTENT_TYPE;
use serde::Deserialize;
use serde_json::json;
use tec_core::port::{PortError, PortErrorKind};
use tec_core::secret::SecretBytes;
use zeroize::{ZeroizeOnDrop, Zeroizing};

use super::bucket;
use super::http::{CallError, ask, client};

/// Base URL of the service.
const BASE: &str = "https://cloudkms.googleapis.com";

/// A symmetric key; the service itself finds the version that wrapped a value.
#[derive(derive_more::Debug)]
#[debug("GcpKms({url:?})")]
pub(super) struct GcpKms {
    url: String,
    credentials: GcpCredentialProvider,
    client: reqwest::Client,
}

#[derive(Deserialize)]
struct Encrypted {
    ciphertext: String,
}

#[derive(Deserialize, ZeroizeOnDrop)]
struct Decrypted {
    plaintext: String,
}

impl GcpKms {
    pub(super) fn new(key: &GcpKey) -> Result<Self, PortError> {
        Self::at(key, BASE)
    }

    /// Uses the service at this URL, for tests.
    pub(super) fn at(key: &GcpKey, base: &str) -> Result<Self, PortError> {
        // Credentials are the same for all services; the client for buckets finds and renews them.
        let google = bucket::google(&key.credentials_path, bucket::NO_BUCKET)?;
        let google = google.build().map_err(|error| {
            PortError::new(PortErrorKind::Invalid, "read the credentials of Google Cloud")
                .because(error)
        })?;
        let (project, location) = (&key.project_id, &key.location);
        let (ring, name) = (&key.key_ring, &key.key_name);
        Ok(Self {
            url: format!(
                "{base}/v1/projects/{project}/locations/{location}/keyRings/{ring}/cryptoKeys/{name}"
            ),
            credentials: google.credentials().clone(),
            client: client(None, None).map_err(|error| error.during("reach Google Cloud KMS"))?,
        })
    }

    async fn request(
        &self,
        operation: &str,
        body: &Zeroizing<String>,
    ) -> Result<reqwest::RequestBuilder, PortError> {
        let token = self.credentials.get_credential().await.map_err(|error| {
            PortError::new(PortErrorKind::Unavailable, "log in to Google Cloud").because(error)
        })?;
        let post = self.client.post(format!("{}:{operation}", self.url));
        let post = post.bearer_auth(&token.bearer);
        let post = post.header(CONTENT_TYPE, "application/json");
        Ok(post.body(body.as_bytes().to_vec()))
    }
}

fn decoded(text: &str, wanted: &'static str) -> Result<Vec<u8>, CallError> {
    STANDARD.decode(text).map_err(|_| CallError::Malformed(wanted))
}

#[async_trait]
impl KeyWrapper for GcpKms {
    async fn wrap(&self, id: &DataKeyId, plain: &SecretBytes) -> Result<Vec<u8>, PortError> {
        let plain = Zeroizing::new(STANDARD.encode(plain.expose("wrap it")));
        let bound = STANDARD.encode(id.as_str());
        let body = Zeroizing::new(format!(
            r#"{{"plaintext":"{}","additionalAuthenticatedData":"{bound}"}}"#,
            *plain
        ));
        let request = self.request("encrypt", &body).await?;
        let answer = ask::<Encrypted>(request, "ciphertext").await;
        let wrapped = answer.and_then(|one| decoded(&one.ciphertext, "ciphertext in base64"));
        wrapped.map_err(|error| error.during("wrap a data key by Google Cloud KMS"))
    }

    async fn unwrap(&self, id: &DataKeyId, wrapped: &[u8]) -> Result<SecretBytes, PortError> {
        let body = json!({
            "ciphertext": STANDARD.encode(wrapped),
            "additionalAuthenticatedData": STANDARD.encode(id.as_str()),
        });
        let body = Zeroizing::new(body.to_string());
        let request = self.request("decrypt", &body).await?;
        let answer = ask::<Decrypted>(request, "plaintext").await;
        let plain = answer.and_then(|one| decoded(&one.plaintext, "plaintext in base64"));
        plain
            .map(SecretBytes::new)
            .map_err(|error| error.during("unwrap a data key by Google Cloud KMS"))
    }
}
