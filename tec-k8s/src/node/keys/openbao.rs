//! The transit engine of OpenBao or Vault.

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::CONTENT_TYPE;
use serde::Deserialize;
use serde_json::json;
use tec_core::node::derive::DataKeyId;
use tec_core::node::envelope::KeyWrapper;
use tec_core::node::uri::OpenBaoKey;
use tec_core::port::PortError;
use tec_core::secret::SecretBytes;
use zeroize::ZeroizeOnDrop;
use zeroize::Zeroizing;

use super::http::CallError;
use super::http::ask;
use super::http::client;

/// Header of the token (OpenBao, "HTTP API").
const TOKEN: &str = "X-Vault-Token";

/// A key of the engine. What is stored is the ciphertext as the engine writes it, with the version
/// of the key: a rotated key unwraps what older versions wrapped.
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

impl OpenBaoTransit {
    pub(super) fn new(key: OpenBaoKey) -> Result<Self, PortError> {
        let client = client(key.ca.as_deref(), Some(&key.url));
        let client = client.map_err(|error| error.during("reach OpenBao"))?;
        Ok(Self { key, client })
    }

    fn request(&self, operation: &str, body: &Zeroizing<String>) -> reqwest::RequestBuilder {
        let (url, mount, name) = (&self.key.url, &self.key.mount, &self.key.key_name);
        let token = self.key.token.expose("prove that we may use the key");
        let post = self
            .client
            .post(format!("{url}/v1/{mount}/{operation}/{name}"));
        post.header(TOKEN, token)
            .header(CONTENT_TYPE, "application/json")
            .body(body.as_bytes().to_vec())
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
        plain
            .map(SecretBytes::new)
            .map_err(|_| CallError::Malformed("data.plaintext in base64"))
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
}
