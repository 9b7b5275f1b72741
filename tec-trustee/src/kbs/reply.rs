//! Replies (KBS attestation protocol 0.4.0).

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, SET_COOKIE};
use axum::http::{HeaderValue, Response, StatusCode};
use serde::Serialize;
use tec_core::code::Code;
use tec_core::id::AttemptId;
use tec_core::port::{PortError, chain};
use tec_core::time::Timestamp;
use time::OffsetDateTime;

use crate::wire::{ErrorBody, ErrorKind, SESSION_COOKIE};

/// Why a request is refused, as reported to the client.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: u16,
    body: Option<ErrorBody>,
    code: Option<Code>,
}

impl Refusal {
    pub(crate) fn new(kind: &ErrorKind, detail: impl Into<String>) -> Self {
        Self { status: kind.http_status(), body: Some(ErrorBody::new(kind, detail)), code: None }
    }

    /// The code of a refused attempt.
    pub(crate) fn code(&self) -> Option<Code> {
        self.code
    }

    /// Code and title, and where to look up more. Nothing about what was seen.
    pub(crate) fn with_code(kind: &ErrorKind, code: Code, attempt: Option<AttemptId>) -> Self {
        let title = code.title();
        let detail = match attempt {
            Some(attempt) => format!("{code} {title} (attempt {attempt})"),
            None => format!("{code} {title}"),
        };
        Self { code: Some(code), ..Self::new(kind, detail) }
    }

    /// A port failed; the chain of causes is for the log.
    pub(crate) fn port(kind: &ErrorKind, error: &PortError) -> Self {
        tracing::error!(error = chain(error), "a port of the KBS failed");
        Self::with_code(kind, error.code().unwrap_or(Code::StoreUnavailable), None)
    }

    /// The body is larger than allowed: 413, and no JSON.
    pub(crate) fn too_large() -> Self {
        Self::bare(413)
    }

    /// Without JSON, as Trustee's HTTP stack answers requests that never reach its API.
    pub(crate) fn bare(status: u16) -> Self {
        Self { status, body: None, code: None }
    }

    /// Temporarily unavailable: a bound is reached, or a service behind this one does not answer. Trustee has
    /// no such bounds, so the status is ours.
    pub(crate) fn busy(detail: &str) -> Self {
        Self { status: 503, ..Self::new(&ErrorKind::AttestationError, detail) }
    }

    /// There is no room for one more session.
    pub(crate) fn too_many_sessions() -> Self {
        tracing::warn!("the table of sessions is full");
        Self::busy("too many sessions, try again later")
    }

    /// No Content-Type, like the real server.
    pub(crate) fn into_response(self) -> Response<Body> {
        let body = self
            .body
            .and_then(|body| serde_json::to_vec(&body).ok())
            .map_or_else(Body::empty, Body::from);
        let mut response = Response::new(body);
        *response.status_mut() =
            StatusCode::from_u16(self.status).unwrap_or(StatusCode::UNAUTHORIZED);
        // For the counters.
        if let Some(code) = self.code {
            response.extensions_mut().insert(code);
        }
        response
    }
}

pub(crate) type Reply = Result<Response<Body>, Refusal>;

/// An attestation is refused before there is an attempt.
pub(crate) fn refused(detail: &str) -> Refusal {
    Refusal::new(&ErrorKind::AttestationError, detail)
}

/// A port failed during an attestation.
pub(crate) fn port(error: &PortError) -> Refusal {
    Refusal::port(&ErrorKind::AttestationError, error)
}

/// A port failed after the attestation.
pub(crate) fn plugin(error: &PortError) -> Refusal {
    Refusal::port(&ErrorKind::PluginInternalError, error)
}

/// Nothing is served at this path.
pub(crate) fn no_such_plugin() -> Refusal {
    Refusal::new(&ErrorKind::PluginNotFound, "there is no such plugin")
}

/// Neither an attested session nor a token.
pub(crate) fn no_token() -> Refusal {
    Refusal::new(&ErrorKind::TokenNotFound, "attestation token not found")
}

/// 200 without a body.
pub(super) fn empty(content_type: Option<&'static str>) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    if let Some(content_type) = content_type {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    }
    response
}

/// 200 with text, as Prometheus reads it.
pub(super) fn metrics(text: String) -> Response<Body> {
    let mut response = empty(Some("text/plain; version=0.0.4"));
    *response.body_mut() = Body::from(text);
    response
}

/// 200 with JSON.
pub(crate) fn json(value: &impl Serialize) -> Reply {
    let body = serde_json::to_vec(value)
        .map_err(|_| Refusal::new(&ErrorKind::SerdeError, "the response cannot be written"))?;
    let mut response = empty(Some("application/json"));
    *response.body_mut() = Body::from(body);
    Ok(response)
}

/// Adds the session cookie. `Max-Age` wins over `Expires` in cookie jars, so a client whose clock is wrong
/// keeps its session (seen with Trustee v0.21).
pub(super) fn with_session(
    mut response: Response<Body>,
    session: &str,
    expires: Timestamp,
    now: Timestamp,
) -> Response<Body> {
    let max_age = expires.unix_seconds().saturating_sub(now.unix_seconds());
    let expires = imf_fixdate(expires);
    let cookie = format!("{SESSION_COOKIE}={session}; Expires={expires}; Max-Age={max_age}");
    if let Ok(value) = HeaderValue::try_from(cookie) {
        response.headers_mut().insert(SET_COOKIE, value);
    }
    response
}

/// `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110, section 5.6.7).
fn imf_fixdate(time: Timestamp) -> String {
    let time = OffsetDateTime::from_unix_timestamp(time.unix_seconds())
        .unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (hour, minute, second) = time.to_hms();
    format!(
        "{:.3}, {:02} {:.3} {:04} {hour:02}:{minute:02}:{second:02} GMT",
        time.weekday().to_string(),
        time.day(),
        time.month().to_string(),
        time.year(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_rfc_9110() {
        let time = Timestamp::from_unix_seconds(784_111_777);
        assert_eq!(imf_fixdate(time), "Sun, 06 Nov 1994 08:49:37 GMT");
    }
}
