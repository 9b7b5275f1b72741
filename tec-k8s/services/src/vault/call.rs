//! Calls made for bootstrap requests, on behalf of the caller or the controller.

use core::net::IpAddr;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use tec_core::secret::SecretBytes;

use super::{AnswerError, MOUNTS, Request, Response, answer};
use crate::caller::{Account, Role};
use crate::tls::SigningRequest;

/// A login that the vault accepted. Only the data in it is proven about the caller.
#[derive(Debug)]
#[non_exhaustive]
pub struct Login {
    /// The caller's vault token.
    pub token: SecretBytes,
    /// The caller's service account.
    pub account: Account,
    /// UID of the service account.
    pub account_uid: String,
}

#[derive(Deserialize)]
struct Answer {
    auth: Auth,
}

#[derive(Deserialize)]
struct Auth {
    #[serde(deserialize_with = "answer::secret")]
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

/// The subject of a certificate. The controller chooses the names, never the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// The common name.
    pub common_name: String,
    /// Alternative names.
    pub hosts: Vec<String>,
    /// Alternative names that are addresses.
    pub addresses: Vec<IpAddr>,
}

impl Subject {
    /// A subject that nobody connects to: it has only a common name.
    pub fn named(common_name: &str) -> Self {
        Self { common_name: common_name.to_owned(), ..Self::default() }
    }

    fn body(&self) -> Value {
        let addresses: Vec<String> = self.addresses.iter().map(IpAddr::to_string).collect();
        json!({
            "common_name": self.common_name, "alt_names": self.hosts.join(","),
            "ip_sans": addresses.join(","),
            "exclude_cn_from_sans": self.hosts.is_empty(),
        })
    }
}

#[derive(Deserialize)]
struct Signatures {
    batch_results: Vec<Signature>,
}

#[derive(Deserialize)]
struct Signature {
    signature: Option<String>,
}

#[derive(Deserialize)]
struct Keys {
    keys: BTreeMap<String, Key>,
}

#[derive(Deserialize)]
struct Key {
    public_key: String,
}

/// Opens the vault with this key.
pub(super) fn unseal(key: &SecretBytes) -> Request {
    Request::post("sys/unseal", &json!({"key": answer::text(key, "to unseal")}))
}

/// Exchanges a service-account token.
pub fn log_in(role: Role, token: &SecretBytes) -> Request {
    let body = json!({"role": role.as_str(), "jwt": answer::text(token, "to log in")});
    Request::post("auth/kubernetes/login", &body)
}

/// The caller that the vault recognized; `None` if it refused, or gave an unexpected answer.
pub fn logged_in(answer: &Response) -> Option<Login> {
    let Auth { client_token, metadata } = answer.json::<Answer>().ok()?.auth;
    Some(Login {
        token: client_token,
        account: Account::new(&metadata.namespace, &metadata.name).ok()?,
        account_uid: metadata.uid,
    })
}

/// Requests a certificate with its key, to be read by
/// [`Material::from_issued`](crate::tls::Material::from_issued).
pub fn issue(role: &str, subject: &Subject) -> Request {
    let mut body = subject.body();
    if let Some(body) = body.as_object_mut() {
        // OpenSearch accepts no other form.
        body.insert("private_key_format".to_owned(), json!("pkcs8"));
    }
    Request::post(format!("{}/issue/{role}", MOUNTS.pki_intermediate), &body)
}

/// Requests a certificate for a key that its owner keeps, to be read by
/// [`Material::from_signed`](crate::tls::Material::from_signed).
pub fn certify(role: &str, subject: &Subject, request: &SigningRequest) -> Request {
    let mut body = subject.body();
    if let Some(body) = body.as_object_mut() {
        body.insert("csr".to_owned(), json!(request.as_str()));
    }
    Request::post(format!("{}/sign/{role}", MOUNTS.pki_intermediate), &body)
}

/// Signs these messages with this version of a NATS key.
pub fn sign(key: &str, version: u32, messages: &[Vec<u8>]) -> Request {
    let inputs = messages.iter().map(|message| json!({"input": STANDARD.encode(message)}));
    let body = json!({"batch_input": inputs.collect::<Vec<_>>(), "key_version": version});
    Request::post(format!("{}/sign/{key}", MOUNTS.transit), &body)
}

