//! AWS KMS, over its JSON protocol with Signature Version 4.

use crate::derive::DataKeyId;
use crate::envelope::KeyWrapper;
use crate::uri::AwsKey;
use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use object_store::aws::{AwsAuthorizer, AwsCredential};
use object_store::client::HttpRequest;
use serde::Deserialize;
use serde_json::json;
use tec_core::port::{PortError, PortErrorKind};
use tec_core::secret::SecretBytes;
use zeroize::{ZeroizeOnDrop, Zeroizing};

use super::http::{CallError, client, exchange, parsed};

/// Name of the service that requests are signed for.
const SERVICE: &str = "kms";
/// Name of the protocol's operations (AWS KMS API Reference).
const TARGET: &str = "TrentService";
/// Member of the encryption context, which AWS binds to the ciphertext and logs.
const CONTEXT: &str = "tec:data-key";

/// A key, by its alias.
#[derive(Debug)]
pub(super) struct AwsKms {
    key: AwsKey,
    client: reqwest::Client,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Encrypted {
    ciphertext_blob: String,
}

#[derive(Deserialize, ZeroizeOnDrop)]
#[serde(rename_all = "PascalCase")]
struct Decrypted {
    plaintext: String,
}

#[derive(Deserialize)]
struct Refusal {
    #[serde(rename = "__type")]
    kind: String,
}

impl AwsKms {
    pub(super) fn new(key: AwsKey) -> Result<Self, PortError> {
        ensure_signable(&url(&key), &key.access_key_id)?;
        let client = client(None, key.endpoint.as_ref());
        let client = client.map_err(|error| error.during("reach AWS KMS"))?;
        Ok(Self { key, client })
    }

    /// A request with its signature.
    fn signed(
        &self,
        operation: &str,
        body: &Zeroizing<String>,
    ) -> Result<reqwest::RequestBuilder, CallError> {
        let unsigned = |_| CallError::Malformed("credentials that sign");
        let secret = self.key.access_key.expose("sign the request");
        let credential = AwsCredential {
            key_id: self.key.access_key_id.clone(),
            secret_key: String::from_utf8_lossy(secret).into_owned(),
            token: None,
        };
        let mut request: HttpRequest = http::Request::post(url(&self.key))
            .header("content-type", "application/x-amz-json-1.1")
            .header("x-amz-target", format!("{TARGET}.{operation}"))
            .body(body.as_bytes().to_vec().into())
            .map_err(|_| CallError::Malformed("a URL"))?;
        AwsAuthorizer::new(&credential, SERVICE, &self.key.region)
            .try_authorize(&mut request, None)
            .map_err(unsigned)?;
        let headers = request.headers().clone();
        let post = self.client.post(url(&self.key)).headers(headers);
        Ok(post.body(body.as_bytes().to_vec()))
    }

    async fn call(
        &self,
        operation: &str,
        body: &Zeroizing<String>,
    ) -> Result<Zeroizing<Vec<u8>>, CallError> {
        let (status, answer) = exchange(self.signed(operation, body)?).await?;
        if status.is_success() {
            return Ok(answer);
        }
        let refusal: Option<Refusal> = parsed(&answer, "__type").ok();
        let reason = refusal.map(|refusal| word(&refusal.kind));
        Err(CallError::Status {
            status: status.as_u16(),
            kind: kind(status, reason.as_deref().unwrap_or_default()),
            reason,
        })
    }

    async fn encrypt(&self, id: &DataKeyId, plain: &SecretBytes) -> Result<Vec<u8>, CallError> {
        let plain = Zeroizing::new(STANDARD.encode(plain.expose("wrap it")));
        // The names need escaping, base64 does not.
        let rest = json!({"KeyId": self.alias(), "EncryptionContext": {CONTEXT: id.as_str()}});
        let rest = rest.to_string();
        let rest = rest.strip_prefix('{').unwrap_or_default();
        let body = Zeroizing::new(format!(r#"{{"Plaintext":"{}",{rest}"#, *plain));
        let answer = self.call("Encrypt", &body).await?;
        let answer: Encrypted = parsed(&answer, "CiphertextBlob")?;
        let wrapped = STANDARD.decode(answer.ciphertext_blob);
        wrapped.map_err(|_| CallError::Malformed("CiphertextBlob in base64"))
    }

    async fn decrypt(&self, id: &DataKeyId, wrapped: &[u8]) -> Result<SecretBytes, CallError> {
        let body = json!({
            "KeyId": self.alias(),
            "CiphertextBlob": STANDARD.encode(wrapped),
            "EncryptionContext": {CONTEXT: id.as_str()},
        });
        let answer = self.call("Decrypt", &Zeroizing::new(body.to_string())).await?;
        let answer: Decrypted = parsed(&answer, "Plaintext")?;
        let plain = STANDARD.decode(&answer.plaintext);
        plain.map(SecretBytes::new).map_err(|_| CallError::Malformed("Plaintext in base64"))
    }

    fn alias(&self) -> String {
        format!("alias/{}", self.key.key_name)
    }
}

fn url(key: &AwsKey) -> String {
    match &key.endpoint {
        Some(endpoint) => format!("{endpoint}/"),
        None => format!("https://kms.{}.amazonaws.com/", key.region),
    }
}

/// The signer panics on an ID that cannot be in a header, and on an invalid host.
pub(super) fn ensure_signable(url: &str, access_key_id: &str) -> Result<(), PortError> {
    let is_plain = access_key_id.bytes().all(|byte| byte.is_ascii_graphic());
    if is_plain && reqwest::Url::parse(url).is_ok() {
        return Ok(());
    }
    let operation = "sign requests as the URI says";
    Err(PortError::new(PortErrorKind::Invalid, operation))
}

/// The name of an error without its namespace, if the text can be a name.
fn word(kind: &str) -> String {
    let name = kind.rsplit('#').next().unwrap_or_default();
    name.chars().filter(char::is_ascii_alphanumeric).take(64).collect()
}

/// KMS reports almost everything with status 400 and a name.
fn kind(status: reqwest::StatusCode, reason: &str) -> PortErrorKind {
    match reason {
        "AccessDeniedException"
        | "ExpiredTokenException"
        | "IncompleteSignatureException"
        | "InvalidSignatureException"
        | "InvalidClientTokenId"
        | "MissingAuthenticationTokenException"
        | "SignatureDoesNotMatch"
        | "UnrecognizedClientException" => PortErrorKind::Denied,
        "DependencyTimeoutException"
        | "KMSInternalException"
        | "KeyUnavailableException"
        | "LimitExceededException"
        | "RequestExpired"
        | "ThrottlingException" => PortErrorKind::Unavailable,
        _ if status == reqwest::StatusCode::FORBIDDEN => PortErrorKind::Denied,
        _ if status == reqwest::StatusCode::TOO_MANY_REQUESTS => PortErrorKind::Unavailable,
        _ if status.is_client_error() => PortErrorKind::Invalid,
        _ => PortErrorKind::Unavailable,
    }
}

#[async_trait]
impl KeyWrapper for AwsKms {
    async fn wrap(&self, id: &DataKeyId, plain: &SecretBytes) -> Result<Vec<u8>, PortError> {
        let wrapped = self.encrypt(id, plain).await;
        wrapped.map_err(|error| error.during("wrap a data key by AWS KMS"))
    }

    async fn unwrap(&self, id: &DataKeyId, wrapped: &[u8]) -> Result<SecretBytes, PortError> {
        let plain = self.decrypt(id, wrapped).await;
        plain.map_err(|error| error.during("unwrap a data key by AWS KMS"))
    }
}
