//! The callers: service accounts, the unverified claims of their tokens, and what the vault's refusal of a
//! token means.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use derive_more::Display;
use serde::Deserialize;
use tec_core::secret::SecretBytes;
use tec_core::time::Timestamp;

use super::answer::{Response, Verdict};

/// Maximum length of a namespace or service account name (RFC 1123 label, as in Kubernetes).
const MAX_LABEL: usize = 63;
/// Maximum length of a token in bytes.
const MAX_TOKEN: usize = 16 * 1024;
/// A login that is denied only after this time may be valid: the vault gives the API server ten seconds, then
/// answers "permission denied".
pub const REVIEW_TIMEOUT: Duration = Duration::from_secs(9);
/// Parts of messages with status 500 of a vault that cannot write for now.
const LEADERLESS: [&str; 3] =
    ["active cluster node not found", "no space left on device", "unable to store logs"];

/// Lower-case letters, digits and inner hyphens, at most 63 (RFC 1123, section 2.1).
pub fn is_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=MAX_LABEL).contains(&text.len())
        && text.chars().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// A Kubernetes service account.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Display)]
#[display("{namespace}/{name}")]
pub struct Account {
    namespace: String,
    name: String,
}

/// Not of the form `namespace/name`, both DNS labels.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the namespace/name of a service account")]
pub struct AccountError(String);

impl Account {
    /// Validates both names.
    ///
    /// # Errors
    /// [`AccountError`] if one of them is not a label.
    pub fn new(namespace: &str, name: &str) -> Result<Self, AccountError> {
        if is_label(namespace) && is_label(name) {
            let (namespace, name) = (namespace.to_owned(), name.to_owned());
            return Ok(Self { namespace, name });
        }
        Err(AccountError(format!("{namespace}/{name}")))
    }

    /// Its namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of its service: `name.namespace.svc`.
    pub fn host(&self) -> String {
        format!("{}.{}.svc", self.name, self.namespace)
    }
}

impl std::str::FromStr for Account {
    type Err = AccountError;

    fn from_str(text: &str) -> Result<Self, AccountError> {
        let (namespace, name) =
            text.split_once('/').ok_or_else(|| AccountError(text.to_owned()))?;
        Self::new(namespace, name)
    }
}

/// The vault's role for a caller. The call determines it, never the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// The controller itself.
    Controller,
    /// NATS servers.
    Nats,
    /// OpenSearch nodes.
    OpenSearch,
    /// Brokers of components.
    Component,
    /// The telemetry collector.
    Collector,
    /// Senders of telemetry: tracers, log forwarders.
    Tracer,
    /// Programs that show telemetry to people.
    Viewer,
    /// The controller, as seen by another pod of the vault.
    Peer,
    /// The controller, while it takes a snapshot of the vault.
    Snapshot,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 9] = [
        Self::Controller,
        Self::Nats,
        Self::OpenSearch,
        Self::Component,
        Self::Collector,
        Self::Tracer,
        Self::Viewer,
        Self::Peer,
        Self::Snapshot,
    ];

    /// Name of the role, the policy and the certificate role in the vault.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Controller => "controller",
            Self::Nats => "nats",
            Self::OpenSearch => "opensearch",
            Self::Component => "component",
            Self::Collector => "telemetry-collector",
            Self::Tracer => "telemetry-client",
            Self::Viewer => "telemetry-viewer",
            Self::Peer => "controller-peer",
            Self::Snapshot => "controller-snapshot",
        }
    }
}

/// The claims of a token. None of them is proven until the vault has accepted the token.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claims {
    /// Its audiences.
    pub audiences: Vec<String>,
    /// When it expires.
    pub expires: Timestamp,
    /// The service account that it belongs to.
    pub account: Account,
    /// UID of the service account.
    pub account_uid: String,
    /// The pod that it is bound to, if any.
    pub pod: Option<Pod>,
}

/// A pod, as named by a token.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// The token is refused without a call to the vault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// Not a service-account token.
    #[error("not a service-account token")]
    Form,
    /// Issued for another audience.
    #[error("the token is for another audience")]
    Audience,
    /// Expired.
    #[error("the token has expired")]
    Expired,
}

#[derive(Deserialize)]
struct Wire {
    #[serde(default)]
    aud: Vec<String>,
    exp: i64,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Kubernetes,
}

#[derive(Deserialize)]
struct Kubernetes {
    namespace: String,
    serviceaccount: Named,
    pod: Option<Pod>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
    uid: String,
}

impl Claims {
    /// Parses a token without checking its signature, to refuse early what the vault would refuse anyway.
    pub fn read(token: &SecretBytes, audience: &str, now: Timestamp) -> Result<Self, TokenError> {
        let claims = Self::decode(token.expose("to read its claims")).ok_or(TokenError::Form)?;
        if !claims.audiences.iter().any(|aud| aud == audience) {
            return Err(TokenError::Audience);
        }
        if claims.expires <= now {
            return Err(TokenError::Expired);
        }
        Ok(claims)
    }

