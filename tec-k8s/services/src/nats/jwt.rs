//! NATS JWTs, version 2: header `ed25519-nkey`, claims with a member `nats`.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use data_encoding::BASE32_NOPAD;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tec_core::time::Timestamp;

use super::{KeyKind, PublicKey};
use crate::caller;

/// Version of the claims.
const VERSION: u32 = 2;
/// No limit.
const UNLIMITED: i64 = -1;

/// The text that a key must sign to produce a JWT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsigned {
    text: String,
    id: String,
}

impl Unsigned {
    fn new(mut claims: Value) -> Self {
        // Same as the reference implementation: the id is a digest of the claims without it. Nobody
        // checks it.
        let digest = Sha256::digest(claims.to_string());
        let id = BASE32_NOPAD.encode(digest.as_slice());
        if let Some(claims) = claims.as_object_mut() {
            claims.insert("jti".to_owned(), json!(id));
        }
        let header = json!({"alg": "ed25519-nkey", "typ": "JWT"});
        let part = |json: Value| URL_SAFE_NO_PAD.encode(json.to_string());
        let text = format!("{}.{}", part(header), part(claims));
        Self { text, id }
    }

    /// The bytes to sign.
    pub fn message(&self) -> &[u8] {
        self.text.as_bytes()
    }

    /// Its ID, for audit.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The JWT.
    pub fn signed(&self, signature: &[u8; 64]) -> String {
        format!("{}.{}", self.text, URL_SAFE_NO_PAD.encode(signature))
    }
}

/// The operator, which may create accounts.
#[derive(Clone, Debug)]
pub struct Operator {
    /// Its name.
    pub name: String,
    /// Its identity, which signs nothing but this JWT.
    pub key: PublicKey,
    /// The keys that sign accounts.
    pub signing_keys: Vec<PublicKey>,
    /// The account that may push and revoke.
    pub system_account: PublicKey,
}

impl Operator {
    /// The JWT, to be signed by the identity key.
    pub fn unsigned(&self, now: Timestamp) -> Unsigned {
        let signing_keys: Vec<_> = self.signing_keys.iter().map(ToString::to_string).collect();
        Unsigned::new(json!({
            "iat": now.unix_seconds(), "iss": self.key.to_string(), "sub": self.key.to_string(),
            "name": self.name,
            "nats": {
                "type": "operator", "version": VERSION,
                "signing_keys": signing_keys,
                "system_account": self.system_account.to_string(),
                // The identity key stays offline: anything else that it signs is refused.
                "strict_signing_key_usage": true,
            },
        }))
    }
}

/// Revoked users, each with the time of revocation: JWTs issued before it are no longer valid.
pub type Revocations = BTreeMap<PublicKey, Timestamp>;

/// An account: its own subject space.
#[derive(Clone, Debug)]
pub struct Account {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub key: PublicKey,
    /// The operator's signing key.
    pub issuer: PublicKey,
    /// The keys that sign users, and what each of them may grant.
    pub signing_keys: Vec<(PublicKey, Scope)>,
    /// Revoked users.
    pub revocations: Revocations,
}

/// What the signing key of an account may grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Subjects with the user's own name in them.
    Component,
    /// Creating the stream of events.
    Stream,
    /// Whatever the user's JWT says.
    Any,
}

impl Scope {
    /// The key, and what the server allows its users.
    fn of_key(self, key: &PublicKey) -> Value {
        let (role, template) = match self {
            Self::Any => return json!(key.to_string()),
            Self::Component => ("component", component_template()),
            Self::Stream => ("stream", stream_template()),
        };
        json!({
            "kind": "user_scope", "key": key.to_string(), "role": role, "template": template,
        })
    }
}

impl Account {
    /// The JWT, to be signed by the operator's signing key.
    pub fn unsigned(&self, now: Timestamp) -> Unsigned {
        let revocations: BTreeMap<String, i64> = self
            .revocations
            .iter()
            .map(|(user, since)| (user.to_string(), since.unix_seconds()))
            .collect();
        let signing_keys = self.signing_keys.iter().map(|(key, scope)| scope.of_key(key));
        let signing_keys: Vec<Value> = signing_keys.collect();
        // The system account must have none.
        let stores = self.signing_keys.iter().any(|(_, scope)| *scope == Scope::Stream);
        let storage = if stores { UNLIMITED } else { 0 };
        let mut nats = json!({
            "type": "account", "version": VERSION,
            "limits": {
                "subs": UNLIMITED, "data": UNLIMITED, "payload": UNLIMITED, "imports": UNLIMITED,
                "exports": UNLIMITED, "wildcards": true, "conn": UNLIMITED, "leaf": UNLIMITED,
                "mem_storage": storage, "disk_storage": storage, "streams": storage,
                "consumer": storage,
            },
            "default_permissions": {"pub": {}, "sub": {}},
            "signing_keys": signing_keys,
        });
        if let (Some(nats), false) = (nats.as_object_mut(), revocations.is_empty()) {
            nats.insert("revocations".to_owned(), json!(revocations));
        }
        Unsigned::new(json!({
            "iat": now.unix_seconds(), "iss": self.issuer.to_string(),
            "sub": self.key.to_string(), "name": self.name, "nats": nats,
        }))
    }
}

