//! The transport: HTTP, trusting only the CA in the configuration.

use async_trait::async_trait;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, Url};
use serde_json::Value;
use tec_core::code::Code;
use tec_core::endpoint::Endpoint;
use tec_trustee::client::{SetupError, tls_code, tls_config};

use super::{RegisterError, Registrar, Reply, Target};
use crate::settings::Settings;

/// Maximum number of bytes of a reply to read: a challenge for a 4096-bit key takes 2 KiB.
const MAX_REPLY: usize = 64 * 1024;

/// A registration server.
#[derive(Debug)]
pub struct HttpRegistrar {
    client: Client,
    registration: Url,
    proof: Url,
}

impl HttpRegistrar {
    /// A server, by the full URL of its registration, with the CA that vouches for it (may be empty).
    ///
    /// # Errors
    /// `Address` if the URL or the CA cannot be used.
    ///
    /// # Security
    /// If the configuration has a CA, only that CA is trusted; otherwise https needs a publicly trusted
    /// certificate. A CA together with plain http is refused, because a configured CA means that TLS is
    /// expected. Redirects and proxies are not followed.
    pub fn new(url: &str, ca_pem: &str, settings: &Settings) -> Result<Self, RegisterError> {
        let wrong = |reason| RegisterError::Address { url: url.to_owned(), reason };
        let text = url.trim_end_matches('/');
        let registration = Url::parse(text).map_err(|_| wrong("it is not a URL"))?;
        let proof = Url::parse(&format!("{text}/proof")).map_err(|_| wrong("it is not a URL"))?;
        if registration.query().is_some() || registration.fragment().is_some() {
            return Err(wrong("it has a query or a fragment"));
        }
        match (registration.scheme(), ca_pem.trim()) {
            ("http", "") => tracing::warn!(
                %url,
                "the attestation key is registered without TLS, as configured"
            ),
            ("http", _) => return Err(wrong("there is a CA, but the scheme is http")),
            ("https", _) => {}
            _ => return Err(wrong("the scheme is neither http nor https")),
        }
        let server = registration.origin().ascii_serialization().parse();
        let server = Endpoint::new(server.map_err(|_| wrong("it is not a URL"))?, ca_pem);
        let tls = tls_config(&server, &settings.provider).map_err(|error| match error {
            SetupError::Ca { .. } => wrong("its CA is not a PEM bundle of certificates"),
            _ => wrong("its CA cannot be used"),
        })?;
        let client = Client::builder()
            .tls_backend_preconfigured(tls)
            .timeout(settings.timeout)
            .connect_timeout(settings.timeout)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .map_err(|_| wrong("its CA cannot be used"))?;
        Ok(Self { client, registration, proof })
    }

    async fn try_put(&self, url: &Url, body: &Value) -> Result<Reply, reqwest::Error> {
        let mut response = self
            .client
            .put(url.clone())
            .header(CONTENT_TYPE, "application/json")
            .body(body.to_string())
            .send()
            .await?;
        let status = response.status().as_u16();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            let room = MAX_REPLY - body.len();
            body.extend(chunk.iter().take(room));
            if body.len() == MAX_REPLY {
                break;
            }
        }
        Ok(Reply { status, body })
    }
}

#[async_trait]
impl Registrar for HttpRegistrar {
    async fn put(&self, target: Target, body: &Value) -> Result<Reply, RegisterError> {
        let url = match target {
            Target::Registration => &self.registration,
            Target::Proof => &self.proof,
        };
        self.try_put(url, body).await.map_err(|error| RegisterError::Unanswered {
            url: url.to_string(),
            code: tls_code(&error).unwrap_or(Code::ServerUnreachable),
            // The URL is already in the error.
            source: error.without_url().into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn registrar(url: &str, ca_pem: &str) -> Result<HttpRegistrar, RegisterError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        HttpRegistrar::new(url, ca_pem, &Settings::new(provider))
    }

    #[test]
    fn addresses_that_are_unsafe_or_unusable_are_refused() {
        for (url, cert) in [
            ("register-ak", ""),
            ("ftp://a/register-ak", ""),
            ("http://a/register-ak", "PEM"),
            ("https://a/register-ak", "not PEM"),
            ("http://a/register-ak?x=1", ""),
        ] {
            let error = registrar(url, cert);
            assert!(matches!(error, Err(RegisterError::Address { .. })), "{url} {cert}");
        }
    }

    #[test]
    fn the_proof_lies_below_the_registration() {
        let registrar = registrar("http://a:8001/register-ak/", "").unwrap();
        assert_eq!(registrar.registration.as_str(), "http://a:8001/register-ak");
        assert_eq!(registrar.proof.as_str(), "http://a:8001/register-ak/proof");
    }
}
