//! Calls of the admin API: bounded, with deadlines, and their failures in classes.

use std::fmt;
use std::sync::Arc;

use reqwest::Client;
use reqwest::Method;
use reqwest::StatusCode;
use reqwest::header::CONTENT_TYPE;
use rustls::crypto::CryptoProvider;
use serde::de::IgnoredAny;
use serde_json::Value;
use tec_core::endpoint::BaseUrl;
use tec_core::endpoint::Endpoint;
use tec_core::port::Clock;
use zeroize::Zeroizing;

use super::error::AdminError;
use super::token::AdminKey;
use crate::client::Deadlines;
use crate::client::SetupError;
use crate::client::http::Broken;
use crate::client::http::bounded_body;
use crate::client::http::http_client;
use crate::client::http::is_tls;
use crate::client::http::readable;
use crate::wire::BASE_PATH;
use crate::wire::ErrorBody;

/// Largest answer: a reference value, with room.
const MAX_ANSWER: usize = 1024 * 1024;

/// One server, and the key that opens it.
pub(super) struct Channel {
    url: BaseUrl,
    client: Client,
    key: AdminKey,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Channel").field(&self.url).finish()
    }
}

/// One call.
pub(super) struct Call<'a> {
    method: Method,
    place: &'a str,
    content: Option<(&'static str, Vec<u8>)>,
}

impl<'a> Call<'a> {
    pub(super) fn post(place: &'a str, body: &Value) -> Self {
        let body = body.to_string().into_bytes();
        Self::with(Method::POST, place, Some(("application/json", body)))
    }

    pub(super) fn post_bytes(place: &'a str, bytes: &[u8]) -> Self {
        let content = ("application/octet-stream", bytes.to_vec());
        Self::with(Method::POST, place, Some(content))
    }

    pub(super) fn get(place: &'a str) -> Self {
        Self::with(Method::GET, place, None)
    }

    pub(super) fn delete(place: &'a str) -> Self {
        Self::with(Method::DELETE, place, None)
    }

    fn with(method: Method, place: &'a str, content: Option<(&'static str, Vec<u8>)>) -> Self {
        Self {
            method,
            place,
            content,
        }
    }
}

impl Channel {
    pub(super) fn new(
        endpoint: &Endpoint,
        key: AdminKey,
        clock: Arc<dyn Clock>,
        deadlines: Deadlines,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, SetupError> {
        let client = http_client(endpoint, deadlines, provider)?;
        Ok(Self {
            url: endpoint.url.clone(),
            client,
            key,
            clock,
        })
    }

    pub(super) fn malformed(&self, at: &'static str) -> AdminError {
        AdminError::Malformed {
            server: self.url.clone(),
            at,
        }
    }

    /// Makes a call. Success is the status 200 and nothing else, with no body or with JSON: a page of
    /// something that stands in between is not success.
    pub(super) async fn call(&self, call: Call<'_>) -> Result<Zeroizing<Vec<u8>>, AdminError> {
        let url = format!("{}{BASE_PATH}/{}", self.url, call.place);
        let mut request = self.client.request(call.method, url);
        request = request.bearer_auth(self.key.token(&*self.clock));
        if let Some((sort, body)) = call.content {
            request = request.header(CONTENT_TYPE, sort).body(body);
        }
        let response = request.send().await.map_err(|error| self.failed(error))?;
        let status = response.status();
        let body = bounded_body(response, MAX_ANSWER)
            .await
            .map_err(|broken| match broken {
                Broken::TooLong => self.malformed("the size of the body"),
                Broken::Off(error) => self.failed(error),
            })?;
        match status {
            StatusCode::OK if body.is_empty() || is_json(&body) => Ok(body),
            StatusCode::OK => Err(self.malformed("the body")),
            _ => Err(self.refusal(status, &body)),
        }
    }

    fn refusal(&self, status: StatusCode, body: &[u8]) -> AdminError {
        let server = self.url.clone();
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            return AdminError::Unavailable {
                server,
                status: status.as_u16(),
            };
        }
        if status == StatusCode::PAYLOAD_TOO_LARGE {
            return AdminError::TooLarge { server };
        }
        match serde_json::from_slice::<ErrorBody>(body) {
            Ok(body) => AdminError::Refused {
                server,
                kind: body.error_kind(),
                detail: readable(&body.detail),
            },
            Err(_) => self.malformed("the error body"),
        }
    }

    fn failed(&self, error: reqwest::Error) -> AdminError {
        let server = self.url.clone();
        let source = Box::new(error.without_url());
        if is_tls(&*source) {
            AdminError::Tls { server, source }
        } else {
            AdminError::Unreachable { server, source }
        }
    }
}

fn is_json(body: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(body).is_ok()
}
