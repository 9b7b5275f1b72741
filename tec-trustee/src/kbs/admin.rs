//! The admin API of Trustee's KBS.

use axum::body::Bytes;
use axum::http::{HeaderMap, Method};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ed25519_dalek::pkcs8::DecodePublicKey as _;
use serde::Deserialize;
use serde_json::{Map, Value};
use subtle::ConstantTimeEq as _;
use tec_core::port::{KeyBroker, PolicySlot, PortErrorKind, chain};
use tec_core::secret::SecretBytes;
use tec_core::time::Timestamp;

use super::reply::{Refusal, Reply, no_such_plugin, plugin};
use super::resource::parse_path;
use super::{Kbs, bearer, reply};
use crate::jwt::{Unverified, verify_es256};
use crate::wire::ErrorKind;

/// Largest admin token.
const MAX_TOKEN: usize = 16 * 1024;
/// Largest PEM text of an admin key.
const MAX_PEM: usize = 4096;
/// Largest name of a reference value (Trustee, key-value storage: file names).
const MAX_NAME: usize = 200;
/// The role that may do everything (Trustee, KBS admin API).
const ADMIN_ROLE: &str = "admin";
/// The only attestation policy: evidence here is of the class `cpu` (Trustee, attestation service).
const ATTESTATION_POLICY: &str = "default_cpu";

/// Who may use the admin API: bearers of a token with the claim `role` = `admin`, signed by one key with
/// EdDSA (Ed25519) or ES256.
#[derive(Clone, Debug)]
pub struct AdminAuth {
    key: Key,
    audience: Option<String>,
}

#[derive(Clone, derive_more::Debug)]
enum Key {
    #[debug("Ed25519")]
    Ed25519(ed25519_dalek::VerifyingKey),
    #[debug("P-256")]
    P256(p256::ecdsa::VerifyingKey),
}

/// The admin key cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the admin key is neither an Ed25519 nor a P-256 public key in PEM")]
#[non_exhaustive]
pub struct AdminKeyError;

impl AdminAuth {
    /// Accepts tokens signed by this public key, in PEM (SubjectPublicKeyInfo).
    ///
    /// # Errors
    /// A key of another type, or invalid PEM.
    pub fn from_pem(pem: &str) -> Result<Self, AdminKeyError> {
        if pem.len() > MAX_PEM {
            return Err(AdminKeyError);
        }
        let ed25519 = ed25519_dalek::VerifyingKey::from_public_key_pem(pem).map(Key::Ed25519);
        let key = ed25519
            .or_else(|_| p256::PublicKey::from_public_key_pem(pem).map(|key| Key::P256(key.into())))
            .map_err(|_| AdminKeyError)?;
        Ok(Self { key, audience: None })
    }

    /// Requires this `aud`, alone or in a list.
    pub fn with_audience(mut self, audience: impl Into<String>) -> Self {
        self.audience = Some(audience.into());
        self
    }

    /// Whether a token belongs to an admin: valid signature, `exp` in the future, the role, and the audience
    /// if it is required.
    pub fn accepts(&self, token: &str, now: Timestamp) -> bool {
        let claims = Unverified::split(token, MAX_TOKEN)
            .and_then(|token| token.claims(now, |alg, signed, sig| self.verify(alg, signed, sig)));
        let Some(claims) = claims else {
            return false;
        };
        let is_for = |wanted: &String| match claims.get("aud") {
            Some(Value::Array(list)) => list.iter().any(|one| one == wanted),
            one => one.is_some_and(|one| one == wanted),
        };
        let role = claims.get("role").and_then(Value::as_str).unwrap_or_default();
        bool::from(role.as_bytes().ct_eq(ADMIN_ROLE.as_bytes()))
            && self.audience.as_ref().is_none_or(is_for)
    }

    fn verify(&self, alg: &str, signed: &[u8], signature: &[u8]) -> bool {
        match (&self.key, alg) {
            (Key::Ed25519(key), "EdDSA") => ed25519_dalek::Signature::from_slice(signature)
                .is_ok_and(|signature| key.verify_strict(signed, &signature).is_ok()),
            (Key::P256(key), "ES256") => verify_es256(key, signed, signature),
            _ => false,
        }
    }
}

#[derive(Deserialize)]
struct PolicyBody {
    #[serde(default)]
    policy_id: Option<String>,
    policy: String,
}

/// Message of the reference value service (Trustee, RVPS).
#[derive(Deserialize)]
struct ReferenceMessage {
    #[serde(default)]
    version: Option<String>,
    #[serde(rename = "type")]
    kind: String,
    payload: String,
}

impl Kbs {
    pub(super) fn authorize_admin(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let config = &self.0.config;
        let now = config.clock.now();
        let admin = config.admin.as_ref().zip(bearer(headers));
        match admin {
            Some((auth, token)) if auth.accepts(token, now) => Ok(()),
            _ => Err(Refusal::new(&ErrorKind::AdminAuthAccess, "admin access is refused")),
        }
    }

