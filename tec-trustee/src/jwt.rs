//! Compact JWS, as far as attestation and admin tokens need it (RFC 7515, section 7.1).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::Value;
use tec_core::time::Timestamp;

/// Tolerated clock difference (EAR, draft-ietf-rats-ear; Trustee, KBS admin API).
const LEEWAY_SECONDS: i64 = 60;

#[derive(Debug, Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    crit: Option<Value>,
}

/// A token whose signature is not verified yet; its claims are inaccessible until then.
pub(crate) struct Unverified<'a> {
    alg: String,
    signed: &'a str,
    payload: &'a str,
    signature: Vec<u8>,
}

impl<'a> Unverified<'a> {
    /// Splits a token of at most `max` bytes; `None` if it is not a JWS or has critical extensions.
    pub(crate) fn split(token: &'a str, max: usize) -> Option<Self> {
        if token.len() > max {
            return None;
        }
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, payload) = signed.split_once('.')?;
        let header = URL_SAFE_NO_PAD.decode(header).ok()?;
        let header: Header = serde_json::from_slice(&header).ok()?;
        if header.crit.is_some() {
            return None;
        }
        Some(Self {
            alg: header.alg,
            signed,
            payload,
            signature: URL_SAFE_NO_PAD.decode(signature).ok()?,
        })
    }

    /// Returns the claims if `verify(alg, signed bytes, signature)` accepts them and the token is not
    /// expired.
    pub(crate) fn claims(
        &self,
        now: Timestamp,
        verify: impl FnOnce(&str, &[u8], &[u8]) -> bool,
    ) -> Option<Value> {
        if !verify(&self.alg, self.signed.as_bytes(), &self.signature) {
            return None;
        }
        let payload = URL_SAFE_NO_PAD.decode(self.payload).ok()?;
        let claims: Value = serde_json::from_slice(&payload).ok()?;
        is_current(&claims, now).then_some(claims)
    }
}

/// Whether claims are not expired and not from the future; `exp` is required.
pub(crate) fn is_current(claims: &Value, now: Timestamp) -> bool {
    let seconds = |claim| claims.get(claim).map(Value::as_i64);
    let expires = seconds("exp").flatten();
    let begins = seconds("nbf").unwrap_or(Some(i64::MIN));
    let (Some(expires), Some(begins)) = (expires, begins) else {
        return false;
    };
    now.unix_seconds() < expires.saturating_add(LEEWAY_SECONDS)
        && now.unix_seconds() >= begins.saturating_sub(LEEWAY_SECONDS)
}

/// Whether `signature` is a valid ES256 signature (RFC 7518, section 3.4: R ‖ S).
pub(crate) fn verify_es256(
    key: &p256::ecdsa::VerifyingKey,
    signed: &[u8],
    signature: &[u8],
) -> bool {
    use p256::ecdsa::signature::Verifier as _;
    p256::ecdsa::Signature::from_slice(signature)
        .is_ok_and(|signature| key.verify(signed, &signature).is_ok())
}
