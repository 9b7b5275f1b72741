//! The JSON of the KBS attestation protocol 0.4.0.

use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tec_core::code::Code;
use tec_core::id::{AttemptId, ParseResourcePathError, ResourcePath};

/// The one protocol version: servers accept exactly this, and clients send exactly this.
pub const PROTOCOL_VERSION: &str = "0.4.0";
/// Common prefix of all paths.
pub const BASE_PATH: &str = "/kbs/v0";
/// Name of the session cookie.
pub const SESSION_COOKIE: &str = "kbs-session-id";
/// Namespace of the error types.
pub const ERROR_NAMESPACE: &str = "https://github.com/confidential-containers/kbs/errors/";

/// Body of `POST auth`. All members are required; unknown ones are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AuthRequest {
    /// Protocol version.
    pub version: String,
    /// Type of evidence that will follow.
    pub tee: String,
    /// Any JSON; clients send an object with `supported-hash-algorithms`.
    #[serde(rename = "extra-params")]
    pub extra_params: Value,
}

impl AuthRequest {
    /// The request of this client for evidence of one type.
    pub fn new(tee: impl Into<String>, extra_params: Value) -> Self {
        Self { version: PROTOCOL_VERSION.to_owned(), tee: tee.into(), extra_params }
    }
}

/// Reply to `POST auth`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Challenge {
    /// Standard base64 of 32 random bytes; it is used in this form everywhere.
    pub nonce: String,
    /// The empty string, except for one type of evidence.
    #[serde(rename = "extra-params", default)]
    pub extra_params: Value,
}

impl Challenge {
    /// A challenge without extra parameters.
    pub fn new(nonce: impl Into<String>) -> Self {
        Self { nonce: nonce.into(), extra_params: Value::String(String::new()) }
    }
}

/// Body of `POST attest`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub struct AttestRequest {
    /// Init-data, or null.
    #[serde(default)]
    pub init_data: Option<InitData>,
    /// What the evidence binds.
    pub runtime_data: RuntimeData,
    /// The evidence.
    pub tee_evidence: CompositeEvidence,
}

impl AttestRequest {
    /// A request without init-data or additional devices.
    pub fn new(runtime_data: RuntimeData, primary_evidence: Value) -> Self {
        Self {
            init_data: None,
            runtime_data,
            tee_evidence: CompositeEvidence {
                primary_evidence,
                additional_evidence: String::new(),
            },
        }
    }
}

/// Init-data as sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct InitData {
    /// `toml`.
    pub format: String,
    /// The text; its digest covers exactly these bytes.
    pub body: String,
}

/// What evidence binds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub struct RuntimeData {
    /// The challenge's nonce.
    pub nonce: String,
    /// The session key; kept as received, since its canonical form is hashed.
    pub tee_pubkey: Value,
}

impl RuntimeData {
    /// Runtime data.
    pub fn new(nonce: impl Into<String>, tee_pubkey: Value) -> Self {
        Self { nonce: nonce.into(), tee_pubkey }
    }
}

/// Evidence of the platform and of its devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CompositeEvidence {
    /// Evidence of the platform, as its type prescribes.
    pub primary_evidence: Value,
    /// Empty, or the JSON text of a map from type to evidence.
    pub additional_evidence: String,
}

/// Reply to `PUT escrow`, which Trustee does not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Escrowed {
    /// Number of the recovery key among those of the machine, from 1.
    pub number: u32,
}

/// Reply to `POST attest`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AttestResponse {
    /// The attestation token, a JWT.
    pub token: String,
}

impl AttestResponse {
    /// A reply.
    pub fn new(token: impl Into<String>) -> Self {
        Self { token: token.into() }
    }
}

/// The claims of a token without checking its signature: for display, never for a decision.
///
/// `None` if the text is not a JWT.
pub fn token_claims(token: &str) -> Option<Value> {
    let mut parts = token.trim().split('.');
    let (_, payload, _) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    let payload = URL_SAFE_NO_PAD.decode(payload).ok()?;
    let claims: Value = serde_json::from_slice(&payload).ok()?;
    claims.is_object().then_some(claims)
}

/// A resource as users write it: `kbs:///a/b/c`, `/a/b/c` or `a/b/c`. In requests there is exactly one slash
/// between segments, since a KBS does not collapse them (clevis-pin-trustee).
pub fn parse_resource(text: &str) -> Result<ResourcePath, ParseResourcePathError> {
    let path = text.strip_prefix("kbs:///").or_else(|| text.strip_prefix('/')).unwrap_or(text);
    path.parse()
}

/// Body of every error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ErrorBody {
    /// [`ERROR_NAMESPACE`] and the name of the variant.
    #[serde(rename = "type")]
    pub kind: String,
    /// Human-readable message.
    #[serde(default)]
    pub detail: String,
}

impl ErrorBody {
    /// An error body.
    pub fn new(kind: &ErrorKind, detail: impl Into<String>) -> Self {
        Self { kind: format!("{ERROR_NAMESPACE}{kind}"), detail: detail.into() }
    }

    /// The variant.
    pub fn error_kind(&self) -> ErrorKind {
        let name = self.kind.rsplit('/').next().unwrap_or_default();
        name.parse().unwrap_or(ErrorKind::Other(String::new()))
    }

    /// The code at the beginning of the detail, if the server is one of this project's.
    pub fn code(&self) -> Option<Code> {
        self.detail.split_whitespace().next()?.parse().ok()
    }

    /// The attempt named in the detail, if the server is one of this project's.
    pub fn attempt(&self) -> Option<AttemptId> {
        let (_, rest) = self.detail.split_once("(attempt ")?;
        rest.split(')').next()?.parse().ok()
    }
}

