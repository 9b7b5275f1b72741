//! Calls of the admin API: bounded, with deadlines, and with failures in classes.

use std::sync::Arc;

use reqwest::header::CONTENT_TYPE;
use reqwest::{Method, StatusCode};
use rustls::crypto::CryptoProvider;
use serde::de::IgnoredAny;
use serde_json::Value;
use tec_core::endpoint::Endpoint;
use tec_core::port::Clock;
use zeroize::Zeroizing;

use super::error::AdminError;
use super::token::AdminKey;
use crate::client::http::{Answer, Server, readable};
use crate::client::{CallError, Deadlines, SetupError};

/// Largest answer: a reference value, with room to spare.
const MAX_ANSWER: usize = 1024 * 1024;

/// One server, and the admin key for it.
#[derive(derive_more::Debug)]
#[debug("Channel({:?})", server.url)]
pub(super) struct Channel {
    server: Server,
    key: AdminKey,
    clock: Arc<dyn Clock>,
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
        Self { method, place, content }
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
        Ok(Self { server: Server::new(endpoint, deadlines, provider)?, key, clock })
    }

    pub(super) fn malformed(&self, at: &'static str) -> AdminError {
        self.server.malformed(at).into()
    }

    /// Makes a call. Only status 200 with no body or with JSON counts as success: a page from some
    /// intermediary does not.
    pub(super) async fn call(&self, call: Call<'_>) -> Result<Zeroizing<Vec<u8>>, AdminError> {
        let mut request = self.server.request(call.method, call.place);
        request = request.bearer_auth(self.key.token(&*self.clock));
        if let Some((sort, body)) = call.content {
            request = request.header(CONTENT_TYPE, sort).body(body);
        }
        let Answer { status, body, .. } = self.server.send(request, MAX_ANSWER).await?;
        match status {
            StatusCode::OK if body.is_empty() || is_json(&body) => Ok(body),
            StatusCode::OK => Err(self.malformed("the body")),
            StatusCode::PAYLOAD_TOO_LARGE => Err(AdminError::TooLarge(self.server.url.clone())),
            _ => Err(self.refusal(&body)?),
        }
    }

    fn refusal(&self, body: &[u8]) -> Result<AdminError, CallError> {
        let body = self.server.refused(body)?;
        Ok(AdminError::Refused {
            server: self.server.url.clone(),
            kind: body.error_kind(),
            detail: readable(&body.detail),
        })
    }
}

fn is_json(body: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(body).is_ok()
}
