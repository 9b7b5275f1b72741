//! Passwords of OpenSearch users, as the vault stores them: each version with its creation time.

use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use tec_core::secret::SecretBytes;
use tec_core::time::Timestamp;

use super::{AnswerError, MOUNTS, Request, Response, answer};

/// A password.
#[derive(Debug)]
#[non_exhaustive]
pub struct Stored {
    /// The password.
    pub password: SecretBytes,
    /// Its number; the first is 1.
    pub version: u64,
    /// When it was created.
    pub created: Timestamp,
}

#[derive(Deserialize)]
struct Versioned {
    data: Data,
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Data {
    #[serde(deserialize_with = "answer::secret")]
    password: SecretBytes,
}

#[derive(Deserialize)]
struct Metadata {
    version: u64,
    created_time: Timestamp,
}

#[derive(Deserialize)]
struct Random {
    #[serde(deserialize_with = "answer::secret")]
    random_bytes: SecretBytes,
}

fn path(user: &str) -> String {
    format!("{}/data/{user}", MOUNTS.opensearch)
}

/// Reads the latest password of a user.
pub fn read(user: &str) -> Request {
    Request::get(path(user))
}

/// Requests a new password from the vault: 32 random bytes in hex, short enough for bcrypt.
pub fn draw() -> Request {
    Request::post(format!("{}/random/32", MOUNTS.transit), &json!({"format": "hex"}))
}

/// The new password.
pub fn drawn(answer: &Response) -> Result<SecretBytes, AnswerError> {
    Ok(answer.data::<Random>()?.random_bytes)
}

/// Stores a new password, unless someone else has replaced the old one in the meantime.
pub fn replace(user: &str, old: &Stored, new: &SecretBytes) -> Request {
    let body = json!({
        "options": {"cas": old.version},
        "data": {"password": answer::text(new, "to store it")},
    });
    Request::post(path(user), &body)
}

impl Stored {
    /// Parses the answer to [`read`].
    pub fn from_answer(answer: &Response) -> Result<Self, AnswerError> {
        let Versioned { data, metadata } = answer.data()?;
        Ok(Self {
            password: data.password,
            version: metadata.version,
            created: metadata.created_time,
        })
    }

    /// Whether it has expired.
    pub fn is_due(&self, life: Duration, now: Timestamp) -> bool {
        let age = now.unix_seconds().saturating_sub(self.created.unix_seconds());
        u64::try_from(age).is_ok_and(|age| age >= life.as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored() -> Stored {
        let body = r#"{"data":{"data":{"password":"canary"},"metadata":{"version":3,
            "created_time":"2026-11-21T09:00:00.123456789Z","destroyed":false}}}"#;
        Stored::from_answer(&Response::new(200, body.as_bytes().to_vec())).unwrap()
    }

    #[test]
    fn a_password_is_due_at_the_end_of_its_life_and_not_before() {
        let (stored, life) = (stored(), Duration::from_mins(1));
        assert!(!stored.is_due(life, stored.created.plus_seconds(59)));
        assert!(stored.is_due(life, stored.created.plus_seconds(60)));
        let earlier = stored.created.plus_seconds(-3600);
        assert!(!stored.is_due(life, earlier), "a clock went backwards");
        assert!(!format!("{stored:?}").contains("canary"));
    }

    #[test]
    fn a_new_password_replaces_the_version_that_was_read_and_no_other() {
        let request = replace("admin", &stored(), &SecretBytes::new(b"new".to_vec()));
        assert!(request.path.ends_with("kv-opensearch/data/admin"));
        let body = request.body.unwrap();
        let body: serde_json::Value = serde_json::from_slice(body.expose("test")).unwrap();
        assert_eq!(body, json!({"options": {"cas": 3}, "data": {"password": "new"}}));
    }
}
