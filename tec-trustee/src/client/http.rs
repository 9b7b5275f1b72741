//! HTTP calls: bounded, with deadlines, and with failures in classes.

use std::error::Error;
use std::sync::Arc;

use reqwest::header::{CONTENT_TYPE, COOKIE, SET_COOKIE};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use rustls::CertificateError;
use rustls::crypto::CryptoProvider;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tec_core::code::Code;
use tec_core::endpoint::{BaseUrl, Endpoint};
use tec_core::port::causes;
use tec_core::rotation::KeyMark;
use zeroize::Zeroizing;

use super::{CallError, Deadlines, RcarError, SetupError, Stage, tls_config};
use crate::rotation::MARK;
use crate::wire::{BASE_PATH, ErrorBody, SESSION_COOKIE};

/// Largest answer: a resource of 1 MiB in base64, with room to spare.
const MAX_ANSWER: usize = 2 * 1024 * 1024;
/// Largest session cookie that is kept (RFC 6265, section 6.1).
const MAX_COOKIE: usize = 4096;
/// Longest part of a server's message that is kept.
const MAX_DETAIL: usize = 512;

/// One server.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) url: BaseUrl,
    client: Client,
}

/// What a server answered.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Zeroizing<Vec<u8>>,
    cookie: Option<String>,
}

/// One call.
pub(super) struct Call<'a> {
    method: Method,
    place: &'a str,
    body: Option<Vec<u8>>,
    cookie: Option<&'a str>,
    shown: Option<KeyMark>,
    stage: Stage,
}

impl<'a> Call<'a> {
    pub(super) fn post(place: &'a str, body: &impl Serialize, cookie: Option<&'a str>) -> Self {
        Self {
            method: Method::POST,
            place,
            // Our own types always serialize.
            body: Some(serde_json::to_vec(body).unwrap_or_default()),
            cookie,
            shown: None,
            stage: Stage::Handshake,
        }
    }

    pub(super) fn put(place: &'a str, body: &impl Serialize, cookie: &'a str) -> Self {
        Self {
            method: Method::PUT,
            stage: Stage::Resource,
            ..Self::post(place, body, Some(cookie))
        }
    }

    /// A call without a session.
    pub(super) fn open(place: &'a str) -> Self {
        Self { cookie: None, ..Self::get(place, "") }
    }

    pub(super) fn get(place: &'a str, cookie: &'a str) -> Self {
        Self {
            method: Method::GET,
            place,
            body: None,
            cookie: Some(cookie),
            shown: None,
            stage: Stage::Resource,
        }
    }

    /// Shows a key, if there is one.
    pub(super) fn with_shown(self, shown: Option<KeyMark>) -> Self {
        Self { shown, ..self }
    }
}

impl Server {
    pub(crate) fn new(
        endpoint: &Endpoint,
        deadlines: Deadlines,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, SetupError> {
        Ok(Self { url: endpoint.url.clone(), client: http_client(endpoint, deadlines, provider)? })
    }

    pub(crate) fn malformed(&self, at: &'static str) -> CallError {
        CallError::Malformed { server: self.url.clone(), at }
    }

    /// A request for a path below the base path.
    pub(crate) fn request(&self, method: Method, place: &str) -> RequestBuilder {
        // One slash between all segments: a KBS does not collapse them (clevis-pin-trustee).
        let url = format!("{}{BASE_PATH}/{place}", self.url);
        self.client.request(method, url)
    }

    /// Sends a request and reads its answer of at most `max` bytes. A server that reports that it cannot
    /// serve now counts as no answer.
    pub(crate) async fn send(
        &self,
        request: RequestBuilder,
        max: usize,
    ) -> Result<Answer, CallError> {
        let sent = request.send().await;
        let response = sent.map_err(|error| self.failed(error))?;
        let status = response.status();
        let cookie = session_cookie(&response);
        let body = bounded_body(response, max).await.map_err(|broken| match broken {
            Broken::TooLong => self.malformed("the size of the body"),
            Broken::Off(error) => self.failed(error),
        })?;
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            return Err(CallError::Unavailable {
                server: self.url.clone(),
                status: status.as_u16(),
            });
        }
        Ok(Answer { status, body, cookie })
    }