/// Stream that keeps events.
pub const EVENTS: &str = "EVENTS";
/// The API subject where readers of stored events request them (JetStream API, reference
/// "Consumers").
pub const READ_EVENTS: &str = "$JS.API.CONSUMER.CREATE.EVENTS";
/// How long the ID of a message is remembered to detect duplicates, in nanoseconds.
const KNOWN: u64 = 120_000_000_000;
/// Retention of events, in nanoseconds: one day.
const KEPT: u64 = 86_400_000_000_000;
/// Maximum size of all stored events, in bytes.
pub(super) const KEPT_BYTES: u64 = 512 << 20;

/// The event stream, replicated on this many servers.
pub fn events_stream(replicas: u32) -> Value {
    json!({
        "name": EVENTS, "subjects": ["evt.>"], "retention": "limits", "storage": "file",
        "discard": "old", "num_replicas": replicas, "duplicate_window": KNOWN, "max_age": KEPT,
        "max_bytes": KEPT_BYTES, "max_consumers": UNLIMITED, "max_msgs": UNLIMITED,
        "max_msg_size": UNLIMITED,
    })
}

/// What the server allows each component; `{{name()}}` is the name in the user's JWT.
fn component_template() -> Value {
    json!({
        // Everyone reads events, so anyone may request stored ones. The server does not send them
        // to a subject of the stream.
        "pub": {"allow": ["evt.{{name()}}.>", "req.>", "_INBOX.>", READ_EVENTS]},
        // Answers arrive at the component's own inbox; nobody reads those of others.
        "sub": {"allow": ["evt.>", "req.{{name()}}.>", "_INBOX.{{name()}}.>"]},
        "subs": UNLIMITED, "data": UNLIMITED, "payload": UNLIMITED,
    })
}

/// What the server allows the user that creates the stream of events: only that.
fn stream_template() -> Value {
    json!({
        "pub": {"allow": [stream_call("CREATE"), stream_call("UPDATE")]},
        "sub": {"allow": ["_INBOX.>"]},
        "subs": UNLIMITED, "data": UNLIMITED, "payload": UNLIMITED,
    })
}

/// Subject of the calls that manage the stream of events (JetStream API, reference "Streams").
pub fn stream_call(verb: &str) -> String {
    format!("$JS.API.STREAM.{verb}.{EVENTS}")
}

/// Name of a component's user; its subjects and its inbox begin with it. Neither namespace nor name contains a
/// dot, so it cannot reach into another's subjects.
pub fn user_name(component: &caller::Account) -> String {
    format!("{}.{}", component.namespace(), component.name())
}

/// A user: a client that connects.
#[derive(Clone, Debug)]
pub struct User {
    /// Its name.
    pub name: String,
    /// Its key.
    pub key: PublicKey,
    /// Its account.
    pub account: PublicKey,
    /// The key of the account that signs the JWT. Not the identity of the account: if the operator requires
    /// signing keys, the server does not accept that identity as an issuer of users.
    pub issuer: PublicKey,
    /// What that key may grant.
    pub scope: Scope,
    /// When the JWT expires.
    pub expires: Timestamp,
}

impl User {
    /// The JWT, to be signed by one of the account's signing keys.
    pub fn unsigned(&self, now: Timestamp) -> Unsigned {
        debug_assert_eq!(self.key.kind(), KeyKind::User);
        let mut nats = json!({
            "type": "user", "version": VERSION,
            // The server looks for the issuer among its signing keys.
            "issuer_account": self.account.to_string(),
        });
        // A user of a scope may say nothing about its permissions, or the server refuses it.
        if let (Scope::Any, Some(nats)) = (self.scope, nats.as_object_mut()) {
            for limit in ["subs", "data", "payload"] {
                nats.insert(limit.to_owned(), json!(UNLIMITED));
            }
            nats.insert("pub".to_owned(), json!({}));
            nats.insert("sub".to_owned(), json!({}));
        }
        Unsigned::new(json!({
            "iat": now.unix_seconds(), "exp": self.expires.unix_seconds(),
            "iss": self.issuer.to_string(), "sub": self.key.to_string(), "name": self.name,
            "nats": nats,
        }))
    }
}
