//! `PUT attestation-key`: see [`crate::succession`].

use axum::body::Body;
use axum::http::request::Parts;
use serde_json::Value;
use tec_core::attest::Attested;
use tec_core::code::Code;
use tec_core::id::ResourcePath;

use super::reply::{Refusal, Reply};
use super::resource::refusal;
use super::{Kbs, PolicyDecision, reply, strict};
use crate::succession::{MAX_BODY, Named, Recorded};
use crate::wire::ErrorKind;

/// Where a token holds the nonce of its session, which the evidence binds.
const NONCE: &str = "/submods/cpu0/ear.veraison.annotated-evidence/runtime_data_claims/nonce";

impl Kbs {
    pub(super) async fn name_successor(&self, parts: &Parts, body: Body) -> Reply {
        let (claims, admission) = self.authenticate(&parts.headers)?;
        let body = self.receive(parts, body, MAX_BODY).await?;
        let named: Option<Named> = strict::from_slice(&body.bytes).ok();
        let offer = named.and_then(|named| named.to_offer()).ok_or_else(|| {
            Refusal::new(&ErrorKind::SerdeError, "the body is not a certified attestation key")
        })?;
        // A machine whose attestation would give it no disk key now names no other attestation key.
        let machine = admission.attested.as_ref().map(Attested::machine);
        let policy = match machine.filter(|_| admission.refused.is_none()) {
            Some(id) => self.decide(&claims, &ResourcePath::luks_root(&id), "", &admission).await?,
            None => PolicyDecision::Deny,
        };
        let nonce = claims.pointer(NONCE).and_then(Value::as_str).unwrap_or_default();
        let backend = &self.0.config.backend;
        let successor = backend.name_successor(&admission, policy, nonce, &offer).await;
        let successor = successor.map_err(|error| refusal(&error, &admission))?;
        let attempt = admission.attempt;
        let successor = successor.ok_or_else(|| {
            let code = Code::RegisterNotFound;
            Refusal::with_code(&ErrorKind::PluginNotFound, code, Some(attempt))
        })?;
        tracing::info!(%attempt, ak.fingerprint = %successor, "successor recorded");
        reply::json(&Recorded { successor })
    }
}
