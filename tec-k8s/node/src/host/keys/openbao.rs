//! The transit engine of OpenBao.

use std::time::Duration;

use crate::derive::DataKeyId;
use crate::envelope::KeyWrapper;
use crate::uri::OpenBaoKey;
use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use serde::Deserialize;
use serde_json::json;
use tec_core::port::PortError;
use tec_core::secret::SecretBytes;
use zeroize::{ZeroizeOnDrop, Zeroizing};

use super::http::{CallError, ask, client};

/// Header of the token (OpenBao, "HTTP API").
const HEADER: &str = "X-Vault-Token";

/// A key of the engine. The stored value is the ciphertext as the engine writes it, with the version of the
/// key, so that a rotated key unwraps what its older versions wrapped.
#[derive(Debug)]
pub(super) struct OpenBaoTransit {
    key: OpenBaoKey,
    client: reqwest::Client,
}

#[derive(Deserialize)]
struct Encrypted {
    data: Ciphertext,
}

#[derive(Deserialize)]
struct Ciphertext {
    ciphertext: String,
}

#[derive(Deserialize)]
struct Decrypted {
    data: Plaintext,
}

#[derive(Deserialize, ZeroizeOnDrop)]
struct Plaintext {
    plaintext: String,
}

/// A token (OpenBao, "Token auth method": `lookup-self`, `renew-self`); times are in seconds.
#[derive(Deserialize)]
struct Looked {
    data: Token,
}

#[derive(Deserialize)]
struct Token {
    ttl: u64,
    #[serde(default)]
    renewable: bool,
}

#[derive(Deserialize)]
struct Renewed {
    auth: Lease,
}

#[derive(Deserialize)]
struct Lease {
    lease_duration: u64,
}

impl OpenBaoTransit {
    pub(super) fn new(key: OpenBaoKey) -> Result<Self, PortError> {
        let client = client(key.ca.as_deref(), Some(&key.url));
        let client = client.map_err(|error| error.during("reach OpenBao"))?;
        Ok(Self { key, client })
    }

    fn ask(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let token = self.key.token.expose("prove that we may use the key");
        let url = format!("{}/v1/{path}", self.key.url);
        self.client.request(method, url).header(HEADER, token)
    }

    fn request(&self, operation: &str, body: &Zeroizing<String>) -> reqwest::RequestBuilder {
        let (mount, name) = (&self.key.mount, &self.key.key_name);
        self.ask(Method::POST, &format!("{mount}/{operation}/{name}"))
            .header(CONTENT_TYPE, "application/json")
            .body(body.as_bytes().to_vec())
    }

    /// Renews the token; returns half of its remaining lifetime, or `None` if it does not expire.
    async fn renew_token(&self) -> Result<Option<Duration>, CallError> {
        let found = self.ask(Method::GET, "auth/token/lookup-self");
        let found: Looked = ask(found, "data.ttl").await?;
        if found.data.ttl == 0 {
            return Ok(None);
        }
        if !found.data.renewable {
            let seconds = found.data.ttl;
            return Err(CallError::Ends(seconds));
        }
        let renewed = self.ask(Method::POST, "auth/token/renew-self");
        let renewed: Renewed = ask(renewed, "auth.lease_duration").await?;
        Ok(Some(Duration::from_secs((renewed.auth.lease_duration / 2).max(1))))
    }

    async fn encrypt(&self, plain: &SecretBytes) -> Result<Vec<u8>, CallError> {
        let plain = Zeroizing::new(STANDARD.encode(plain.expose("wrap it")));
        let body = Zeroizing::new(format!(r#"{{"plaintext":"{}"}}"#, *plain));
        let answer: Encrypted = ask(self.request("encrypt", &body), "data.ciphertext").await?;
        Ok(answer.data.ciphertext.into_bytes())
    }

    async fn decrypt(&self, wrapped: &[u8]) -> Result<SecretBytes, CallError> {
        let ciphertext = std::str::from_utf8(wrapped).map_err(|_| CallError::Foreign)?;
        let body = Zeroizing::new(json!({"ciphertext": ciphertext}).to_string());
        let answer: Decrypted = ask(self.request("decrypt", &body), "data.plaintext").await?;
        let plain = STANDARD.decode(&answer.data.plaintext);
        plain.map(SecretBytes::new).map_err(|_| CallError::Malformed("data.plaintext in base64"))
    }
}

#[async_trait]
impl KeyWrapper for OpenBaoTransit {
    async fn wrap(&self, _id: &DataKeyId, plain: &SecretBytes) -> Result<Vec<u8>, PortError> {
        let wrapped = self.encrypt(plain).await;
        wrapped.map_err(|error| error.during("wrap a data key by OpenBao"))
    }

    async fn unwrap(&self, _id: &DataKeyId, wrapped: &[u8]) -> Result<SecretBytes, PortError> {
        let plain = self.decrypt(wrapped).await;
        plain.map_err(|error| error.during("unwrap a data key by OpenBao"))
    }

    async fn renew(&self) -> Result<Option<Duration>, PortError> {
        let renewed = self.renew_token().await;
        renewed.map_err(|error| error.during("renew the token of OpenBao"))
    }
}
