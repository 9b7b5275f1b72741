//! Calls that bootstrap requests make, in the name of the caller or the controller.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::json;

use super::AnswerError;
use super::MOUNTS;
use super::Request;
use super::Response;
use super::http;
use crate::secret::SecretBytes;
use crate::service::caller::Account;
use crate::service::caller::Role;

/// A login that the vault accepted. Only what stands here is proven about the caller.
#[derive(Debug)]
#[non_exhaustive]
pub struct Login {
    /// The caller's token of the vault.
    pub token: SecretBytes,
    /// The caller's service account.
    pub account: Account,
    /// Identity of the service account.
    pub account_uid: String,
}

#[derive(Deserialize)]
struct Answer {
    auth: Auth,
}

#[derive(Deserialize)]
struct Auth {
    #[serde(deserialize_with = "http::secret")]
    client_token: SecretBytes,
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(rename = "service_account_name")]
    name: String,
    #[serde(rename = "service_account_namespace")]
    namespace: String,
    #[serde(rename = "service_account_uid")]
    uid: String,
}

#[derive(Deserialize)]
struct Signature {
    signature: String,
}

#[derive(Deserialize)]
struct Keys {
    latest_version: u32,
    keys: BTreeMap<String, Key>,
}

#[derive(Deserialize)]
struct Key {
    public_key: String,
}

/// Exchanges a service-account token.
pub fn log_in(role: Role, token: &SecretBytes) -> Request {
    let body = json!({"role": role.as_str(), "jwt": http::text(token, "to log in")});
    Request::post("auth/kubernetes/login", &body)
}

/// Whom the vault recognized; `None` if it refused or answered in another form.
pub fn logged_in(answer: &Response) -> Option<Login> {
    let Auth {
        client_token,
        metadata,
    } = answer.json::<Answer>().ok()?.auth;
    Some(Login {
        token: client_token,
        account: Account::new(&metadata.namespace, &metadata.name).ok()?,
        account_uid: metadata.uid,
    })
}

/// Asks for a certificate with its key, to be read by [`Material`](crate::service::tls::Material).
pub fn issue(role: &str, common_name: &str, hosts: &[String]) -> Request {
    let body = json!({
        "common_name": common_name, "alt_names": hosts.join(","),
        // OpenSearch takes no other form.
        "private_key_format": "pkcs8",
        "exclude_cn_from_sans": hosts.is_empty(),
    });
    Request::post(format!("{}/issue/{role}", MOUNTS.pki_intermediate), &body)
}

/// Has a NATS key sign.
pub fn sign(key: &str, message: &[u8]) -> Request {
    let body = json!({"input": STANDARD.encode(message)});
    Request::post(format!("{}/sign/{key}", MOUNTS.transit), &body)
}

/// The signature.
///
/// # Errors
/// [`AnswerError`].
pub fn signature(answer: &Response) -> Result<Option<[u8; 64]>, AnswerError> {
    let Signature { signature } = answer.data()?;
    // vault:v<version>:<base64>
    let encoded = signature.rsplit(':').next().unwrap_or_default();
    let bytes = STANDARD.decode(encoded).ok();
    Ok(bytes.and_then(|bytes| bytes.try_into().ok()))
}

/// Makes a NATS key, or reads the one that is there.
pub fn ensure_key(key: &str) -> Request {
    let body = json!({"type": "ed25519", "exportable": false});
    Request::post(format!("{}/keys/{key}", MOUNTS.transit), &body)
}

/// Reads the public half of a NATS key.
pub fn read_key(key: &str) -> Request {
    Request::get(format!("{}/keys/{key}", MOUNTS.transit))
}

/// The public half.
///
/// # Errors
/// [`AnswerError`].
pub fn public_key(answer: &Response) -> Result<Option<[u8; 32]>, AnswerError> {
    let keys: Keys = answer.data()?;
    let key = keys.keys.get(&keys.latest_version.to_string());
    let bytes = key.and_then(|key| STANDARD.decode(&key.public_key).ok());
    Ok(bytes.and_then(|bytes| bytes.try_into().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(body: &str) -> Response {
        Response::new(200, body.as_bytes().to_vec())
    }

    #[test]
    fn a_login_proves_account_and_uid() {
        let body = r#"{"auth":{"client_token":"b.canary","lease_duration":300,"metadata":{
            "role":"component","service_account_name":"comp-a","service_account_namespace":"apps",
            "service_account_uid":"u-1"}}}"#;
        let login = logged_in(&answer(body)).unwrap();
        assert_eq!(login.account, "apps/comp-a".parse().unwrap());
        assert!(!format!("{login:?}").contains("canary"));
        assert!(logged_in(&Response::new(403, b"{}".to_vec())).is_none());
    }

    #[test]
    fn signatures_and_keys_have_their_exact_length() {
        let signed = |bytes: &[u8]| {
            let text = STANDARD.encode(bytes);
            let body = format!(r#"{{"data":{{"signature":"vault:v1:{text}"}}}}"#);
            signature(&answer(&body)).unwrap()
        };
        assert_eq!(signed(&[7; 64]), Some([7; 64]));
        assert_eq!(signed(&[7; 63]), None);
        let key = STANDARD.encode([9; 32]);
        let body = format!(
            r#"{{"data":{{"latest_version":2,"keys":{{"1":{{"public_key":"AA=="}},
                "2":{{"public_key":"{key}"}}}}}}}}"#
        );
        assert_eq!(public_key(&answer(&body)).unwrap(), Some([9; 32]));
    }
}
