//! Builds the service from the cluster object, or reports why there is none.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use parking_lot::RwLock;
use registration::Changes;
use tec_core::code::Code;
use tec_core::endpoint::{Endpoint, ParseBaseUrlError};
use tec_core::http::{RegisterService, RegisterServiceConfig, ReplyStyle, refusal};
use tec_core::ignition::ClevisPinGenerator;
use tec_core::port::UnclaimedLimit;
use tec_core::secret::SecretBytes;
use tec_k8s::api::{
    AdditionalTrusteeError, RegistrationMode, RegistrationSpec, TlsServer, TrustedExecutionCluster,
};
use tec_k8s::client::KubeRegistry;
use tec_k8s::server::owner_of;
use tec_support::{SystemClock, SystemEntropy, input};

/// Largest CA bundle; a bundle of all public CAs is about 250 KiB.
const MAX_CA: u64 = 1 << 20;
/// Length of a token: long enough not to be guessed, short enough not to be another file given by mistake.
const TOKEN_LENGTH: std::ops::RangeInclusive<usize> = 16..=1024;
/// The default that the cluster object documents.
const MAX_UNCLAIMED: u32 = 1000;
const UNCLAIMED_SECONDS: u32 = 24 * 60 * 60;

/// Files that the kubelet mounts from Secrets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Files {
    pub(crate) kbs_ca: Option<PathBuf>,
    pub(crate) ak_ca: Option<PathBuf>,
    pub(crate) token: Option<PathBuf>,
}

/// Why registration is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotReady {
    #[error("there is no TrustedExecutionCluster in this namespace")]
    NoCluster,
    #[error("the TrustedExecutionCluster has no publicTrusteeAddr")]
    NoAddress,
    #[error("invalid address {address:?}")]
    Address {
        address: String,
        #[source]
        source: ParseBaseUrlError,
    },
    #[error("cannot build the list of key brokers for nodes")]
    AdditionalTrustee(#[from] AdditionalTrusteeError),
    #[error("the CA of {server} is in the Secret {secret}, but no flag names its mounted file")]
    NoFlag { server: &'static str, secret: String },
    #[error(transparent)]
    Read(#[from] anyhow::Error),
    #[error("{} contains no certificate", .file.display())]
    NoCertificate { file: PathBuf },
    #[error(
        "registration needs a token of {} to {} characters, but none is mounted or its length is wrong",
        TOKEN_LENGTH.start(),
        TOKEN_LENGTH.end()
    )]
    NoToken,
}

/// Everything that determines the service: equal settings mean an equal service. Another one begins to count anew what
/// each network registers.
#[derive(Debug, PartialEq)]
struct Setting {
    kbs: Endpoint,
    more: Vec<Endpoint>,
    ak: Option<Endpoint>,
    token: Option<String>,
    registration: RegistrationSpec,
    owner: Option<OwnerReference>,
}

/// Keeps the service in line with the cluster object and the files.
#[derive(Debug)]
pub(crate) struct Composer {
    registry: KubeRegistry,
    files: Files,
    /// The service, or the code with which every request is refused.
    current: RwLock<Result<RegisterService, Code>>,
}

impl Composer {
    pub(crate) fn new(registry: KubeRegistry, files: Files) -> Self {
        Self { registry, files, current: RwLock::new(Err(Code::RegisterNotReady)) }
    }

    /// Composes now and after each change, forever.
    pub(crate) async fn follow(&self, changes: Changes) {
        let read = |cluster: Option<&_>| read(cluster, &self.files);
        let compose = |setting: &Result<Setting, String>| {
            *self.current.write() = self.answering(setting);
        };
        registration::follow(changes, read, compose).await;
    }

    pub(crate) async fn respond(&self, request: Request) -> Response {
        let current = self.current.read().clone();
        match current {
            // The body is not needed.
            Ok(service) => service.respond(request.map(drop)).await.into_response(),
            Err(code) => refusal(ReplyStyle::Registration, code).into_response(),
        }
    }

