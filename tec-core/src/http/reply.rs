//! Replies and bodies.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt as _, Full, Limited};

use super::MAX_BODY;
use crate::code::Code;
use crate::port::{PortError, PortErrorKind};

/// Body of every reply.
pub type ReplyBody = Full<Bytes>;

/// Format of errors: each endpoint keeps the JSON that its existing clients know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplyStyle {
    /// `{"code":<status>,"message":…}`, with `error` added.
    Registration,
    /// `{"status":"error","message":…}`, with `code` added.
    AttestationKey,
    /// `{"type":<URL of the error>,"detail":…}`, the format of a KBS.
    KeyBroker,
}

/// The reply that refuses with `code`: status and title, nothing else. The code is also an
/// extension of the response, for metrics.
pub fn refusal(style: ReplyStyle, code: Code) -> Response<ReplyBody> {
    let status = StatusCode::from_u16(code.http_status()).unwrap_or(StatusCode::BAD_REQUEST);
    let body = match style {
        ReplyStyle::Registration => serde_json::json!({
            "code": status.as_u16(), "message": code.title(), "error": code,
        }),
        ReplyStyle::AttestationKey => serde_json::json!({
            "status": "error", "message": code.title(), "code": code,
        }),
        ReplyStyle::KeyBroker => serde_json::json!({
            "type": "https://github.com/confidential-containers/kbs/errors/AttestationError",
            "detail": format!("{code} {}", code.title()),
        }),
    };
    let mut response = json(status, body.to_string());
    response.extensions_mut().insert(code);
    response
}

pub(super) fn json(status: StatusCode, body: impl Into<Bytes>) -> Response<ReplyBody> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The code for a failed port; `full` if the failure means that a limit is reached.
pub(super) fn code_of(error: &PortError, full: Code) -> Code {
    match (error.kind(), error.code()) {
        // An anchor without authority says so: another one may answer.
        (
            _,
            Some(code @ (Code::AuthorityElsewhere | Code::AnchorStandsBy | Code::AnchorReplaced)),
        ) => code,
        (PortErrorKind::Denied, _) => full,
        _ => Code::RegisterUnavailable,
    }
}

/// Whether the content type is `application/json`, whatever its parameters.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/json"))
}

/// Reads a body of at most [`MAX_BODY`] bytes.
pub(super) async fn read_body<B: Body>(body: B) -> Result<Bytes, Code>
where
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if body.size_hint().lower() > MAX_BODY as u64 {
        return Err(Code::RegisterTooLarge);
    }
    match Limited::new(body, MAX_BODY).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(Code::RegisterTooLarge),
        Err(_) => Err(Code::RegisterMalformed),
    }
}
