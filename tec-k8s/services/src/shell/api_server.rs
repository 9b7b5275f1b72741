//! The few Kubernetes objects that the bootstrap reads and writes.

use std::net::IpAddr;
use std::path::PathBuf;

use crate::nats::Revocations;
use crate::vault::{AesSecret, Progress, Published};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Method;
use serde_json::{Value, json};
use tec_core::port::{PortError, PortErrorKind};
use tec_core::secret::{SecretArray, SecretBytes};
use tec_core::time::Timestamp;

use super::{Http, Reply, object};

/// What an admin may have replaced, with an annotation of the Secret of the wrapping key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Replaceable {
    /// The CAs that sign certificates.
    Authorities,
    /// The key that opens the vault.
    VaultKey,
    /// The key that signs accounts of NATS.
    NatsOperatorKey,
    /// The keys that sign users of NATS.
    NatsAccountKeys,
}

/// A warning for people, as an Event of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The pod, in the controller's namespace.
    pub pod: String,
    /// Its UID; without it the Event is not shown with the pod.
    pub pod_uid: Option<String>,
    /// A machine-readable reason.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
    /// When it was found.
    pub at: Timestamp,
}

/// The properties of a pod that its certificates need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodObject {
    /// Its UID.
    pub uid: String,
    /// Name of its service account, in its own namespace.
    pub account: String,
    /// Its addresses; none until the kubelet reports them.
    pub addresses: Vec<IpAddr>,
    /// Whether the addresses are those of the node.
    pub on_host: bool,
    /// Whether it ran to completion: its addresses may now belong to another pod.
    pub ended: bool,
}

/// Names of the objects.
#[derive(Clone, Debug)]
pub struct SecretNames {
    /// Their namespace.
    pub namespace: String,
    /// The Secret of the wrapping key.
    pub key: String,
    /// The Secret of certificate and CAs.
    pub tls: String,
    /// The ConfigMap with only the CAs.
    pub authorities: String,
    /// Other namespaces where an admin may have copied that ConfigMap.
    pub copies: Vec<String>,
    /// The ConfigMap of revoked users of NATS: for each key, the time in seconds since 1970 before which its
    /// JWTs were issued that are no longer valid. It may be absent.
    pub revocations: String,
}

/// An API server, called with the token of the pod, which is reread for each call.
#[derive(Clone, Debug)]
pub struct ApiServer {
    http: Http,
    token: PathBuf,
    names: SecretNames,
}

impl ApiServer {
    /// Calls with the token in this file.
    pub fn new(http: Http, token: PathBuf, names: SecretNames) -> Self {
        Self { http, token, names }
    }