    fn answering(&self, setting: &Result<Setting, String>) -> Result<RegisterService, Code> {
        match setting {
            Err(error) => {
                tracing::warn!(error, "nobody can be registered");
                Err(Code::RegisterNotReady)
            }
            Ok(setting) if setting.registration.mode == RegistrationMode::Manual => {
                tracing::info!("machines are registered by an admin");
                Err(Code::RegisterByAdmin)
            }
            Ok(setting) => {
                if setting.registration.mode == RegistrationMode::Open {
                    tracing::warn!(
                        "registration is open: whoever reaches this server gets a machine with a disk \
                         key; set spec.registration.mode to Token"
                    );
                }
                tracing::info!(kbs = %setting.kbs.url, "machines can be registered");
                Ok(self.service(setting))
            }
        }
    }

    fn service(&self, setting: &Setting) -> RegisterService {
        let registry = match setting.owner.clone() {
            Some(owner) => self.registry.owned_by(owner),
            None => self.registry.clone(),
        };
        let registry = Arc::new(registry);
        let first = ClevisPinGenerator::new(setting.kbs.clone());
        let pins = setting.more.iter().cloned().fold(first, ClevisPinGenerator::also);
        let pins = match &setting.ak {
            Some(ak) => pins.register_ak_at(ak.clone()),
            None => pins,
        };
        let most = setting.registration.max_unclaimed.unwrap_or(MAX_UNCLAIMED);
        let seconds = setting.registration.unclaimed_ttl_seconds;
        RegisterService::new(
            RegisterServiceConfig::new(
                Arc::clone(&registry) as _,
                registry,
                Arc::new(pins),
                Arc::new(SystemClock),
                Arc::new(SystemEntropy),
                setting.token.as_ref().map(|token| SecretBytes::new(token.clone().into_bytes())),
            )
            .with_limit(UnclaimedLimit::AtMost(most.into()))
            .with_unclaimed_seconds(seconds.unwrap_or(UNCLAIMED_SECONDS).into()),
        )
    }
}

fn read(
    cluster: Option<&Arc<TrustedExecutionCluster>>,
    files: &Files,
) -> Result<Setting, NotReady> {
    let cluster = cluster.ok_or(NotReady::NoCluster)?;
    let spec = &cluster.spec;
    let address = spec.public_trustee_addr.as_deref().ok_or(NotReady::NoAddress)?;
    let secret = cluster.tls_secret(TlsServer::KeyBroker);
    let kbs = endpoint("the key broker", address, secret, files.kbs_ca.as_deref())?;
    let more = cluster.additional_trustees()?;
    let ak = match spec.public_attestation_key_register_addr.as_deref() {
        Some(address) => {
            let secret = cluster.tls_secret(TlsServer::AttestationKeys);
            let server = "the server for attestation keys";
            Some(endpoint(server, address, secret, files.ak_ca.as_deref())?)
        }
        None => None,
    };
    let registration = spec.registration.clone().unwrap_or_default();
    let token = match registration.mode {
        RegistrationMode::Token => Some(token(files.token.as_deref())?),
        _ => None,
    };
    Ok(Setting { kbs, more, ak, token, registration, owner: owner_of(cluster) })
}

/// A server with a Secret speaks TLS, and nodes must trust the CA in that Secret. Without the CA, the server
/// is not announced to anyone.
fn endpoint(
    server: &'static str,
    address: &str,
    secret: Option<&str>,
    ca: Option<&Path>,
) -> Result<Endpoint, NotReady> {
    let (scheme, pem) = match secret {
        None => ("http", String::new()),
        Some(secret) => {
            let file = ca.ok_or_else(|| NotReady::NoFlag { server, secret: secret.to_owned() })?;
            ("https", certificate(file)?)
        }
    };
    let url = format!("{scheme}://{address}").parse();
    let url = url.map_err(|source| NotReady::Address { address: address.to_owned(), source })?;
    Ok(Endpoint::new(url, pem))
}

fn certificate(file: &Path) -> Result<String, NotReady> {
    let pem = input::text(file, MAX_CA)?;
    let is_whole = tec_support::pem::certificates(file).is_ok_and(|found| !found.is_empty());
    if !is_whole {
        return Err(NotReady::NoCertificate { file: file.to_owned() });
    }
    Ok(pem)
}

fn token(file: Option<&Path>) -> Result<String, NotReady> {
    let file = file.ok_or(NotReady::NoToken)?;
    let token = input::text(file, MAX_CA)?.trim().to_owned();
    if !TOKEN_LENGTH.contains(&token.len()) {
        return Err(NotReady::NoToken);
    }
    Ok(token)
}

#[cfg(test)]
mod tests;