    pub(super) async fn admin(
        &self,
        method: &Method,
        verb: &str,
        tail: &str,
        body: Bytes,
    ) -> Reply {
        match (method, verb, tail) {
            (&Method::POST, "attestation-policy", "") => {
                self.set_policy(PolicySlot::Attestation, &body).await
            }
            (&Method::POST, "resource-policy", "") => {
                self.set_policy(PolicySlot::Resource, &body).await
            }
            (&Method::GET, "resource-policy", "") => self.list_resource_policies().await,
            (&Method::POST, "reference-value", "") => self.set_reference_values(&body).await,
            (&Method::GET, "reference-value", name) => self.show_reference_value(name).await,
            (&Method::POST, "resource", tail) => self.put_resource(tail, body).await,
            (&Method::DELETE, "resource", tail) => self.remove_resource(tail).await,
            _ => Err(no_such_plugin()),
        }
    }

    fn broker(&self) -> Result<&dyn KeyBroker, Refusal> {
        self.0
            .config
            .backend
            .broker()
            .ok_or_else(|| internal("this server's content is managed elsewhere"))
    }

    async fn set_policy(&self, slot: PolicySlot, body: &[u8]) -> Reply {
        let body: PolicyBody = parse(body)?;
        let bad_policy = |detail: &str| Refusal::new(&ErrorKind::ParsePolicyError, detail);
        if slot == PolicySlot::Attestation && body.policy_id.as_deref() != Some(ATTESTATION_POLICY)
        {
            return Err(bad_policy("the only attestation policy is default_cpu"));
        }
        // URL-safe and without padding, strictly (Trustee, KBS admin API).
        let text = URL_SAFE_NO_PAD
            .decode(&body.policy)
            .ok()
            .and_then(|bytes| String::from_utf8(bytes).ok())
            .ok_or_else(|| bad_policy("the policy is not base64url of a text"))?;
        let stored = self.broker()?.set_policy(slot, &text).await;
        stored.map_err(|error| match error.kind() {
            // The reply gives the admin line and column.
            PortErrorKind::Invalid => bad_policy(&chain(&error)),
            _ => Refusal::port(&ErrorKind::PolicyEngineError, &error),
        })?;
        tracing::info!(?slot, "policy set");
        Ok(reply::empty(None))
    }

    async fn list_resource_policies(&self) -> Reply {
        let policy = self.0.config.backend.resource_policy().await;
        let policy =
            policy.map_err(|error| Refusal::port(&ErrorKind::PolicyEngineError, &error))?;
        let ids: Vec<&str> = policy.iter().map(|_| "resource-policy").collect();
        reply::json(&ids)
    }

    async fn set_reference_values(&self, body: &[u8]) -> Reply {
        let bad = |detail: &str| Refusal::new(&ErrorKind::RvpsError, detail);
        let message: ReferenceMessage = parse(body)?;
        if message.version.is_some_and(|version| version != "0.1.0") {
            return Err(bad("the version of the message is not 0.1.0"));
        }
        if message.kind != "sample" {
            return Err(bad("the only type of message is sample"));
        }
        let values: Map<String, Value> = STANDARD
            .decode(message.payload)
            .ok()
            .and_then(|payload| serde_json::from_slice(&payload).ok())
            .ok_or_else(|| bad("the payload is not base64 of a JSON object"))?;
        if !values.keys().all(|name| legal_name(name)) {
            return Err(bad("a name is not legal"));
        }
        let broker = self.broker()?;
        for (name, value) in &values {
            broker
                .set_reference_value(name, value)
                .await
                .map_err(|error| Refusal::port(&ErrorKind::RvpsError, &error))?;
        }
        tracing::info!(count = values.len(), "reference values set");
        Ok(reply::empty(Some("application/json")))
    }

    async fn show_reference_value(&self, name: &str) -> Reply {
        let value = self.0.config.backend.reference_value(name).await;
        let value = value.map_err(|error| Refusal::port(&ErrorKind::RvpsError, &error))?;
        let unknown = || Refusal::new(&ErrorKind::RvpsError, "there is no such reference value");
        reply::json(&value.ok_or_else(unknown)?)
    }

    async fn put_resource(&self, tail: &str, body: Bytes) -> Reply {
        let path = parse_path(tail)?;
        let secret = SecretBytes::new(body.to_vec());
        let stored = self.broker()?.put(&path, &secret).await;
        stored.map_err(|error| plugin(&error))?;
        tracing::info!(resource = %path, "resource stored");
        Ok(reply::empty(Some("text/xml")))
    }

    async fn remove_resource(&self, tail: &str) -> Reply {
        let path = parse_path(tail)?;
        let broker = self.broker()?;
        if let Some(paths) = broker.list().await.map_err(|error| plugin(&error))?
            && !paths.contains(&path)
        {
            return Err(internal("there is no such resource"));
        }
        broker.remove(&path).await.map_err(|error| plugin(&error))?;
        tracing::info!(resource = %path, "resource removed");
        Ok(reply::empty(None))
    }
}

fn legal_name(name: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(legal)
}

fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body)
        .map_err(|_| Refusal::new(&ErrorKind::SerdeError, "the body is not as expected"))
}

fn internal(detail: &str) -> Refusal {
    Refusal::new(&ErrorKind::PluginInternalError, detail)
}
