//! `GET resource` (KBS attestation protocol 0.4.0; Trustee, resource policy).

use std::sync::Arc;

use axum::http::HeaderMap;
use serde_json::Value;
use tec_core::code::Code;
use tec_core::flow::ReleaseError;
use tec_core::id::{AttemptId, ResourcePath};
use tec_core::port::EntropyRng;
use tec_core::rotation::KeyMark;

use super::cookie::own_claims;
use super::reply::{Refusal, Reply, no_token, plugin};
use super::session::Kept;
use super::shared::{Carried, take_stamp};
use super::{Admission, Kbs, PolicyDecision, bearer, reply};
use crate::jwe;
use crate::jwe::TeePubKey;
use crate::jwt::is_current;
use crate::policy::{PolicyError, ResourcePolicy};
use crate::rotation::{MARK, Which};
use crate::wire::ErrorKind;

/// Where a token may hold the session key, in this order (KBS attestation protocol 0.4.0).
const KEY_POINTERS: [&str; 5] = [
    "/tdx/attester_runtime_data/tee-pubkey",
    "/tdx/attester_user_data/tee-pubkey",
    "/customized_claims/runtime_data/tee-pubkey",
    "/submods/cpu0/ear.veraison.annotated-evidence/runtime_data_claims/tee-pubkey",
    "/tee-pubkey",
];

impl Kbs {
    pub(super) async fn resource(&self, headers: &HeaderMap, tail: &str, query: &str) -> Reply {
        let (claims, admission) = self.authenticate(headers)?;
        let path = parse_path(tail)?;
        let policy = match admission.refused {
            None => self.decide(&claims, &path, query, &admission).await?,
            Some(_) => PolicyDecision::Deny,
        };
        // The policy judges the path of the current key, whichever key of the machine is asked for.
        let path = Which::of_query(query).stored_at(&path);
        let secret = self
            .0
            .config
            .backend
            .release(&admission, &path, policy, shown(headers))
            .await
            .map_err(|error| refusal(&error, &admission))?;
        let encrypted = session_key(&claims).and_then(|key| {
            let mut rng = EntropyRng::new(&*self.0.config.entropy);
            jwe::encrypt(&key, &secret, &mut rng).ok()
        });
        let encrypted = encrypted.ok_or_else(|| {
            Refusal::new(
                &ErrorKind::JweError,
                "the resource cannot be encrypted for the session key",
            )
        })?;
        self.0.metrics.released();
        tracing::info!(attempt = %admission.attempt, resource = %path, "resource released");
        reply::json(&encrypted)
    }

    /// The attested session of the cookie is tried first, as this process knows it or as the cookie carries
    /// it, then a bearer token. The token of a session never left this process, so its expiry is checked and
    /// its signature is not.
    pub(super) fn authenticate(
        &self,
        headers: &HeaderMap,
    ) -> Result<(Value, Arc<Admission>), Refusal> {
        let now = self.0.config.clock.now();
        let not_accepted =
            || Refusal::new(&ErrorKind::TokenVerifierError, "the token is not accepted");
        let named = self.named(headers, now);
        let own = named.as_ref().and_then(|named| self.0.sessions.passed(named.id, now));
        if let Some(passed) = own {
            let Kept::Token(token) = &passed.token else {
                // The backend has the last word, and reports why it refused.
                return Ok((Value::Null, passed.admission));
            };
            let claims = own_claims(token, now).ok_or_else(not_accepted)?;
            return Ok((claims, passed.admission));
        }
        if let Some(Carried::Judged(judged)) = named.and_then(|named| named.carried) {
            let (claims, admission) = judged.admission().ok_or_else(not_accepted)?;
            if admission.refused.is_none() && !is_current(&claims, now) {
                return Err(not_accepted());
            }
            return Ok((claims, Arc::new(admission)));
        }
        let token = bearer(headers).ok_or_else(no_token)?;
        let verified = self.0.config.signer.verify(token, now);
        let mut claims = verified.map_err(|_| not_accepted())?;
        let stamp = take_stamp(&mut claims);
        let attempt: Option<AttemptId> =
            claims.get("jti").and_then(Value::as_str).and_then(|id| id.parse().ok());
        // The session's own token exactly: another trusted signer cannot speak for it.
        let known = attempt
            .and_then(|attempt| self.0.sessions.of_attempt(attempt, now))
            .filter(|passed| passed.token.is(token));
        // Without a session, our own or carried, only what the token says is known; backends that require
        // proof of the machine then release nothing.
        let admission = match (known, &self.0.shared, stamp) {
            (Some(passed), ..) => Some(passed.admission),
            (None, Some(shared), Some(stamp)) => shared.redeem(&claims, &stamp, now).map(Arc::new),
            _ => None,
        };
        let admission = admission.unwrap_or_else(|| {
            let attempt = attempt.unwrap_or_else(|| self.new_attempt());
            Arc::new(Admission::new(attempt))
        });
        Ok((claims, admission))
    }

