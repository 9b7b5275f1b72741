//! The vault as a target of calls.

use std::time::Instant;

use tec_core::port::{PortError, PortErrorKind};
use tec_core::secret::SecretBytes;
use tec_core::service::vault::{Method, Request, Response};

use super::Http;

/// Header that marks a call as meant for the vault; a browser cannot forge it.
const REQUEST: (&str, &[u8]) = ("x-vault-request", b"true");

/// A vault.
#[derive(Clone, Debug)]
pub struct Vault(Http);

impl Vault {
    /// Uses these calls.
    pub fn new(http: Http) -> Self {
        Self(http)
    }

    /// Makes a call.
    ///
    /// # Errors
    /// Kind `Unavailable` if there is no answer. A refusal is an answer.
    ///
    /// # Cancel safety
    /// When dropped, the call may or may not have happened.
    pub async fn call(&self, request: &Request) -> Result<Response, PortError> {
        let (method, query) = match request.method {
            Method::Get => (::http::Method::GET, ""),
            Method::List => (::http::Method::GET, "?list=true"),
            Method::Post => (::http::Method::POST, ""),
            Method::Delete => (::http::Method::DELETE, ""),
        };
        let path = format!("/v1/{}{query}", request.path);
        let mark = SecretBytes::new(REQUEST.1.to_vec());
        let mut headers = vec![(REQUEST.0, &mark)];
        if let Some(token) = &request.token {
            headers.push(("x-vault-token", token));
        }
        let began = Instant::now();
        let reply =
            self.0.call(method, &path, &headers, request.body.as_ref()).await.map_err(|error| {
                PortError::new(PortErrorKind::Unavailable, "call the vault").because(error)
            })?;
        let millis = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::debug!(path = %request.path, status = reply.status, millis, "vault answered");
        Ok(Response::new(reply.status, reply.body))
    }
}
