//! The handshake: `auth` and `attest` (KBS attestation protocol 0.4.0; Trustee, attestation
//! service).

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::http::request::Parts;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use tec_core::attest::{Tee, VerifiedEvidence, VerifyError};
use tec_core::code::Code;
use tec_core::id::AttemptId;
use tec_core::port::EntropyRng;
use tec_core::time::Timestamp;

use super::backend::code_of;
use super::cookie::{own_claims, session_cookie};
use super::intake::{MAX_AUTH, announced};
use super::reply::{Refusal, Reply, port, refused};
use super::session::{Begin, Kept};
use super::session_id::SessionId;
use super::shared::Opened;
use super::table::peer;
use super::{Admission, Kbs, check, reply, strict};
use crate::policy::{AttestationPolicy, Evaluation, PolicyError, REFUSED_CLAIM, Verdict};
use crate::token::ear_claims;
use crate::wire::{
    AttestRequest, AttestResponse, AuthRequest, Challenge, ErrorKind, PROTOCOL_VERSION,
};

/// Maximum number of rounds of an evaluation: names of reference values may depend on other reference values.
const MAX_ROUNDS: usize = 8;

fn refused_with(code: Code, attempt: Option<AttemptId>) -> Refusal {
    Refusal::with_code(&ErrorKind::AttestationError, code, attempt)
}

impl Kbs {
    /// `POST auth`: unknown members and extra parameters are ignored; the version must match exactly.
    pub(super) async fn auth(&self, parts: &Parts, body: Body) -> Reply {
        let config = &self.0.config;
        let body = self.receive(parts, body, MAX_AUTH).await?;
        let request: AuthRequest = strict::from_slice(&body.bytes)
            .map_err(|_| refused_with(Code::EvidenceMalformed, None))?;
        if request.version != PROTOCOL_VERSION {
            return Err(refused(&format!(
                "KBS Client Protocol Version Mismatch: expect ={PROTOCOL_VERSION}"
            )));
        }
        let tee: Tee = serde_json::from_value(Value::String(request.tee))
            .ok()
            .filter(|tee| config.tees.contains(tee))
            .ok_or_else(|| refused("evidence of this sort is not accepted"))?;
        let mut nonce = [0; 32];
        config.entropy.fill(&mut nonce);
        let nonce = STANDARD.encode(nonce);
        let now = config.clock.now();
        let id = SessionId::random(&*config.entropy);
        let session = Opened { id, tee, nonce: nonce.clone(), since: now };
        if !self.0.sessions.open(&session, peer(&parts.extensions), now) {
            return Err(Refusal::too_many_sessions());
        }
        self.0.metrics.opened();
        let cookie = self.cookie(session).ok_or_else(|| refused("the session cannot be sealed"))?;
        let response = reply::json(&Challenge::new(nonce))?;
        Ok(reply::with_session(response, &cookie, self.0.sessions.end(now), now))
    }

    /// `POST attest`, in the order of docs/reference/trustee.md. Evidence is read completely only for a
    /// session that exists; other bodies are read as far as needed to answer them.
    pub(super) async fn attest(&self, parts: &Parts, body: Body) -> Reply {
        let now = self.0.config.clock.now();
        let named = match self.adopted(parts, now) {
            Ok(Some(named)) => named,
            other => {
                announced(&parts.headers, self.0.config.max_payload)?;
                // The result does not matter.
                let _ = self.receive(parts, body, MAX_AUTH).await;
                return Err(other.err().unwrap_or_else(|| self.unknown(parts)));
            }
        };
        let max = self.0.config.max_payload;
        let body = self.receive(parts, body, max).await?;
        let work = self.0.intake.work(body.bytes.len()).await?;
        let request = strict::from_slice::<AttestRequest>(&body.bytes);
        let nonce = request.as_ref().ok().map(|r| r.runtime_data.nonce.as_str());
        match (self.0.sessions.begin(named.id, nonce, now), request) {
            (Begin::Unknown, _) => Err(refused("session not found")),
            (Begin::Attested { passed, opened }, _) => match &passed.token {
                Kept::Token(token) => {
                    let claims = own_claims(token, now)
                        .ok_or_else(|| refused("the session's token expired"))?;
                    let cookie = self.renewed(&named, opened, &claims, &passed.admission);
                    self.answer(token, &cookie, opened, now)
                }
                Kept::Withheld(_) => Err(denial(&passed.admission, Code::ReleaseDenied)),
            },
            (Begin::Fresh { tee, opened }, Ok(request)) => {
                let (mut claims, admission) = self.appraise((tee, opened), &request).await?;
                drop(work);
                let cookie = self.renewed(&named, opened, &claims, &admission);
                let token = self.token(&mut claims, opened, &admission)?;
                let admission = Arc::new(admission);
                if !self.0.sessions.finish(named.id, &token, &admission, now) {
                    return Err(Refusal::busy("too much is kept, try again later"));
                }
                self.answer(&token, &cookie, opened, now)
            }
            (Begin::WrongNonce, Ok(request)) => Err(self.record_bad(check::stale(&request)).await),
            (Begin::WrongNonce | Begin::Fresh { .. }, Err(_)) => {
                Err(self.record_bad(check::unreadable()).await)
            }
        }
    }

