//! Calls to key services: JSON over HTTP, bounded in time and size.

use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, RequestBuilder, StatusCode};
use serde::de::DeserializeOwned;
use tec_core::endpoint::BaseUrl;
use tec_core::port::{PortError, PortErrorKind};
use zeroize::Zeroizing;

/// A connection with its TLS handshake.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Time limit of a whole call; a service with a hardware module takes a second.
const CALL_LIMIT: Duration = Duration::from_secs(30);
/// Largest answer.
const MAX_ANSWER: usize = 64 * 1024;

/// A call to a key service failed. Nothing that was sent or received is part of the text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// No HTTP client can be created.
    #[error("cannot create an HTTP client")]
    Client(#[source] reqwest::Error),
    /// The CA in the URI is invalid.
    #[error("the parameter ca has no certificate in PEM")]
    Ca,
    /// It cannot be reached.
    #[error("cannot reach the key service")]
    Http(#[source] reqwest::Error),
    /// It refused the call.
    #[error("the key service answers {status}{}", reason.as_ref().map(|one| format!(": {one}")).unwrap_or_default())]
    Status {
        /// The status.
        status: u16,
        /// The reason, if the service gives one as a single word.
        reason: Option<String>,
        /// Kind of failure, for the caller.
        kind: PortErrorKind,
    },
    /// The answer is too large.
    #[error("the key service answers with more than {MAX_ANSWER} bytes")]
    TooLarge,
    /// The answer is not as expected.
    #[error("the answer of the key service lacks {0}")]
    Malformed(&'static str),
    /// Our credential is about to expire and cannot be renewed.
    #[error("the token expires in {0} seconds and cannot be renewed")]
    Ends(u64),
    /// The stored value was not wrapped by this service.
    #[error("the stored key was not wrapped by this key service")]
    Foreign,
}

impl CallError {
    pub(super) fn during(self, operation: &'static str) -> PortError {
        let kind = match &self {
            Self::Client(_) => PortErrorKind::Internal,
            Self::Ca | Self::Foreign => PortErrorKind::Invalid,
            Self::Ends(_) => PortErrorKind::Denied,
            Self::Status { kind, .. } => *kind,
            Self::Http(_) | Self::TooLarge | Self::Malformed(_) => PortErrorKind::Unavailable,
        };
        PortError::new(kind, operation).because(self)
    }

    fn status(status: StatusCode) -> Self {
        let kind = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => PortErrorKind::Denied,
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => {
                PortErrorKind::Unavailable
            }
            status if status.is_client_error() => PortErrorKind::Invalid,
            _ => PortErrorKind::Unavailable,
        };
        Self::Status { status: status.as_u16(), reason: None, kind }
    }
}

/// A client that follows no redirects: it would send the token along. Calls to a `server` without TLS stay on
/// this machine and use no proxy, which could read them.
pub(super) fn client(ca: Option<&str>, server: Option<&BaseUrl>) -> Result<Client, CallError> {
    let mut builder = Client::builder()
        .redirect(Policy::none())
        .connect_timeout(CONNECT_LIMIT)
        .timeout(CALL_LIMIT);
    if server.is_some_and(|server| !server.is_tls()) {
        builder = builder.no_proxy();
    }
    if let Some(ca) = ca {
        let roots = Certificate::from_pem_bundle(ca.as_bytes());
        let roots = roots.ok().filter(|roots| !roots.is_empty());
        let roots = roots.ok_or(CallError::Ca)?;
        builder = builder.tls_certs_only(roots);
    }
    builder.build().map_err(CallError::Client)
}

/// Status and body of an answer, whatever the status.
pub(super) async fn exchange(
    request: RequestBuilder,
) -> Result<(StatusCode, Zeroizing<Vec<u8>>), CallError> {
    let lost = |error: reqwest::Error| CallError::Http(error.without_url());
    let mut response = request.send().await.map_err(lost)?;
    let status = response.status();
    let mut all = Zeroizing::new(Vec::with_capacity(MAX_ANSWER));
    while let Some(chunk) = response.chunk().await.map_err(lost)? {
        if all.len() + chunk.len() > MAX_ANSWER {
            return Err(CallError::TooLarge);
        }
        all.extend_from_slice(&chunk);
    }
    Ok((status, all))
}

/// The answer to a call that succeeded; `wanted` is what it must contain.
pub(super) async fn ask<T: DeserializeOwned>(
    request: RequestBuilder,
    wanted: &'static str,
) -> Result<T, CallError> {
    let (status, body) = exchange(request).await?;
    if !status.is_success() {
        return Err(CallError::status(status));
    }
    parsed(&body, wanted)
}

pub(super) fn parsed<T: DeserializeOwned>(
    body: &[u8],
    wanted: &'static str,
) -> Result<T, CallError> {
    // A serde error may quote a value.
    serde_json::from_slice(body).map_err(|_| CallError::Malformed(wanted))
}