    fn path_of(&self, kind: &str, name: &str) -> String {
        format!("/api/v1/namespaces/{}/{kind}{name}", self.names.namespace)
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Reply, PortError> {
        let token = std::fs::read(&self.token).map_err(|error| {
            let what = format!("read {}", self.token.display());
            PortError::new(PortErrorKind::Internal, what).because(error)
        })?;
        let mut bearer = b"Bearer ".to_vec();
        bearer.extend(token.trim_ascii());
        let bearer = SecretBytes::new(bearer);
        let body = body.map(|body| SecretBytes::new(body.to_string().into_bytes()));
        let headers = [("authorization", &bearer)];
        let reply = self.http.call(method, path, &headers, body.as_ref());
        reply.await.map_err(|error| {
            PortError::new(PortErrorKind::Unavailable, "call the API server").because(error)
        })
    }

    async fn get(&self, name: &str) -> Result<Option<Value>, PortError> {
        self.get_of("secrets", name).await
    }

    async fn get_of(&self, kind: &str, name: &str) -> Result<Option<Value>, PortError> {
        let path = self.path_of(kind, &format!("/{name}"));
        self.get_at(&path, name).await
    }

    async fn get_at(&self, path: &str, name: &str) -> Result<Option<Value>, PortError> {
        let reply = self.call(Method::GET, path, None).await?;
        match reply.status {
            404 => Ok(None),
            200 => serde_json::from_slice(&reply.body)
                .map(Some)
                .map_err(|error| malformed(name).because(error)),
            status => Err(refused(name, status)),
        }
    }

    /// The Secret of the wrapping key, if the key has this name. It keeps the resource version that was read,
    /// so that the API server refuses a write if someone has changed it since.
    async fn secret_with_key(&self, key_id: &str) -> Result<Value, PortError> {
        let object = self.secret().await?;
        let is_meant = object::key_id(&object).as_deref() == Some(key_id);
        is_meant.then_some(object).ok_or_else(|| conflict("find the wrapping key"))
    }

    /// The Secret of the wrapping key, which must exist.
    async fn secret(&self) -> Result<Value, PortError> {
        let object = self.get(&self.names.key).await?;
        object.ok_or_else(|| conflict("find the wrapping key"))
    }

    async fn put(&self, name: &str, object: &Value) -> Result<(), PortError> {
        self.put_of("secrets", name, object).await
    }

    async fn put_of(&self, kind: &str, name: &str, object: &Value) -> Result<(), PortError> {
        let path = self.path_of(kind, &format!("/{name}"));
        self.put_at(&path, name, object).await
    }

    async fn put_at(&self, path: &str, name: &str, object: &Value) -> Result<(), PortError> {
        let reply = self.call(Method::PUT, path, Some(object)).await?;
        accepted(name, reply.status)
    }

    async fn post(&self, name: &str, object: &Value) -> Result<u16, PortError> {
        self.post_of("secrets", name, object).await
    }

    async fn post_of(&self, kind: &str, name: &str, object: &Value) -> Result<u16, PortError> {
        let path = self.path_of(kind, "");
        let reply = self.call(Method::POST, &path, Some(object)).await?;
        match reply.status {
            409 => Ok(409),
            status => accepted(name, status).map(|()| status),
        }
    }

    /// Creates an object, or replaces the one with its name if the content differs.
    async fn ensure(&self, kind: &str, name: &str, mut object: Value) -> Result<(), PortError> {
        if self.post_of(kind, name, &object).await? != 409 {
            return Ok(());
        }
        let current = self.get_of(kind, name).await?;
        let current = current.as_ref();
        if current.is_some_and(|now| now.get("data") == object.get("data")) {
            return Ok(());
        }
        let version = current.and_then(|now| now.get("metadata")?.get("resourceVersion"));
        if let (Some(version), Some(metadata)) = (version, object.get_mut("metadata")) {
            *metadata = json!({"name": name, "resourceVersion": version});
        }
        self.put_of(kind, name, &object).await
    }
}

fn accepted(name: &str, status: u16) -> Result<(), PortError> {
    match status {
        200..=299 => Ok(()),
        status => Err(refused(name, status)),
    }
}

fn refused(name: &str, status: u16) -> PortError {
    let kind = match status {
        401 | 403 => PortErrorKind::Denied,
        404 => PortErrorKind::NotFound,
        409 => PortErrorKind::Conflict,
        429 | 500..=599 => PortErrorKind::Unavailable,
        _ => PortErrorKind::Invalid,
    };
    PortError::new(kind, format!("the API server answered {status} about {name}"))
}

fn conflict(what: &'static str) -> PortError {
    PortError::new(PortErrorKind::Conflict, what)
}

fn malformed(name: &str) -> PortError {
    PortError::new(PortErrorKind::Internal, format!("read {name}"))
}

/// What the bootstrap needs from a cluster. `create` never replaces; `advance`, `rotate` and `forget` write only if
/// what they name exists and nobody has changed it in the meantime.
impl ApiServer {
    /// The wrapping key, if there is one.
    pub async fn read(&self) -> Result<Option<AesSecret>, PortError> {
        let name = &self.names.key;
        match self.get(name).await? {
            None => Ok(None),
            Some(object) => object::aes(&object).map(Some).ok_or_else(|| malformed(name)),
        }
    }

    /// Creates it, unless there is one.
    pub async fn create(&self, key: &SecretArray<32>, key_id: &str) -> Result<(), PortError> {
        let name = &self.names.key;
        let object = object::created(name, key, key_id);
        // 409: it exists, and is read next.
        self.post(name, &object).await.map(|_| ())
    }

    /// Changes the progress.
    pub async fn advance(&self, from: &Progress, to: &Progress) -> Result<(), PortError> {
        let name = &self.names.key;
        let conflict = || conflict("advance the bootstrap");
        // With the resource version that was read: the API server refuses if someone has written since.
        let mut object = self.get(name).await?.ok_or_else(conflict)?;
        match object::progress(&mut object) {
            Some(progress) if *progress == from.to_string() => *progress = to.to_string().into(),
            Some(_) => return Err(conflict()),
            None => return Err(malformed(name)),
        }
        self.put(name, &object).await
    }

