//! Requests to a vault and its responses, as values.
//!
//! OpenBao and Vault use different statuses for the same result: an absent mount is 400 for one and 404 for
//! the other. Only [`Response::verdict`] knows these differences.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tec_core::secret::SecretBytes;

/// The verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Read.
    Get,
    /// List; sent as GET with `list=true`, which proxies understand.
    List,
    /// Write.
    Post,
    /// Remove.
    Delete,
}

/// One call.
#[derive(Debug)]
#[non_exhaustive]
pub struct Request {
    /// The verb.
    pub method: Method,
    /// Path below `/v1/`, without a leading slash.
    pub path: String,
    /// JSON, which may contain secrets.
    pub body: Option<SecretBytes>,
    /// Token of the caller.
    pub token: Option<SecretBytes>,
}

impl Request {
    fn new(method: Method, path: impl Into<String>, body: Option<&Value>) -> Self {
        Self {
            method,
            path: path.into(),
            body: body.map(|body| SecretBytes::new(body.to_string().into_bytes())),
            token: None,
        }
    }

    /// Reads.
    pub fn get(path: impl Into<String>) -> Self {
        Self::new(Method::Get, path, None)
    }

    /// Lists.
    pub fn list(path: impl Into<String>) -> Self {
        Self::new(Method::List, path, None)
    }

    /// Writes.
    pub fn post(path: impl Into<String>, body: &Value) -> Self {
        Self::new(Method::Post, path, Some(body))
    }

    /// Removes.
    pub fn delete(path: impl Into<String>) -> Self {
        Self::new(Method::Delete, path, None)
    }

    /// Authenticates with this token.
    pub fn by(mut self, token: &SecretBytes) -> Self {
        self.token = Some(token.duplicate("every call carries its token"));
        self
    }
}

/// An answer.
#[derive(Debug)]
#[non_exhaustive]
pub struct Response {
    /// The status.
    pub status: u16,
    /// The body, which may contain secrets.
    pub body: SecretBytes,
}

/// What an answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// Success, with the result if any.
    Good,
    /// The thing does not exist.
    Absent,
    /// It exists already.
    Exists,
    /// Not allowed.
    Denied,
    /// The call is wrong.
    Invalid,
    /// The vault cannot answer at the moment: sealed, without leader, or broken.
    Unavailable,
}

/// The answer is not what the API describes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// A refusal.
    #[error("the vault answered {status}: {verdict:?}")]
    Refused {
        /// The status.
        status: u16,
        /// What it means.
        verdict: Verdict,
    },
    /// Not the JSON that this call returns.
    #[error("the vault's answer is malformed")]
    Form(#[source] serde_json::Error),
}

#[derive(Deserialize)]
struct Errors {
    #[serde(default)]
    errors: Vec<String>,
}

#[derive(Deserialize)]
struct Data<T> {
    data: T,
}

/// Parts of messages that say "absent" with status 400.
const ABSENT: [&str; 5] = [
    "no secret engine mount at",
    "no auth engine at",
    "unable to find pki issuer",
    "no value found",
    "unsupported path",
];
/// Parts of messages that say "exists" with status 400.
const EXISTS: [&str; 5] = [
    "path is already in use",
    "already initialized",
    "issuer name already in use",
    "check-and-set parameter did not match",
    "already in progress",
];

impl Response {
    /// A response, as received.
    pub fn new(status: u16, body: Vec<u8>) -> Self {
        let body = SecretBytes::new(body);
        Self { status, body }
    }

    /// What it means.
    pub fn verdict(&self) -> Verdict {
        match self.status {
            200..=299 => Verdict::Good,
            403 => Verdict::Denied,
            404 => Verdict::Absent,
            // OpenBao answers this for an issuer that does not exist.
            500 if self.says(&ABSENT) => Verdict::Absent,
            429 | 500..=599 | 472 | 473 => Verdict::Unavailable,
            _ if self.says(&ABSENT) => Verdict::Absent,
            _ if self.says(&EXISTS) => Verdict::Exists,
            _ => Verdict::Invalid,
        }
    }

    /// Whether an error in the answer contains one of these parts, ignoring case.
    pub fn says(&self, parts: &[&str]) -> bool {
        let errors: Result<Errors, _> = serde_json::from_slice(self.body.expose("to read errors"));
        errors.is_ok_and(|Errors { errors }| {
            errors.iter().any(|error| {
                let error = error.to_lowercase();
                parts.iter().any(|part| error.contains(&part.to_lowercase()))
            })
        })
    }

    /// Whether the answer, whatever its status, has this member with a value.
    pub(crate) fn has(&self, member: &str) -> bool {
        let body: Result<Value, _> =
            serde_json::from_slice(self.body.expose("to look for a member"));
        body.is_ok_and(|body| body.get(member).is_some_and(|value| !value.is_null()))
    }

    /// The whole answer.
    ///
    /// # Errors
    /// [`AnswerError`]; its text never contains a part of the answer that could be secret.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, AnswerError> {
        match self.verdict() {
            Verdict::Good => serde_json::from_slice(self.body.expose("to read the answer"))
                .map_err(AnswerError::Form),
            verdict => Err(AnswerError::Refused { status: self.status, verdict }),
        }
    }

    /// The member `data` of the answer.
    ///
    /// # Errors
    /// Same as [`json`](Self::json).
    pub fn data<T: DeserializeOwned>(&self) -> Result<T, AnswerError> {
        self.json::<Data<T>>().map(|answer| answer.data)
    }
}

/// Deserializes text straight into a secret.
pub(crate) fn secret<'de, D: serde::Deserializer<'de>>(from: D) -> Result<SecretBytes, D::Error> {
    String::deserialize(from).map(|text| SecretBytes::new(text.into_bytes()))
}

/// A secret as JSON text.
pub(super) fn text(secret: &SecretBytes, why: &'static str) -> Value {
    Value::from(String::from_utf8_lossy(secret.expose(why)).as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &str) -> Response {
        Response::new(status, body.as_bytes().to_vec())
    }

    #[test]
    fn openbao_and_vault_say_the_same_with_other_statuses() {
        let absent = r#"{"errors":["No secret engine mount at kubefox/kv/"]}"#;
        assert_eq!(answer(400, absent).verdict(), Verdict::Absent);
        assert_eq!(answer(404, r#"{"errors":[]}"#).verdict(), Verdict::Absent);
        let exists = r#"{"errors":["path is already in use at kubernetes/"]}"#;
        assert_eq!(answer(400, exists).verdict(), Verdict::Exists);
        let issuer =
            r#"{"errors":["1 error occurred: unable to find PKI issuer for reference: x"]}"#;
        assert_eq!(answer(500, issuer).verdict(), Verdict::Absent);
        assert_eq!(answer(503, "").verdict(), Verdict::Unavailable);
        assert_eq!(answer(403, "").verdict(), Verdict::Denied);
        assert_eq!(answer(400, "not JSON").verdict(), Verdict::Invalid);
        assert_eq!(answer(204, "").verdict(), Verdict::Good);
    }

    #[test]
    fn neither_request_nor_answer_prints_its_content() {
        let token = SecretBytes::new(b"canary".to_vec());
        let body = serde_json::json!({"key": "canary"});
        let request = Request::post("sys/unseal", &body).by(&token);
        let answer = answer(200, r#"{"root_token":"canary"}"#);
        assert!(!format!("{request:?}{answer:?}").contains("canary"));
    }
}
