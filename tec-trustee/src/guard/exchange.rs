//! The three exchanges that the guard takes part in.

use std::sync::Arc;

use axum::body::Body;
use axum::http::header::SET_COOKIE;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use serde::Deserialize as _;
use serde_json::Value;
use tec_core::attest::{Tee, VerifyError};
use tec_core::code::Code;
use tec_core::flow::ReleaseError;
use tec_core::id::{AttemptId, ResourcePath};
use tec_core::port::EntropyRng;
use tec_core::time::Timestamp;

use super::credentials::Named;
use super::proxy::{Whole, unavailable};
use super::{BrokerAnswer, Guard, Passage, credentials};
use crate::authority::MAX_BODY;
use crate::kbs::intake::{MAX_AUTH, announced};
use crate::kbs::reply::{Refusal, Reply, no_token, port, refused};
use crate::kbs::resource::parse_path;
use crate::kbs::session_id::SessionId;
use crate::kbs::table::peer;
use crate::kbs::{authority, check, strict};
use crate::wire::{
    AttestRequest, AttestResponse, AuthRequest, Challenge, ErrorBody, ErrorKind, SESSION_COOKIE,
};

/// Largest answer to `POST attest`: a token that holds all claims; real ones are about 8 KiB.
const MAX_TOKEN: usize = 4 * 1024 * 1024;
/// Largest error body that is examined.
const MAX_ERROR: usize = 64 * 1024;
/// Code of a refusal by the broker. It is a header so that the broker's body stays unchanged.
const CODE: HeaderName = HeaderName::from_static("tec-code");
/// Number of the attempt, for `tec explain`.
const ATTEMPT: HeaderName = HeaderName::from_static("tec-attempt");

impl Guard {
    /// `POST auth`: remembers the nonce with the session.
    pub(super) async fn auth(&self, request: Request<Body>) -> Reply {
        let (parts, body) = request.into_parts();
        announced(&parts.headers, MAX_AUTH)?;
        let peer = peer(&parts.extensions);
        let body = self.0.intake.receive(body, peer, MAX_AUTH).await?;
        let tee = self.tee_of(&body.bytes)?;
        let now = self.0.config.clock.now();
        if !self.0.sessions.has_room(peer, now) {
            return Err(Refusal::too_many_sessions());
        }
        let request = Request::from_parts(parts, Body::from(body.bytes));
        let answer = self.whole(self.0.upstream.stream(request).await?, MAX_AUTH).await?;
        if answer.answer.status() == StatusCode::OK {
            let opened = begun(&answer)
                .is_some_and(|(id, nonce)| self.0.sessions.open(id, (tee, &nonce), peer, now));
            if !opened {
                return Err(refused("the key broker opened no session"));
            }
            self.0.metrics.opened();
        }
        Ok(answer.into_response())
    }

    /// The announced type of evidence, if it is allowed at all.
    fn tee_of(&self, body: &[u8]) -> Result<Tee, Refusal> {
        let request: AuthRequest = strict::from_slice(body).map_err(|_| {
            Refusal::with_code(&ErrorKind::AttestationError, Code::EvidenceMalformed, None)
        })?;
        Tee::deserialize(Value::String(request.tee))
            .ok()
            .filter(|tee| self.0.config.tees.contains(tee))
            .ok_or_else(|| refused("evidence of this sort is not accepted"))
    }

    /// `POST attest`: forwards only what our own verifier accepts.
    pub(super) async fn attest(&self, request: Request<Body>) -> Reply {
        let (parts, body) = request.into_parts();
        announced(&parts.headers, self.0.config.max_payload)?;
        let Named::One(id) = credentials::session(&parts.headers) else {
            return Err(refused("cookie not found"));
        };
        let now = self.0.config.clock.now();
        let unknown = || refused("session not found");
        let (asked, nonce) = self.0.sessions.begin(id, now).ok_or_else(unknown)?;
        let body =
            self.0.intake.receive(body, peer(&parts.extensions), self.0.config.max_payload).await?;
        let work = self.0.intake.work(body.bytes.len()).await?;
        let passage = self.check(asked, &nonce, &body.bytes).await?;
        drop(work);
        if !self.0.sessions.forward(id, now) {
            return Err(unknown());
        }
        let request = Request::from_parts(parts, Body::from(body.bytes));
        let answer = async {
            let answer = self.0.upstream.stream(request).await?;
            self.whole(answer, MAX_TOKEN).await
        };
        let recorded = self.0.config.gatekeeper.passed(&passage);
        let (answer, recorded) = tokio::join!(answer, recorded);
        recorded.map_err(|error| port(&error))?;
        let answer = answer?;
        if answer.answer.status() == StatusCode::OK {
            return self.attested(id, passage, answer);
        }
        self.0.sessions.reopen(id, now);
        self.refused_by_broker(&passage, None, answer).await
    }

    /// Remembers the token that the Trustee issued.
    fn attested(&self, id: SessionId, passage: Passage, answer: Whole) -> Reply {
        let token = serde_json::from_slice::<AttestResponse>(&answer.body)
            .map_err(|_| refused("the key broker issued no token"))?;
        let (passage, now) = (Arc::new(passage), self.0.config.clock.now());
        if !self.0.sessions.finish(id, passage, &token.token, now) {
            return Err(refused("the key broker issued another token"));
        }
        self.0.metrics.attempted(None);
        Ok(answer.into_response())
    }