    fn decode(token: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(token).ok()?;
        let mut parts = text.split('.');
        let (_header, claims, _signature) = (parts.next()?, parts.next()?, parts.next()?);
        if text.len() > MAX_TOKEN || parts.next().is_some() {
            return None;
        }
        let wire: Wire = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
        let Kubernetes { namespace, serviceaccount, pod } = wire.kubernetes;
        Some(Self {
            audiences: wire.aud,
            expires: Timestamp::from_unix_seconds(wire.exp),
            account: Account::new(&namespace, &serviceaccount.name).ok()?,
            account_uid: serviceaccount.uid,
            pod,
        })
    }
}

/// Why a call is refused. The caller learns this and nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The request is malformed.
    #[error("the request is malformed")]
    BadRequest,
    /// The token is not valid.
    #[error("the token is not valid here")]
    TokenInvalid,
    /// The token has expired.
    #[error("the token has expired")]
    TokenExpired,
    /// The service account may not make this call.
    #[error("this service account may not make this call")]
    NotBound,
    /// A policy of the vault forbids it.
    #[error("the policy does not allow this")]
    Policy,
    /// The API server did not answer the vault.
    #[error("cannot verify tokens at the moment")]
    ReviewDown,
    /// The API server does not know an address for the caller's pod yet.
    #[error("this pod has no address yet")]
    PodPending,
    /// The vault is sealed.
    #[error("the vault is sealed")]
    VaultSealed,
    /// The vault does not respond.
    #[error("the vault does not answer")]
    VaultDown,
    /// The bootstrap is not done yet.
    #[error("the platform is not set up yet")]
    NotBootstrapped,
    /// Too many calls.
    #[error("too many calls")]
    Rate,
    /// The vault returned an invalid answer.
    #[error("the vault's answer is not usable")]
    VaultError,
}

impl Refusal {
    /// The reason in machine-readable form.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::BadRequest => "BAD_REQUEST",
            Self::TokenInvalid => "TOKEN_INVALID",
            Self::TokenExpired => "TOKEN_EXPIRED",
            Self::NotBound => "SA_NOT_BOUND",
            Self::Policy => "POLICY",
            Self::ReviewDown => "TOKEN_REVIEW_DOWN",
            Self::PodPending => "POD_PENDING",
            Self::VaultSealed => "VAULT_SEALED",
            Self::VaultDown => "VAULT_DOWN",
            Self::NotBootstrapped => "NOT_BOOTSTRAPPED",
            Self::Rate => "RATE",
            Self::VaultError => "VAULT_ERROR",
        }
    }

    /// Whether the same call may succeed later.
    pub const fn is_transient(self) -> bool {
        matches!(
            self,
            Self::ReviewDown
                | Self::PodPending
                | Self::VaultSealed
                | Self::VaultDown
                | Self::NotBootstrapped
                | Self::Rate
        )
    }
}

impl From<TokenError> for Refusal {
    fn from(error: TokenError) -> Self {
        match error {
            TokenError::Form => Self::BadRequest,
            TokenError::Audience => Self::TokenInvalid,
            TokenError::Expired => Self::TokenExpired,
        }
    }
}

/// Whether the API server answers callers other than the vault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reviewer {
    /// It answers.
    Up,
    /// It does not.
    Down,
}

/// What a refused login means. "permission denied" alone means nothing: the vault gives the same
/// answer when it cannot reach the API server.
pub fn classify_login(answer: &Response, took: Duration, reviewer: Reviewer) -> Refusal {
    match answer.verdict() {
        Verdict::Denied if answer.says(&["token is expired"]) => Refusal::TokenExpired,
        Verdict::Denied if answer.says(&["invalid audience"]) => Refusal::TokenInvalid,
        Verdict::Denied if answer.says(&["not authorized"]) => Refusal::NotBound,
        Verdict::Denied if took >= REVIEW_TIMEOUT || reviewer == Reviewer::Down => {
            Refusal::ReviewDown
        }
        Verdict::Invalid | Verdict::Absent if answer.says(&["invalid role name"]) => {
            Refusal::NotBootstrapped
        }
        Verdict::Denied | Verdict::Invalid => Refusal::TokenInvalid,
        verdict => classify(answer, verdict),
    }
}

/// What any other refused call on behalf of the caller means.
pub fn classify_call(answer: &Response) -> Refusal {
    match answer.verdict() {
        Verdict::Denied => Refusal::Policy,
        Verdict::Invalid => Refusal::BadRequest,
        verdict => classify(answer, verdict),
    }
}

fn classify(answer: &Response, verdict: Verdict) -> Refusal {
    match verdict {
        Verdict::Unavailable if answer.status == 503 => Refusal::VaultSealed,
        // Without a leader or without space on its disk: both pass.
        Verdict::Unavailable if answer.says(&LEADERLESS) => Refusal::VaultDown,
        Verdict::Unavailable if answer.status == 500 => Refusal::VaultError,
        Verdict::Unavailable => Refusal::VaultDown,
        Verdict::Absent => Refusal::NotBootstrapped,
        _ => Refusal::VaultError,
    }
}

#[cfg(test)]
mod tests;