    fn unknown(&self, parts: &Parts) -> Refusal {
        let is_one = |cookie| self.0.shared.is_some() || SessionId::parse(cookie).is_some();
        refused(match session_cookie(&parts.headers) {
            Some(cookie) if is_one(cookie) => "session not found",
            _ => "cookie not found",
        })
    }

    fn answer(&self, token: &str, cookie: &str, opened: Timestamp, now: Timestamp) -> Reply {
        let response = reply::json(&AttestResponse::new(token))?;
        Ok(reply::with_session(response, cookie, self.0.sessions.end(opened), now))
    }

    pub(super) fn new_attempt(&self) -> AttemptId {
        AttemptId::random(&mut EntropyRng::new(&*self.0.config.entropy))
    }

    /// Records evidence that no verifier needs to see.
    async fn record_bad(&self, error: VerifyError) -> Refusal {
        let attempt = self.new_attempt();
        let code = code_of(&error);
        match self.0.config.backend.admit(attempt, &Err(error)).await {
            Ok(admission) => denial(&admission, code),
            Err(error) => port(&error),
        }
    }

    /// The token of a session, with what other replicas need.
    fn token(
        &self,
        claims: &mut Value,
        opened: Timestamp,
        admission: &Admission,
    ) -> Result<Arc<str>, Refusal> {
        let config = &self.0.config;
        if let Some(shared) = &self.0.shared {
            shared.stamp(claims, opened, admission, &*config.entropy);
        }
        let token = config.signer.sign(claims);
        let token = token.map_err(|_| refused("the token cannot be signed"))?;
        Ok(token.into())
    }

    /// Verification, the backend's gate and the policy; returns the claims of a token.
    async fn appraise(
        &self,
        asked: (Tee, Timestamp),
        request: &AttestRequest,
    ) -> Result<(Value, Admission), Refusal> {
        let config = &self.0.config;
        let attempt = self.new_attempt();
        let (verified, init_data_claims) = check::verify(&*config.verifier, asked, request).await;
        let mut admission =
            config.backend.admit(attempt, &verified).await.map_err(|error| port(&error))?;
        let verified = verified.map_err(|error| denial(&admission, code_of(&error)))?;
        let evidence = annotate(&verified, request, &init_data_claims);
        let mut verdict = self.verdict(&evidence, &admission).await?;
        if let Some(code) = admission.refused {
            tracing::warn!(%attempt, %code, "attestation refused");
            verdict.withhold();
            verdict.extensions.insert(REFUSED_CLAIM.to_owned(), code.as_str().into());
        }
        let lifetime = config.token_seconds.into();
        let claims = ear_claims(attempt, config.clock.now(), lifetime, &verdict, &evidence);
        admission.references = BTreeMap::new();
        self.0.metrics.attempted(admission.refused);
        tracing::info!(%attempt, status = verdict.status().as_str(), "attestation token issued");
        Ok((claims, admission))
    }

    /// Evaluates the attestation policy, fetching the reference values that it asks for.
    async fn verdict(&self, evidence: &Value, admission: &Admission) -> Result<Verdict, Refusal> {
        let backend = &self.0.config.backend;
        let Some(text) = backend.attestation_policy().await.map_err(|error| port(&error))? else {
            tracing::warn!("there is no attestation policy, so nothing is affirmed");
            let mut verdict = Verdict::default();
            verdict.withhold();
            return Ok(verdict);
        };
        let failed = |error: PolicyError| {
            tracing::error!(attempt = %admission.attempt, %error, "attestation policy failed");
            refused_with(Code::PolicyInvalid, Some(admission.attempt))
        };
        let policy = self.0.attestation.parsed(&text, AttestationPolicy::parse).map_err(failed)?;
        let mut references = admission.references.clone();
        for _ in 0..MAX_ROUNDS {
            match policy.evaluate(evidence, &references).map_err(failed)? {
                Evaluation::Done(verdict) => return Ok(verdict),
                Evaluation::Wants(names) => {
                    for name in names {
                        let value =
                            backend.reference_value(&name).await.map_err(|error| port(&error))?;
                        references.insert(name, value.unwrap_or(Value::Null));
                    }
                }
            }
        }
        Err(failed(PolicyError::Evaluate("reference values are asked for without end".to_owned())))
    }
}

/// The object that policies and tokens hold (EAR, draft-ietf-rats-ear).
fn annotate(
    verified: &VerifiedEvidence,
    request: &AttestRequest,
    init_data_claims: &Value,
) -> Value {
    let text_or_null = |text: &str| match text {
        "" => Value::Null,
        text => Value::from(text),
    };
    let mut claims = verified.claims.clone();
    claims.remove("report_data");
    claims.remove("init_data");
    serde_json::json!({
        verified.tee.as_str(): claims,
        "report_data": text_or_null(&verified.report_data),
        "runtime_data_claims": {
            "tee-pubkey": request.runtime_data.tee_pubkey,
            "nonce": request.runtime_data.nonce,
            "additional-evidence": request.tee_evidence.additional_evidence,
        },
        "init_data": text_or_null(&verified.init_data),
        "init_data_claims": init_data_claims,
    })
}

fn denial(admission: &Admission, code: Code) -> Refusal {
    let code = admission.refused.unwrap_or(code);
    let attempt = admission.attempt;
    tracing::warn!(%attempt, %code, "attestation refused");
    refused_with(code, Some(attempt))
}
