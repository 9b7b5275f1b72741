//! The transport: HTTP, trusting only the CA in the configuration.

use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Certificate, Client, Url};
use serde_json::Value;
use tec_core::code::Code;
use tec_trustee::client::tls_code;

use super::{RegisterError, Registrar, Reply, Target};

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
    pub fn new(url: &str, ca_pem: &str, timeout: Duration) -> Result<Self, RegisterError> {
        let wrong = |reason| RegisterError::Address { url: url.to_owned(), reason };
        let text = url.trim_end_matches('/');
        let registration = Url::parse(text).map_err(|_| wrong("it is not a URL"))?;
        let proof = Url::parse(&format!("{text}/proof")).map_err(|_| wrong("it is not a URL"))?;
        if registration.query().is_some() || registration.fragment().is_some() {
            return Err(wrong("it has a query or a fragment"));
        }
        let mut builder = Client::builder()
            .timeout(timeout)
            .connect_timeout(timeout)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy();
        match (registration.scheme(), ca_pem.trim()) {
            ("http", "") => {
                tracing::warn!(
                    %url,
                    "the attestation key is registered without TLS, as configured"
                );
                // An initial file system may lack the platform's CAs, and they are not needed.
                builder = builder.tls_certs_only([]);
            }
            ("http", _) => return Err(wrong("there is a CA, but the scheme is http")),
            ("https", "") => {}
            ("https", pem) => {
                let cas = Certificate::from_pem_bundle(pem.as_bytes())
                    .ok()
                    .filter(|cas| !cas.is_empty())
                    .ok_or_else(|| wrong("its CA is not a PEM bundle of certificates"))?;
                builder = builder.tls_certs_only(cas);
            }
            _ => return Err(wrong("the scheme is neither http nor https")),
        }
        let client = builder.build().map_err(|_| wrong("its CA cannot be used"))?;
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
    use super::*;

    fn registrar(url: &str, ca_pem: &str) -> Result<HttpRegistrar, RegisterError> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        HttpRegistrar::new(url, ca_pem, Duration::from_secs(1))
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
