//! What is checked in a request before policies see it. The KBS and the guard check the same.

use serde::Deserialize as _;
use serde_json::Value;
use tec_core::attest::{Tee, VerifiedEvidence, VerifyError};
use tec_core::port::{EvidenceRequest, Verifier};
use tec_core::time::Timestamp;

use super::init_data;
use crate::jwe::TeePubKey;
use crate::report_data;
use crate::report_data::HashAlgorithm;
use crate::wire::AttestRequest;

/// Largest session key, in bytes of its members: one of RSA-4096 has about 720.
const MAX_SESSION_KEY: usize = 2048;

/// Checks evidence of the requested type, and records when it was requested; also returns the claims of
/// init-data.
pub(crate) async fn verify(
    verifier: &dyn Verifier,
    (tee, asked_at): (Tee, Timestamp),
    request: &AttestRequest,
) -> (Result<VerifiedEvidence, VerifyError>, Value) {
    let prepared = match Prepared::new(request) {
        Ok(prepared) => prepared,
        Err(at) => {
            let at = at.to_owned();
            return (Err(VerifyError::Malformed(at)), Value::Null);
        }
    };
    let evidence = &request.tee_evidence.primary_evidence;
    let mut to_verify = EvidenceRequest::new(tee, evidence, &prepared.report_data);
    if let Some(init_data) = &prepared.init_data {
        to_verify = to_verify.with_init_data(&init_data.digest);
    }
    let verified = match verifier.verify(to_verify).await {
        Ok(verified) if verified.tee != tee => Err(VerifyError::Unsupported(verified.tee)),
        Ok(mut verified) => {
            verified.asked_at = Some(asked_at);
            Ok(verified)
        }
        Err(error) => Err(error),
    };
    let claims = prepared.init_data.map_or(Value::Null, |parsed| parsed.claims);
    (verified, claims)
}

/// The evidence is for the nonce of another session.
pub(crate) fn stale(request: &AttestRequest) -> VerifyError {
    VerifyError::Quote {
        reason: "the evidence is for another session's nonce",
        claimed_ak: claimed_ak(request),
    }
}

/// The body does not follow the protocol.
pub(crate) fn unreadable() -> VerifyError {
    VerifyError::Malformed("the request body".to_owned())
}

/// The parts of a request that are checked before a verifier sees it.
struct Prepared {
    report_data: [u8; 48],
    init_data: Option<init_data::Parsed>,
}

impl Prepared {
    fn new(request: &AttestRequest) -> Result<Self, &'static str> {
        let runtime = &request.runtime_data;
        let additional = request.tee_evidence.additional_evidence.as_str();
        // Devices cannot be verified here, and what is not verified must not be ignored.
        if !matches!(additional, "" | "{}") {
            return Err("additional_evidence");
        }
        if !is_session_key(&runtime.tee_pubkey) {
            return Err("tee-pubkey");
        }
        let report_data = report_data::primary(
            &runtime.nonce,
            &runtime.tee_pubkey,
            additional,
            HashAlgorithm::Sha384,
        )
        .map_err(|_| "runtime-data")?;
        let init_data = match &request.init_data {
            Some(text) => Some(init_data::parse(text).ok_or("init-data")?),
            None => None,
        };
        Ok(Self { report_data, init_data })
    }
}

/// Whether this is a public key with the members of the KBS attestation protocol and no others: it is kept
/// with the session and is part of the token.
fn is_session_key(jwk: &Value) -> bool {
    let Some(members) = jwk.as_object() else {
        return false;
    };
    let known: &[&str] = match members.get("kty").and_then(Value::as_str) {
        Some("EC") => &["kty", "crv", "alg", "x", "y"],
        Some("RSA") => &["kty", "alg", "n", "e"],
        _ => return false,
    };
    let length = |(name, value): (&String, &Value)| {
        let text = value.as_str().filter(|_| known.contains(&name.as_str()))?;
        Some(name.len().saturating_add(text.len()))
    };
    let lengths: Option<Vec<usize>> = members.iter().map(length).collect();
    lengths.is_some_and(|lengths| lengths.iter().sum::<usize>() <= MAX_SESSION_KEY)
        && TeePubKey::deserialize(jwk).is_ok_and(|key| key.check().is_ok())
}

/// The key that unverified TPM evidence names.
fn claimed_ak(request: &AttestRequest) -> Option<tec_core::ak::Fingerprint> {
    let named = request.tee_evidence.primary_evidence.get("ak_public")?;
    let key = tec_core::ak::PublicKey::from_base64(named.as_str()?).ok()?;
    Some(key.fingerprint())
}
