//! The three exchanges that the guard takes part in.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::http::HeaderName;
use axum::http::HeaderValue;
use axum::http::Request;
use axum::http::Response;
use axum::http::StatusCode;
use axum::http::header::COOKIE;
use axum::http::header::SET_COOKIE;
use serde::Deserialize as _;
use serde_json::Value;
use tec_core::attest::Tee;
use tec_core::attest::VerifyError;
use tec_core::code::Code;
use tec_core::flow::ReleaseError;
use tec_core::id::AttemptId;
use tec_core::id::ResourcePath;
use tec_core::port::EntropyRng;
use tec_core::port::PortError;
use tokio::time::timeout;

use super::BrokerAnswer;
use super::Guard;
use super::Passage;
use super::proxy::Whole;
use super::proxy::whole;
use crate::kbs::bearer;
use crate::kbs::check;
use crate::kbs::reply::Refusal;
use crate::kbs::reply::Reply;
use crate::kbs::session::SessionId;
use crate::kbs::session_cookie;
use crate::wire::AttestRequest;
use crate::wire::AttestResponse;
use crate::wire::AuthRequest;
use crate::wire::Challenge;
use crate::wire::ErrorBody;
use crate::wire::ErrorKind;
use crate::wire::SESSION_COOKIE;

/// Largest body of `POST auth`, in either direction; real ones have about 200 bytes.
const MAX_AUTH: usize = 64 * 1024;
/// Largest answer to `POST attest`: a token that holds all claims; real ones have about 8 KiB.
const MAX_TOKEN: usize = 4 * 1024 * 1024;
/// Largest error body that is looked at.
const MAX_ERROR: usize = 64 * 1024;
/// Code of a refusal by the broker. A header, so that the broker's body stays as it is.
const CODE: HeaderName = HeaderName::from_static("tec-code");
/// Number of the attempt, for `tec explain`.
const ATTEMPT: HeaderName = HeaderName::from_static("tec-attempt");

fn refused(detail: &str) -> Refusal {
    Refusal::new(&ErrorKind::AttestationError, detail)
}

fn port(error: &PortError) -> Refusal {
    Refusal::port(&ErrorKind::AttestationError, error)
}

impl Guard {
    /// `POST auth`: the nonce is remembered with the session.
    pub(super) async fn auth(&self, request: Request<Body>) -> Reply {
        let (parts, body) = request.into_parts();
        let body = read(body, MAX_AUTH, self.0.config.body_timeout).await?;
        let tee = self.tee_of(&body)?;
        let now = self.0.config.clock.now();
        if !self.0.sessions.has_room(now) {
            tracing::warn!("the table of sessions is full");
            return Err(Refusal::busy("too many sessions, try again later"));
        }
        let request = Request::from_parts(parts, Body::from(body));
        let answer = whole(self.0.upstream.stream(request).await?, MAX_AUTH).await?;
        if answer.answer.status() == StatusCode::OK {
            let opened = begun(&answer)
                .is_some_and(|(id, nonce)| self.0.sessions.open(id, tee, &nonce, now));
            if !opened {
                return Err(refused("the key broker opened no session"));
            }
        }
        Ok(answer.into_response())
    }

    /// The sort of evidence that is announced, if it may come at all.
    fn tee_of(&self, body: &[u8]) -> Result<Tee, Refusal> {
        let request: AuthRequest = serde_json::from_slice(body).map_err(|_| {
            Refusal::with_code(&ErrorKind::AttestationError, Code::EvidenceMalformed, None)
        })?;
        Tee::deserialize(Value::String(request.tee))
            .ok()
            .filter(|tee| self.0.config.tees.contains(tee))
            .ok_or_else(|| refused("evidence of this sort is not accepted"))
    }

    /// `POST attest`: only what our own verifier accepts goes on.
    pub(super) async fn attest(&self, request: Request<Body>) -> Reply {
        let (parts, body) = request.into_parts();
        let id = only_session(&parts.headers).ok_or_else(|| refused("cookie not found"))?;
        let now = self.0.config.clock.now();
        let (tee, nonce) = self
            .0
            .sessions
            .begin(id, now)
            .ok_or_else(|| refused("session not found"))?;
        let _permit = self.0.in_flight.acquire().await;
        let max = self.0.config.max_payload;
        let body = read(body, max, self.0.config.body_timeout).await?;
        let passage = self.check(tee, &nonce, &body).await?;
        let request = Request::from_parts(parts, Body::from(body));
        let answer = whole(self.0.upstream.stream(request).await?, MAX_TOKEN).await?;
        if answer.answer.status() == StatusCode::OK {
            let token = serde_json::from_slice::<AttestResponse>(&answer.body)
                .map_err(|_| refused("the key broker issued no token"))?;
            self.0.sessions.finish(id, Arc::new(passage), &token.token);
            self.0.metrics.attempted(None);
            return Ok(answer.into_response());
        }
        self.refused_by_broker(&passage, None, answer).await
    }

    /// Verifies the evidence and asks the gatekeeper.
    async fn check(&self, tee: Tee, nonce: &str, body: &[u8]) -> Result<Passage, Refusal> {
        let config = &self.0.config;
        let evidence = match serde_json::from_slice::<AttestRequest>(body) {
            Ok(request) if request.runtime_data.nonce == nonce => {
                check::verify(&*config.verifier, tee, &request).await.0
            }
            Ok(request) => Err(check::stale(&request)),
            Err(_) => Err(check::unreadable()),
        };
        let attempt = AttemptId::random(&mut EntropyRng::new(&*config.entropy));
        let passage = config
            .gatekeeper
            .admit(attempt, &evidence)
            .await
            .map_err(|error| port(&error))?;
        match refusal_of(&passage, &evidence) {
            None => Ok(passage),
            Some(code) => {
                tracing::warn!(%attempt, %code, "evidence stopped");
                self.0.metrics.attempted(Some(code));
                let kind = ErrorKind::AttestationError;
                Err(Refusal::with_code(&kind, code, Some(attempt)))
            }
        }
    }

