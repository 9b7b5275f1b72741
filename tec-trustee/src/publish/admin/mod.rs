//! The admin API of a Trustee that runs elsewhere.
//!
//! Every write states the whole value. Writes into one namespace are sequential, since the JSON-file storage
//! has no effective lock and loses all but one of several concurrent writes (seen with Trustee v0.21).

mod error;
mod http;
mod token;

use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rustls::crypto::CryptoProvider;
use serde_json::{Map, Value, json};
use tec_core::endpoint::{BaseUrl, Endpoint};
use tec_core::id::ResourcePath;
use tec_core::port::{Clock, KeyBroker, PolicySlot, PortError};
use tec_core::secret::SecretBytes;
use tokio::sync::Mutex;

pub use self::error::{AdminError, AdminSetupError};
use self::http::{Call, Channel};
pub use self::token::{AdminKey, AdminKeyFormatError, MAX_TOKEN_SECONDS};
use crate::client::Deadlines;
use crate::wire::ErrorKind;

/// Replaces a secret that cannot be deleted.
const TOMBSTONE: &[u8] = b"{}";

/// A remote Trustee as a [`KeyBroker`].
///
/// # Cancel safety
/// A call whose future is dropped may still take effect, even after a later one. Publishers ask for the
/// outcome where the API can report it, and send again where it cannot.
#[derive(Debug)]
pub struct AdminApi {
    channel: Channel,
    attestation_policies: Mutex<()>,
    resource_policies: Mutex<()>,
    references: Mutex<()>,
    resources: Mutex<()>,
}

impl AdminApi {
    /// The admin API at `endpoint`. An HTTPS server is verified against its
    /// CA bundle alone or, without one, against the platform's roots.
    ///
    /// # Errors
    /// The endpoint is plain HTTP to another machine, the CA bundle is unusable, or TLS cannot be set up.
    pub fn new(
        endpoint: &Endpoint,
        key: AdminKey,
        clock: Arc<dyn Clock>,
        deadlines: Deadlines,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, AdminSetupError> {
        if !endpoint.url.is_tls() && !is_loopback(&endpoint.url) {
            return Err(AdminSetupError::PlainHttp(endpoint.url.clone()));
        }
        Self::dangerous_plain_http(endpoint, key, clock, deadlines, provider)
    }

    /// Like [`new`](Self::new), but also allows plain HTTP to another machine.
    ///
    /// # Security
    /// Anyone who listens on the network gets all disk keys, and an admin's token for five minutes.
    pub fn dangerous_plain_http(
        endpoint: &Endpoint,
        key: AdminKey,
        clock: Arc<dyn Clock>,
        deadlines: Deadlines,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, AdminSetupError> {
        let channel = Channel::new(endpoint, key, clock, deadlines, provider);
        Ok(Self {
            channel: channel.map_err(AdminSetupError::Client)?,
            attestation_policies: Mutex::default(),
            resource_policies: Mutex::default(),
            references: Mutex::default(),
            resources: Mutex::default(),
        })
    }

    /// Makes a call and discards the answer; anything but success is an error.
    async fn write(&self, call: Call<'_>) -> Result<(), AdminError> {
        self.channel.call(call).await.map(drop)
    }

    /// Deletes a resource, or overwrites it if that is refused: a missing resource is refused with the same
    /// message as a failed storage (Trustee, KBS admin API). So the secret is gone in either case.
    async fn delete(&self, place: &str) -> Result<(), AdminError> {
        match self.write(Call::delete(place)).await {
            Err(AdminError::Refused { kind, .. }) if kind != ErrorKind::AdminAuthAccess => {}
            outcome => return outcome,
        }
        self.write(Call::post_bytes(place, TOMBSTONE)).await?;
        match self.write(Call::delete(place)).await {
            Err(AdminError::Refused { .. }) => Ok(()),
            outcome => outcome,
        }
    }
}

#[async_trait]
impl KeyBroker for AdminApi {
    async fn put(&self, path: &ResourcePath, secret: &SecretBytes) -> Result<(), PortError> {
        let _turn = self.resources.lock().await;
        let place = format!("resource/{path}");
        let bytes = secret.expose("it is sent to the key broker");
        self.write(Call::post_bytes(&place, bytes)).await.map_err(|error| error.of(path))
    }

    async fn remove(&self, path: &ResourcePath) -> Result<(), PortError> {
        let _turn = self.resources.lock().await;
        self.delete(&format!("resource/{path}")).await.map_err(|error| error.of(path))
    }

    /// No version of the admin API lists resources (docs/reference/trustee.md).
    async fn list(&self) -> Result<Option<Vec<ResourcePath>>, PortError> {
        Ok(None)
    }

    async fn set_policy(&self, slot: PolicySlot, rego: &str) -> Result<(), PortError> {
        let attestation = slot == PolicySlot::Attestation;
        let (turn, place) = if attestation {
            (&self.attestation_policies, "attestation-policy")
        } else {
            (&self.resource_policies, "resource-policy")
        };
        let _turn = turn.lock().await;
        // URL-safe and without padding, which would be refused (Trustee, KBS admin API).
        let policy = URL_SAFE_NO_PAD.encode(rego);
        let body = if attestation {
            json!({"type": "rego", "policy_id": "default_cpu", "policy": policy})
        } else {
            json!({"policy": policy})
        };
        self.write(Call::post(place, &body)).await.map_err(|error| error.of(place))
    }

    async fn set_reference_value(&self, name: &str, value: &Value) -> Result<(), PortError> {
        let _turn = self.references.lock().await;
        let payload = Value::Object(Map::from_iter([(name.to_owned(), value.clone())]));
        // Standard base64, with padding (Trustee, RVPS).
        let payload = STANDARD.encode(payload.to_string());
        let body = json!({"version": "0.1.0", "type": "sample", "payload": payload});
        self.write(Call::post("reference-value", &body)).await.map_err(|error| error.of(name))
    }

    /// An unknown name and a failed service give the same answer; both yield `None`, so that a publisher
    /// sends the value again.
    async fn reference_value(&self, name: &str) -> Result<Option<Value>, PortError> {
        let place = format!("reference-value/{name}");
        match self.channel.call(Call::get(&place)).await {
            Ok(body) => serde_json::from_slice(&body)
                .map(Some)
                .map_err(|_| self.channel.malformed("the reference value").of(name)),
            Err(AdminError::Refused { kind: ErrorKind::RvpsError, .. }) => Ok(None),
            Err(error) => Err(error.of(name)),
        }
    }
}

/// Whether the host is this machine, judged only by its name or address.
fn is_loopback(url: &BaseUrl) -> bool {
    let authority = url.as_str().split_once("://").map_or("", |(_, rest)| rest);
    if authority.starts_with("[::1]") {
        return true;
    }
    let host = authority.split(':').next().unwrap_or_default();
    let address = host.parse::<std::net::Ipv4Addr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_told_from_names_that_look_like_it() {
        for (url, is) in [
            ("http://localhost:8080", true),
            ("http://127.0.0.1", true),
            ("http://[::1]:8080", true),
            ("http://localhost.example.org", false),
            ("http://127.0.0.1.example.org", false),
            ("http://[::2]:8080", false),
            ("http://kbs-service:8080", false),
        ] {
            assert_eq!(is_loopback(&url.parse().unwrap()), is, "{url}");
        }
    }
}