    /// Verifies the evidence and asks the gatekeeper.
    async fn check(
        &self,
        asked: (Tee, Timestamp),
        nonce: &str,
        body: &[u8],
    ) -> Result<Passage, Refusal> {
        let config = &self.0.config;
        let evidence = match strict::from_slice::<AttestRequest>(body) {
            Ok(request) if request.runtime_data.nonce == nonce => {
                check::verify(&*config.verifier, asked, &request).await.0
            }
            Ok(request) => Err(check::stale(&request)),
            Err(_) => Err(check::unreadable()),
        };
        let attempt = AttemptId::random(&mut EntropyRng::new(&*config.entropy));
        let passage =
            config.gatekeeper.admit(attempt, &evidence).await.map_err(|error| port(&error))?;
        match refusal_of(&passage, &evidence) {
            None => Ok(passage),
            Some(code) => {
                tracing::warn!(%attempt, %code, "evidence stopped");
                let kind = ErrorKind::AttestationError;
                Err(Refusal::with_code(&kind, code, Some(attempt)))
            }
        }
    }

    /// Reads an answer, which counts toward the bodies held.
    async fn whole(&self, answer: Response<Body>, max: usize) -> Result<Whole, Refusal> {
        let (parts, body) = answer.into_parts();
        let body = self.0.intake.receive(body, None, max).await;
        let body = body.map_err(|_| unavailable("its answer is too large or too late"))?;
        Ok(Whole { answer: Response::from_parts(parts, ()), body: body.bytes })
    }

    /// `GET resource`: for sessions and tokens that came through this guard.
    pub(super) async fn resource(&self, request: Request<Body>, tail: &str) -> Reply {
        let passage = self.identify(request.headers()).ok_or_else(no_token)?;
        let path = parse_path(tail)?;
        let gatekeeper = &self.0.config.gatekeeper;
        gatekeeper
            .permit(&passage, &path)
            .await
            .map_err(|error| not_permitted(&passage, &error))?;
        let answer = self.0.upstream.stream(request).await?;
        if !answer.status().is_success() {
            let answer = self.whole(answer, MAX_ERROR).await?;
            return self.refused_by_broker(&passage, Some(&path), answer).await;
        }
        // The broker took its time, and a revocation takes effect from the next byte on.
        gatekeeper
            .permit(&passage, &path)
            .await
            .map_err(|error| not_permitted(&passage, &error))?;
        gatekeeper
            .settle(&passage, Some(&path), BrokerAnswer::Granted)
            .await
            .map_err(|error| port(&error))?;
        self.0.metrics.released();
        tracing::info!(attempt = %passage.attempt(), resource = %path, "resource passed");
        Ok(answer)
    }

    /// `PUT authorities`: for sessions and tokens that came through this guard.
    pub(super) async fn trusts(&self, request: Request<Body>) -> Reply {
        let passage = self.identify(request.headers());
        let machine = passage.and_then(|passage| passage.record().machine).ok_or_else(no_token)?;
        let (parts, body) = request.into_parts();
        announced(&parts.headers, MAX_BODY)?;
        let peer = peer(&parts.extensions);
        let body = self.0.intake.receive(body, peer, MAX_BODY).await?;
        authority::take(self.0.config.authorities.as_ref(), machine, &body.bytes).await
    }

    /// The attested session, by its cookie or by its token (KBS attestation protocol 0.4.0). If a request has
    /// both, they must belong to the same session, whichever of them the Trustee uses.
    fn identify(&self, headers: &HeaderMap) -> Option<Arc<Passage>> {
        let sessions = &self.0.sessions;
        let id = match (credentials::session(headers), credentials::token(headers)) {
            (Named::One(id), Named::None) => id,
            (Named::None, Named::One(token)) => sessions.of_token(token)?,
            (Named::One(id), Named::One(token)) if sessions.of_token(token) == Some(id) => id,
            _ => return None,
        };
        sessions.passage(id, self.0.config.clock.now())
    }

    /// Passes a refusal on unchanged, and adds a code and the number of the attempt.
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

fn not_permitted(passage: &Passage, error: &ReleaseError) -> Refusal {
    let code = match error {
        ReleaseError::Refused(code) => *code,
        ReleaseError::Port(error) => return port(error),
        _ => Code::ReleaseDenied,
    };
    Refusal::with_code(&ErrorKind::PolicyDeny, code, Some(passage.attempt()))
}

fn add(response: &mut Response<Body>, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

/// The attestation check that a refusal by the broker stands for.
fn code_of(kind: &ErrorKind) -> Code {
    match kind {
        ErrorKind::PluginInternalError => Code::KeyMissing,
        ErrorKind::PolicyEngineError | ErrorKind::ParsePolicyError => Code::PolicyInvalid,
        _ => Code::ReleaseDenied,
    }
}

/// Evidence that the verifier refused never passes, whatever the gatekeeper decides.
fn refusal_of<T>(passage: &Passage, evidence: &Result<T, VerifyError>) -> Option<Code> {
    let by_verifier = evidence.as_ref().err().map(crate::kbs::code_of);
    passage.refused().or(by_verifier)
}

/// Session and nonce from an answer to `POST auth`.
fn begun(answer: &Whole) -> Option<(SessionId, String)> {
    let cookie = answer.answer.headers().get(SET_COOKIE)?.to_str().ok()?;
    let (name, rest) = cookie.split_once('=')?;
    let id = rest.split(';').next()?;
    let id = SessionId::parse(id.trim()).filter(|_| name.trim() == SESSION_COOKIE)?;
    let challenge: Challenge = serde_json::from_slice(&answer.body).ok()?;
    Some((id, challenge.nonce))
}
