//! The vault as a target of calls.

use std::fs::File;
use std::io::Write;
use std::time::Instant;

use tec_core::port::{PortError, PortErrorKind};
use tec_core::secret::SecretBytes;

use crate::vault::{Method, Request, Response};

use super::{Http, HttpError, Reply};

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
            Method::Get => (reqwest::Method::GET, ""),
            Method::List => (reqwest::Method::GET, "?list=true"),
            Method::Post => (reqwest::Method::POST, ""),
            Method::Delete => (reqwest::Method::DELETE, ""),
        };
        let path = format!("/v1/{}{query}", request.path);
        let mark = SecretBytes::new(REQUEST.1.to_vec());
        let headers = headers(request, &mark);
        let began = Instant::now();
        let reply = self.0.call(method, &path, &headers, request.body.as_ref()).await;
        let answer = answer(reply)?;
        let millis = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::debug!(path = %request.path, status = answer.status, millis, "vault answered");
        Ok(answer)
    }

    /// Writes the answer to a request that reads to `to`, if its status is 200.
    ///
    /// # Errors
    /// Kind `Unavailable` if there is no whole answer, or it cannot be written. A refusal is an answer.
    ///
    /// # Cancel safety
    /// When dropped, part of the answer may have been written.
    pub async fn fetch(
        &self,
        request: &Request,
        to: &mut (dyn Write + Send),
    ) -> Result<Response, PortError> {
        let path = format!("/v1/{}", request.path);
        let mark = SecretBytes::new(REQUEST.1.to_vec());
        answer(self.0.download(&path, &headers(request, &mark), to).await)
    }

    /// Makes a request with a file as its body.
    ///
    /// # Errors
    /// Same as [`call`](Self::call).
    ///
    /// # Cancel safety
    /// When dropped, the call may or may not have happened.
    pub async fn send(&self, request: &Request, file: File) -> Result<Response, PortError> {
        let path = format!("/v1/{}", request.path);
        let mark = SecretBytes::new(REQUEST.1.to_vec());
        answer(self.0.upload(&path, &headers(request, &mark), file).await)
    }
}

fn headers<'a>(
    request: &'a Request,
    mark: &'a SecretBytes,
) -> Vec<(&'static str, &'a SecretBytes)> {
    let token = request.token.as_ref().map(|token| ("x-vault-token", token));
    [(REQUEST.0, mark)].into_iter().chain(token).collect()
}

fn answer(reply: Result<Reply, HttpError>) -> Result<Response, PortError> {
    let unavailable = PortError::new(PortErrorKind::Unavailable, "call the vault");
    let reply = reply.map_err(|error| unavailable.because(error))?;
    Ok(Response::new(reply.status, reply.body))
}