    async fn decide(
        &self,
        claims: &Value,
        path: &ResourcePath,
        query: &str,
        admission: &Admission,
    ) -> Result<PolicyDecision, Refusal> {
        let text = self.0.config.backend.resource_policy().await.map_err(|error| plugin(&error))?;
        let Some(text) = text else {
            tracing::warn!("there is no resource policy, so nothing is released");
            return Ok(PolicyDecision::Deny);
        };
        let failed = |error: PolicyError| {
            tracing::error!(attempt = %admission.attempt, %error, "resource policy failed");
            let attempt = Some(admission.attempt);
            Refusal::with_code(&ErrorKind::PolicyEngineError, Code::PolicyInvalid, attempt)
        };
        let policy = self.0.resource.parsed(&text, ResourcePolicy::parse).map_err(failed)?;
        let segments: Vec<_> = path.segments().collect();
        let request = serde_json::json!({
            "plugin": "resource", "resource-path": segments, "query": query_map(query),
        });
        if policy.allows(claims, &request).map_err(failed)? {
            Ok(PolicyDecision::Allow)
        } else {
            Ok(PolicyDecision::Deny)
        }
    }
}

/// Three segments. One leading empty segment is dropped: clients of v0.21 send `resource//a/b/c`
/// (clevis-pin-trustee).
pub(crate) fn parse_path(tail: &str) -> Result<ResourcePath, Refusal> {
    tail.strip_prefix('/').unwrap_or(tail).parse().map_err(|_| {
        Refusal::new(&ErrorKind::PluginInternalError, "a resource path must have three segments")
    })
}

/// The mark that a client shows; what is none shows nothing.
fn shown(headers: &HeaderMap) -> Option<KeyMark> {
    let digest = headers.get(MARK)?.to_str().ok()?.parse().ok()?;
    Some(KeyMark::from_digest(digest))
}

/// Names and values as they appear in the query, not decoded.
fn query_map(query: &str) -> serde_json::Map<String, Value> {
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (name.to_owned(), Value::from(value)))
        .collect()
}

fn session_key(claims: &Value) -> Option<TeePubKey> {
    let key = KEY_POINTERS.iter().find_map(|pointer| claims.pointer(pointer))?;
    serde_json::from_value(key.clone()).ok()
}

pub(super) fn refusal(error: &ReleaseError, admission: &Admission) -> Refusal {
    let code = match error {
        ReleaseError::Refused(code) => *code,
        ReleaseError::Port(error) => return plugin(error),
        _ => Code::ReleaseDenied,
    };
    let attempt = admission.attempt;
    tracing::warn!(%attempt, %code, "release refused");
    let kind = match code {
        Code::KeyMissing => ErrorKind::PluginInternalError,
        _ => ErrorKind::PolicyDeny,
    };
    Refusal::with_code(&kind, code, Some(attempt))
}
