//! Azure Key Vault and managed HSMs, over REST.

use crate::derive::DataKeyId;
use crate::envelope::KeyWrapper;
use crate::uri::{AzureKey, escape};
use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::header::CONTENT_TYPE;
use serde::Deserialize;
use serde_json::json;
use tec_core::port::PortError;
use tec_core::secret::SecretBytes;
use zeroize::{ZeroizeOnDrop, Zeroizing};

use super::http::{CallError, ask, client};

/// Base URL of the service that issues tokens.
const LOGIN: &str = "https://login.microsoftonline.com";
const VERSION: &str = "api-version=7.4";
/// The only algorithm supported by keys of both services that encrypts securely (RFC 8017, section 7.1).
const ALGORITHM: &str = "RSA-OAEP-256";

/// An RSA key. The stored value is the version of the key, a line feed, and the wrapped bytes: a new version
/// does not unwrap what an old one wrapped.
///
/// # Security
/// Anyone who knows the public key can wrap with RSA: unlike the other services, this one does not prove that
/// we created a stored key. Write access to the storage must be as restricted as the use of the key.
#[derive(Debug)]
pub(super) struct KeyVault {
    key: AzureKey,
    login: String,
    vault: String,
    client: reqwest::Client,
}

#[derive(Deserialize, ZeroizeOnDrop)]
struct Token {
    access_token: String,
}

#[derive(Deserialize)]
struct Wrapped {
    kid: String,
    value: String,
}

#[derive(Deserialize, ZeroizeOnDrop)]
struct Unwrapped {
    value: String,
}

impl KeyVault {
    pub(super) fn new(key: AzureKey) -> Result<Self, PortError> {
        let vault = format!("https://{}.{}", key.vault_name, key.vault_type);
        Self::at(key, LOGIN.to_owned(), vault)
    }

    /// Uses both services at these URLs, for tests.
    pub(super) fn at(key: AzureKey, login: String, vault: String) -> Result<Self, PortError> {
        let client = client(None, None).map_err(|error| error.during("reach Azure Key Vault"))?;
        Ok(Self { key, login, vault, client })
    }

    async fn token(&self) -> Result<Token, CallError> {
        let (tenant, kind) = (&self.key.tenant_id, &self.key.vault_type);
        let mut form = Zeroizing::new(String::from("grant_type=client_credentials"));
        let secret = self.key.client_secret.expose("log in");
        let scope = format!("https://{kind}/.default");
        for (name, value) in [
            ("client_id", self.key.client_id.as_bytes()),
            ("client_secret", secret),
            ("scope", scope.as_bytes()),
        ] {
            form.push('&');
            form.push_str(name);
            form.push('=');
            escape(value, &mut form);
        }
        let url = format!("{}/{tenant}/oauth2/v2.0/token", self.login);
        let post = self.client.post(url);
        let post = post.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        ask(post.body(form.as_bytes().to_vec()), "access_token").await
    }

    async fn request(
        &self,
        path: &str,
        body: &Zeroizing<String>,
    ) -> Result<reqwest::RequestBuilder, CallError> {
        let token = self.token().await?;
        let name = &self.key.key_name;
        let url = format!("{}/keys/{name}/{path}?{VERSION}", self.vault);
        let post = self.client.post(url).bearer_auth(&token.access_token);
        let post = post.header(CONTENT_TYPE, "application/json");
        Ok(post.body(body.as_bytes().to_vec()))
    }

    async fn wrap_key(&self, plain: &SecretBytes) -> Result<Vec<u8>, CallError> {
        let plain = Zeroizing::new(URL_SAFE_NO_PAD.encode(plain.expose("wrap it")));
        let body = Zeroizing::new(format!(r#"{{"alg":"{ALGORITHM}","value":"{}"}}"#, *plain));
        let answer: Wrapped = ask(self.request("wrapkey", &body).await?, "kid and value").await?;
        let version = answer.kid.rsplit('/').next().filter(|one| is_version(one));
        let version = version.ok_or(CallError::Malformed("a version in kid"))?;
        Ok(format!("{version}\n{}", answer.value).into_bytes())
    }

    async fn unwrap_key(&self, wrapped: &[u8]) -> Result<SecretBytes, CallError> {
        let text = std::str::from_utf8(wrapped).map_err(|_| CallError::Foreign)?;
        let (version, value) = text.split_once('\n').ok_or(CallError::Foreign)?;
        if !is_version(version) {
            return Err(CallError::Foreign);
        }
        let body = Zeroizing::new(json!({"alg": ALGORITHM, "value": value}).to_string());
        let path = format!("{version}/unwrapkey");
        let answer: Unwrapped = ask(self.request(&path, &body).await?, "value").await?;
        let plain = URL_SAFE_NO_PAD.decode(&answer.value);
        plain.map(SecretBytes::new).map_err(|_| CallError::Malformed("value in base64"))
    }
}

/// The value becomes part of a path.
fn is_version(text: &str) -> bool {
    !text.is_empty() && text.len() <= 64 && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

#[async_trait]
impl KeyWrapper for KeyVault {
    async fn wrap(&self, _id: &DataKeyId, plain: &SecretBytes) -> Result<Vec<u8>, PortError> {
        let wrapped = self.wrap_key(plain).await;
        wrapped.map_err(|error| error.during("wrap a data key by Azure Key Vault"))
    }

    async fn unwrap(&self, _id: &DataKeyId, wrapped: &[u8]) -> Result<SecretBytes, PortError> {
        let plain = self.unwrap_key(wrapped).await;
        plain.map_err(|error| error.during("unwrap a data key by Azure Key Vault"))
    }
}