/// The signatures, in the order of the messages; `None` for one that is missing or malformed.
pub fn signatures(answer: &Response) -> Result<Vec<Option<[u8; 64]>>, AnswerError> {
    let Signatures { batch_results } = answer.data()?;
    // vault:v<version>:<base64>
    let bytes = |Signature { signature }: Signature| {
        let encoded = signature.as_deref()?.rsplit(':').next()?;
        STANDARD.decode(encoded).ok()?.try_into().ok()
    };
    Ok(batch_results.into_iter().map(bytes).collect())
}

/// Creates a NATS key, or reads the existing one.
pub fn ensure_key(key: &str) -> Request {
    let body = json!({"type": "ed25519", "exportable": false});
    Request::post(format!("{}/keys/{key}", MOUNTS.transit), &body)
}

/// Reads the public half of a NATS key.
pub fn read_key(key: &str) -> Request {
    Request::get(format!("{}/keys/{key}", MOUNTS.transit))
}

/// Creates the next version of a NATS key; the earlier ones stay.
pub fn rotate_key(key: &str) -> Request {
    Request::post(format!("{}/keys/{key}/rotate", MOUNTS.transit), &json!({}))
}

/// The public halves of all versions of a key, by their version: Ed25519 (RFC 8032, section 5.1.5).
pub fn public_keys(answer: &Response) -> Result<BTreeMap<u32, [u8; 32]>, AnswerError> {
    let Keys { keys } = answer.data()?;
    let half = |(version, key): (String, Key)| {
        let bytes = STANDARD.decode(key.public_key).ok()?;
        Some((version.parse().ok()?, bytes.try_into().ok()?))
    };
    Ok(keys.into_iter().filter_map(half).collect())
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
    fn names_and_addresses_are_asked_for_whoever_made_the_key() {
        let subject = Subject {
            common_name: "comp-a.apps.svc".to_owned(),
            hosts: vec!["comp-a.apps.svc".to_owned(), "localhost".to_owned()],
            addresses: vec![[10, 1, 2, 3].into()],
        };
        let pem = "-----BEGIN CERTIFICATE REQUEST-----\nAA==\n-----END CERTIFICATE REQUEST-----\n";
        let of = |request: Request| {
            let body = request.body.unwrap();
            let body: Value = serde_json::from_slice(body.expose("to look at it")).unwrap();
            (request.path, body)
        };
        let (issued, ours) = of(issue("component", &subject));
        let (signed, theirs) = of(certify("component", &subject, &pem.parse().unwrap()));
        assert!(issued.ends_with("/issue/component") && signed.ends_with("/sign/component"));
        for body in [&ours, &theirs] {
            assert_eq!(body["ip_sans"], "10.1.2.3");
            assert_eq!(body["alt_names"], "comp-a.apps.svc,localhost");
        }
        assert_eq!(ours["private_key_format"], "pkcs8");
        assert_eq!(theirs["csr"], pem);
    }

    #[test]
    fn signatures_and_keys_have_their_exact_length() {
        let signed = |bytes: &[u8]| {
            let text = STANDARD.encode(bytes);
            let signed = json!({"signature": format!("vault:v1:{text}")});
            let results = json!([signed, {"error": "no"}]);
            let body = json!({"data": {"batch_results": results}}).to_string();
            signatures(&answer(&body)).unwrap()
        };
        assert_eq!(signed(&[7; 64]), [Some([7; 64]), None]);
        assert_eq!(signed(&[7; 63]), [None, None]);
        let key = STANDARD.encode([9; 32]);
        let body = format!(
            r#"{{"data":{{"latest_version":2,"keys":{{"1":{{"public_key":"AA=="}},
                "2":{{"public_key":"{key}"}}}}}}}}"#
        );
        let halves = BTreeMap::from([(2, [9; 32])]);
        assert_eq!(public_keys(&answer(&body)).unwrap(), halves, "the other one is too short");
    }
}