    /// `GET resource`: for sessions, and tokens, that came through this guard.
    pub(super) async fn resource(&self, request: Request<Body>, tail: &str) -> Reply {
        let passage = self.identify(request.headers()).ok_or_else(|| {
            Refusal::new(&ErrorKind::TokenNotFound, "attestation token not found")
        })?;
        let Ok(path) = tail
            .strip_prefix('/')
            .unwrap_or(tail)
            .parse::<ResourcePath>()
        else {
            // The Trustee knows how to refuse it.
            return self.0.upstream.stream(request).await;
        };
        let gatekeeper = &self.0.config.gatekeeper;
        gatekeeper
            .permit(&passage, &path)
            .await
            .map_err(|error| self.not_permitted(&passage, &error))?;
        let answer = self.0.upstream.stream(request).await?;
        if answer.status() != StatusCode::OK {
            let answer = whole(answer, MAX_ERROR).await?;
            return self.refused_by_broker(&passage, Some(&path), answer).await;
        }
        gatekeeper
            .settle(&passage, Some(&path), BrokerAnswer::Granted)
            .await
            .map_err(|error| port(&error))?;
        self.0.metrics.released();
        tracing::info!(attempt = %passage.attempt(), resource = %path, "resource passed");
        Ok(answer)
    }

    /// The attested session of the cookie is tried first, then a bearer token (contract 1.3).
    fn identify(&self, headers: &HeaderMap) -> Option<Arc<Passage>> {
        let now = self.0.config.clock.now();
        let sessions = &self.0.sessions;
        if has_session_cookie(headers)
            && let Some(passage) = only_session(headers).and_then(|id| sessions.passage(id, now))
        {
            return Some(passage);
        }
        sessions.passage_of_token(bearer(headers)?, now)
    }

    fn not_permitted(&self, passage: &Passage, error: &ReleaseError) -> Refusal {
        let code = match error {
            ReleaseError::Refused { code } => *code,
            ReleaseError::Port(error) => return port(error),
            _ => Code::ReleaseDenied,
        };
        self.0.metrics.attempted(Some(code));
        Refusal::with_code(&ErrorKind::PolicyDeny, code, Some(passage.attempt()))
    }

    /// Passes a refusal on as it is, with a code and the number of the attempt beside it.
    async fn refused_by_broker(
        &self,
        passage: &Passage,
        path: Option<&ResourcePath>,
        answer: Whole,
    ) -> Reply {
        let kind = serde_json::from_slice::<ErrorBody>(&answer.body)
            .map_or(ErrorKind::Other(String::new()), |body| body.error_kind());
        let code = code_of(&kind);
        self.0
            .config
            .gatekeeper
            .settle(passage, path, BrokerAnswer::Refused(code))
            .await
            .map_err(|error| port(&error))?;
        self.0.metrics.attempted(Some(code));
        let mut response = answer.into_response();
        add(&mut response, CODE, code.as_str());
        add(&mut response, ATTEMPT, &passage.attempt().to_string());
        Ok(response)
    }
}

fn add(response: &mut Response<Body>, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

/// What a refusal of the broker means on the ladder.
fn code_of(kind: &ErrorKind) -> Code {
    match kind {
        ErrorKind::PluginInternalError => Code::KeyMissing,
        ErrorKind::PolicyEngineError | ErrorKind::ParsePolicyError => Code::PolicyInvalid,
        _ => Code::ReleaseDenied,
    }
}

/// Evidence that the verifier refused never passes, whatever the gatekeeper says.
fn refusal_of<T>(passage: &Passage, evidence: &Result<T, VerifyError>) -> Option<Code> {
    let by_verifier = evidence.as_ref().err().map(crate::kbs::code_of);
    passage.refused().or(by_verifier)
}

async fn read(body: Body, max: usize, within: Duration) -> Result<Bytes, Refusal> {
    timeout(within, axum::body::to_bytes(body, max))
        .await
        .map_err(|_elapsed| refused("the body did not come in time"))?
        .map_err(|_| Refusal::too_large())
}

fn has_session_cookie(headers: &HeaderMap) -> bool {
    session_cookies(headers) > 0
}

/// The session, unless several are named: the Trustee might take another one.
fn only_session(headers: &HeaderMap) -> Option<SessionId> {
    session_cookie(headers).filter(|_| session_cookies(headers) == 1)
}

fn session_cookies(headers: &HeaderMap) -> usize {
    headers
        .get_all(COOKIE)
        .iter()
        .flat_map(|value| value.as_bytes().windows(SESSION_COOKIE.len()))
        .filter(|window| window.eq_ignore_ascii_case(SESSION_COOKIE.as_bytes()))
        .count()
}

/// Session and nonce of an answer to `POST auth`.
fn begun(answer: &Whole) -> Option<(SessionId, String)> {
    let cookie = answer.answer.headers().get(SET_COOKIE)?.to_str().ok()?;
    let (name, rest) = cookie.split_once('=')?;
    let id = rest.split(';').next()?;
    let id = SessionId::parse(id.trim()).filter(|_| name.trim() == SESSION_COOKIE)?;
    let challenge: Challenge = serde_json::from_slice(&answer.body).ok()?;
    Some((id, challenge.nonce))
}