    /// The body of a refusal.
    pub(crate) fn refused(&self, body: &[u8]) -> Result<ErrorBody, CallError> {
        serde_json::from_slice(body).map_err(|_| self.malformed("the error body"))
    }

    /// Makes a call. Returns the answer and the session cookie that came with it.
    pub(super) async fn call<T: DeserializeOwned>(
        &self,
        call: Call<'_>,
    ) -> Result<(T, Option<String>), RcarError> {
        let mut request = self.request(call.method, call.place);
        if let Some(cookie) = call.cookie {
            request = request.header(COOKIE, format!("{SESSION_COOKIE}={cookie}"));
        }
        if let Some(mark) = call.shown {
            request = request.header(MARK, mark.digest().to_string());
        }
        if let Some(body) = call.body {
            request = request.header(CONTENT_TYPE, "application/json").body(body);
        }
        let answer = self.send(request, MAX_ANSWER).await?;
        if answer.status != StatusCode::OK {
            return Err(self.denial(&answer.body, call.stage)?);
        }
        let content =
            serde_json::from_slice(&answer.body).map_err(|_| self.malformed("the body"))?;
        Ok((content, answer.cookie))
    }

    fn denial(&self, body: &[u8], stage: Stage) -> Result<RcarError, CallError> {
        let body = self.refused(body)?;
        Ok(RcarError::Denied {
            server: self.url.clone(),
            kind: body.error_kind(),
            code: body.code(),
            attempt: body.attempt(),
            detail: readable(&body.detail),
            stage,
        })
    }

    fn failed(&self, error: reqwest::Error) -> CallError {
        let server = self.url.clone();
        let source = Box::new(error.without_url());
        if tls_code(&*source).is_some() {
            CallError::Tls { server, source }
        } else {
            CallError::Unreachable { server, source }
        }
    }
}

/// A client for one server: it trusts only that server's CA, follows no redirects and uses no proxy.
fn http_client(
    endpoint: &Endpoint,
    deadlines: Deadlines,
    provider: &Arc<CryptoProvider>,
) -> Result<Client, SetupError> {
    if !endpoint.url.is_tls() {
        tracing::warn!(server = %endpoint.url, "the connection to this server is plain HTTP");
    }
    Client::builder()
        .tls_backend_preconfigured(tls_config(endpoint, provider)?)
        .connect_timeout(deadlines.connect)
        .timeout(deadlines.call)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .build()
        .map_err(|error| SetupError::Client {
            server: endpoint.url.clone(),
            source: Box::new(error),
        })
}

/// Why there is no body.
enum Broken {
    /// The body is longer than the limit.
    TooLong,
    /// The body was cut off.
    Off(reqwest::Error),
}

/// Reads the body, at most `max` bytes.
async fn bounded_body(mut response: Response, max: usize) -> Result<Zeroizing<Vec<u8>>, Broken> {
    let mut body = Zeroizing::new(Vec::new());
    while let Some(chunk) = response.chunk().await.map_err(Broken::Off)? {
        if body.len().saturating_add(chunk.len()) > max {
            return Err(Broken::TooLong);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// A server's message, cut to the length that is kept.
pub(crate) fn readable(detail: &str) -> String {
    let printable = detail.chars().filter(|c| !c.is_control());
    printable.take(MAX_DETAIL).collect()
}

/// Code of the TLS error among the causes, including those inside I/O errors. A certificate that is not valid
/// *now* gets its own code, since the local clock may be wrong.
pub fn tls_code(error: &(dyn Error + 'static)) -> Option<Code> {
    causes(error).find_map(<dyn Error>::downcast_ref).map(code_of)
}

fn code_of(error: &rustls::Error) -> Code {
    match error {
        rustls::Error::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        ) => Code::NodeClock,
        _ => Code::TlsFailed,
    }
}

/// The value of the session cookie; `Expires`, `Max-Age` and `Path` are ignored.
fn session_cookie(response: &Response) -> Option<String> {
    let value = response
        .headers()
        .get_all(SET_COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .filter_map(|cookie| cookie.split(';').next())
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(name, _)| *name == SESSION_COOKIE)
        .map(|(_, value)| value)?;
    let legal = !value.is_empty()
        && value.len() <= MAX_COOKIE
        && value.bytes().all(|c| c.is_ascii_graphic() && c != b',');
    legal.then(|| value.to_owned())
}