    /// Adds a new wrapping key next to the one named `from`, if that is the current one, and clears the
    /// request for a new key.
    pub async fn rotate(
        &self,
        from: &str,
        key: &SecretArray<32>,
        key_id: &str,
    ) -> Result<(), PortError> {
        let mut object = self.secret_with_key(from).await?;
        if object::is_under_rotation(&object) {
            return Err(conflict("rotate the wrapping key"));
        }
        object::rotate(&mut object, key, key_id).ok_or_else(|| malformed(&self.names.key))?;
        self.put(&self.names.key, &object).await
    }

    /// Removes the wrapping key that precedes the one with this name.
    pub async fn forget(&self, key_id: &str) -> Result<(), PortError> {
        let mut object = self.secret_with_key(key_id).await?;
        object::forget(&mut object);
        self.put(&self.names.key, &object).await
    }

    /// Whether a replacement is requested.
    pub async fn is_requested(&self, what: Replaceable) -> Result<bool, PortError> {
        Ok(object::is_requested(&self.secret().await?, what))
    }

    /// Requests a replacement.
    pub async fn request(&self, what: Replaceable) -> Result<(), PortError> {
        let mut object = self.secret().await?;
        object::request(&mut object, what).ok_or_else(|| malformed(&self.names.key))?;
        self.put(&self.names.key, &object).await
    }

    /// Removes the request for a replacement, if there is one.
    pub async fn clear_request(&self, what: Replaceable) -> Result<(), PortError> {
        let mut object = self.secret().await?;
        if !object::clear_request(&mut object, what) {
            return Ok(());
        }
        self.put(&self.names.key, &object).await
    }

    /// Writes the public data.
    pub async fn publish(&self, published: &Published) -> Result<(), PortError> {
        let name = &self.names.tls;
        let data = json!({
            "ca.crt": STANDARD.encode(&published.authorities),
            "tls.crt": STANDARD.encode(&published.chain),
        });
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {"name": name}, "data": data,
        });
        self.ensure("secrets", name, secret).await?;
        let name = &self.names.authorities;
        let public = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name}, "data": {"ca.crt": published.authorities},
        });
        self.ensure("configmaps", name, public).await
    }

    /// Updates the copies of the published CAs in the namespaces of components. A namespace without a copy,
    /// or with that of another platform, is left as it is.
    pub async fn update_copies(&self, authorities: &str) -> Result<(), PortError> {
        let name = &self.names.authorities;
        for namespace in &self.names.copies {
            let path = format!("/api/v1/namespaces/{namespace}/configmaps/{name}");
            let Some(mut copy) = self.get_at(&path, name).await? else {
                continue;
            };
            if object::update_copy(&mut copy, authorities) {
                self.put_at(&path, name, &copy).await?;
            }
        }
        Ok(())
    }

    /// The published CAs, in PEM; `None` if nothing was published.
    pub async fn authorities(&self) -> Result<Option<String>, PortError> {
        let name = &self.names.tls;
        let Some(object) = self.get(name).await? else {
            return Ok(None);
        };
        let pem = object::text(&object, "ca.crt");
        pem.map(Some).ok_or_else(|| malformed(name))
    }

    /// Revoked users of NATS, each with the time of revocation.
    pub async fn revocations(&self) -> Result<Revocations, PortError> {
        let name = &self.names.revocations;
        match self.get_of("configmaps", name).await? {
            None => Ok(Revocations::new()),
            Some(object) => object::revoked(&object).ok_or_else(|| malformed(name)),
        }
    }

    /// A pod, if there is one with this name.
    pub async fn pod(&self, namespace: &str, name: &str) -> Result<Option<PodObject>, PortError> {
        if !object::is_pod_name(name) {
            return Ok(None);
        }
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        match self.get_at(&path, name).await? {
            None => Ok(None),
            Some(object) => object::pod(&object).map(Some).ok_or_else(|| malformed(name)),
        }
    }

    /// Reports, with an Event of a pod, that someone must act.
    pub async fn warn(&self, warning: &Warning) -> Result<(), PortError> {
        let path = self.path_of("events", "");
        let event = object::event(&self.names.namespace, warning);
        let reply = self.call(Method::POST, &path, Some(&event)).await?;
        accepted("an event", reply.status)
    }

    /// Whether the API server answers at all.
    pub async fn is_up(&self) -> bool {
        let reply = self.call(Method::GET, "/readyz", None).await;
        reply.is_ok_and(|reply| reply.status == 200)
    }
}