macro_rules! error_kinds {
    ($($(#[doc = $doc:literal])+ $name:ident $(| $old:literal)*;)*) => {
        /// Type of an error, by the suffix of its URL (KBS attestation protocol 0.4.0).
        #[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
        #[display("{}", self.as_str())]
        #[non_exhaustive]
        pub enum ErrorKind {
            $($(#[doc = $doc])+ $name,)*
            /// A type that this version does not know: its name, cut to 64 characters.
            Other(String),
        }

        impl ErrorKind {
            /// The name on the wire.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$name => stringify!($name),)*
                    Self::Other(name) => name,
                }
            }
        }

        impl FromStr for ErrorKind {
            type Err = std::convert::Infallible;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                // Cleaned first, so that a name written by `as_str` parses to the same type.
                let letters = name.chars().filter(char::is_ascii_alphanumeric);
                let name: String = letters.take(64).collect();
                Ok(match name.as_str() {
                    $(stringify!($name) $(| $old)* => Self::$name,)*
                    _ => Self::Other(name),
                })
            }
        }
    };
}

error_kinds! {
    /// The handshake failed.
    AttestationError;
    /// The admin token is missing or not accepted.
    AdminAuthAccess | "AdminAuth" | "AdminAuthInitialization";
    /// No attested session and no attestation token.
    TokenNotFound;
    /// The attestation token is not accepted.
    TokenVerifierError;
    /// The resource policy denies it.
    PolicyDeny;
    /// A policy does not parse.
    ParsePolicyError;
    /// A policy cannot be evaluated.
    PolicyEngineError | "PolicyEngine";
    /// The resource is missing, its path is invalid, or the method is unknown.
    PluginInternalError;
    /// The reference value service failed.
    RvpsError;
    /// The response cannot be encrypted.
    JweError;
    /// A body is not the expected JSON.
    SerdeError;
    /// There is no such plugin.
    PluginNotFound;
    /// The path is not part of this API.
    InvalidRequestPath;
}

impl ErrorKind {
    /// HTTP status of the error (KBS attestation protocol 0.4.0): 404 for two types, 401 for all others.
    pub fn http_status(&self) -> u16 {
        match self {
            Self::PluginNotFound | Self::InvalidRequestPath => 404,
            _ => 401,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_those_of_the_protocol() {
        let auth = AuthRequest::new("tpm", serde_json::json!({}));
        assert_eq!(
            serde_json::to_string(&auth).unwrap(),
            r#"{"version":"0.4.0","tee":"tpm","extra-params":{}}"#
        );
        assert_eq!(
            serde_json::to_string(&Challenge::new("bm8=")).unwrap(),
            r#"{"nonce":"bm8=","extra-params":""}"#
        );
        let runtime = RuntimeData::new("bm8=", serde_json::json!({"kty": "EC"}));
        assert_eq!(
            serde_json::to_string(&AttestRequest::new(runtime, serde_json::json!({}))).unwrap(),
            concat!(
                r#"{"init-data":null,"runtime-data":{"nonce":"bm8=","tee-pubkey":{"kty":"EC"}},"#,
                r#""tee-evidence":{"primary_evidence":{},"additional_evidence":""}}"#
            )
        );
    }

    #[test]
    fn resources_are_written_in_three_ways_and_mean_one_path() {
        for text in ["kbs:///a/b/c", "/a/b/c", "a/b/c"] {
            assert_eq!(parse_resource(text).unwrap().as_str(), "a/b/c");
        }
        for bad in ["kbs://host/a/b/c", "kbs:////a/b/c", "//a/b/c", "kbs+x:///a/b/c", "a//b"] {
            assert!(parse_resource(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn claims_are_shown_of_tokens_only() {
        let token = format!("e30.{}.AAAA", URL_SAFE_NO_PAD.encode(r#"{"exp":1}"#));
        assert_eq!(token_claims(&token), Some(serde_json::json!({"exp": 1})));
        for bad in ["", "a.b", "e30.e30", "e30.W10.AAAA", "a.b.c.d", "e30.!.AAAA"] {
            assert_eq!(token_claims(bad), None, "{bad}");
        }
    }

    #[test]
    fn auth_needs_all_three_members() {
        for missing in [
            r#"{"version":"0.4.0","tee":"tpm"}"#,
            r#"{"version":"0.4.0","extra-params":{}}"#,
            r#"{"tee":"tpm","extra-params":{}}"#,
        ] {
            assert!(serde_json::from_str::<AuthRequest>(missing).is_err());
        }
    }

    #[test]
    fn errors_are_told_by_suffix_with_old_names_too() {
        let body = |suffix: &str, detail: &str| ErrorBody {
            kind: format!("{ERROR_NAMESPACE}{suffix}"),
            detail: detail.to_owned(),
        };
        assert_eq!(body("PolicyDeny", "").error_kind(), ErrorKind::PolicyDeny);
        // v0.21 uses the last of these when resources are written.
        for name in ["AdminAuthAccess", "AdminAuth", "AdminAuthInitialization"] {
            assert_eq!(body(name, "").error_kind(), ErrorKind::AdminAuthAccess);
        }
        assert_eq!(body("New!", "").error_kind(), ErrorKind::Other("New".to_owned()));
        let id = "7c9e6679-7425-40de-944b-e07fc1f90ae7";
        let told = body("PolicyDeny", &format!("TEC-A412 the boot (attempt {id})"));
        assert_eq!(told.code(), Some(Code::PcrMismatch));
        assert_eq!(told.attempt().unwrap().to_string(), id);
        assert_eq!(body("PolicyDeny", "policy denied").code(), None);
    }
}
