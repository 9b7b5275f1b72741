//! The parts of the service, put together by the settings.

use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bootstrapper::authority::Authority;
use bootstrapper::founder;
use bootstrapper::node::Attestation;
use bootstrapper::node::endpoint;
use bootstrapper::node::measurements;
use kube::Client;
use tec_core::node::grant::ControlPlanes;
use tec_core::node::port::DataKeys;
use tec_core::node::uri::KmsUri;
use tec_core::node::uri::StorageUri;
use tec_core::node::uri::UriError;
use tec_core::port::Clock;
use tec_core::port::Entropy;
use tec_core::secret::SecretBytes;
use tec_k8s::client::KubeRegistry;
use tec_k8s::client::member::BootstrapTokens;
use tec_k8s::client::member::KubeEnrollments;
use tec_k8s::client::member::KubeTurns;
use tec_k8s::node::StateDirectory;
use tec_k8s::rpc::Enrollments;
use tec_k8s::rpc::JoinService;
use tec_k8s::rpc::JoinServicePorts;
use tec_support::SystemClock;
use tec_support::SystemEntropy;
use tec_tpm::atls::Endpoint;
use tec_tpm::atls::LiveMeasurements;
use tec_tpm::atls::VtpmValidator;

use crate::facts;
use crate::facts::Facts;
use crate::settings::Settings;
use crate::signer::Signer;

/// How often the file of measurements is looked at.
const POLL: Duration = Duration::from_secs(5);

/// The service over an API server. The control plane that it runs on is enrolled by what it wrote
/// down when it was bootstrapped.
///
/// # Errors
/// A file cannot be read, or the API server not be asked.
pub async fn service(
    settings: &Settings,
    client: Client,
    attestation: &Attestation,
) -> anyhow::Result<JoinService> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let entropy: Arc<dyn Entropy> = Arc::new(SystemEntropy);
    let namespace = &settings.namespace;
    let registry = KubeRegistry::new(client.clone(), namespace, Arc::clone(&clock));
    let enrollments: Arc<dyn Enrollments> = Arc::new(KubeEnrollments::new(registry));
    if let Some(claim) = founder::read(&settings.state_directory)? {
        // `Existed` is fine when it is this claim: of an earlier start, or of a join.
        enrollments.add(&claim).await?;
        anyhow::ensure!(
            enrollments.list().await?.contains(&claim),
            "the claim of this node could not be recorded, or another node has its name or disk"
        );
    }
    let state = StateDirectory::new(&settings.state_directory).read_state()?;
    let state = state.context("this node has no state: it is not a member of a cluster")?;
    let control_planes = if settings.dangerous_any_control_plane {
        tracing::warn!("any node that attests may have the keys of the cluster's CA");
        ControlPlanes::DangerousAny
    } else {
        ControlPlanes::Listed(settings.control_planes.clone())
    };
    let reserved = facts::api_server_addresses(&settings.pki)?;
    let authority = Authority::new(&settings.pki, Arc::clone(&clock), Arc::clone(&entropy));
    let tokens = BootstrapTokens::new(client.clone(), Arc::clone(&clock), Arc::clone(&entropy));
    Ok(JoinService::new(JoinServicePorts {
        keys: keys(settings, attestation).await?,
        salt: state.measurement_salt,
        enrollments,
        control_planes,
        turns: Arc::new(KubeTurns::new(client.clone(), Arc::clone(&clock))),
        signer: Arc::new(Signer::new(authority.reserving(reserved), client)),
        facts: Arc::new(Facts::new(tokens, settings)),
    }))
}

async fn keys(settings: &Settings, attestation: &Attestation) -> anyhow::Result<Arc<dyn DataKeys>> {
    let kms = uri(&settings.kms_uri, KmsUri::parse)?;
    let storage = match &settings.storage_uri {
        Some(path) => uri(path, StorageUri::parse)?,
        None => StorageUri::NoStore,
    };
    let services = bootstrapper::keys::services(Arc::clone(&attestation.attester));
    Ok(services.open(kms, storage).await?.into())
}

/// The URI in a file.
fn uri<T>(path: &Path, parse: impl Fn(&str) -> Result<T, UriError>) -> anyhow::Result<T> {
    let what = || format!("read {}", path.display());
    let text = fs::read(path).map(SecretBytes::new).with_context(what)?;
    let text = std::str::from_utf8(text.expose("parse it").trim_ascii()).with_context(what)?;
    parse(text).with_context(what)
}

/// The end that nodes judge, and that judges them by `live`.
///
/// # Errors
/// The provider of cryptography gives no key.
pub fn server(
    settings: &Settings,
    attestation: Attestation,
    live: Arc<LiveMeasurements>,
) -> anyhow::Result<Endpoint> {
    tracing::info!(ak.fingerprint = %attestation.ak, "this service proves itself with this key");
    let trust = settings.nodes.keys();
    let validator = VtpmValidator::new(attestation.variant, trust, live);
    Ok(endpoint()
        .with_issuer(attestation.issuer)
        .with_validator(Arc::new(validator))
        .with_channel_binding(settings.nodes.binding())
        .build()?)
}

/// Measurements that follow their file.
#[derive(Debug)]
pub struct Followed {
    path: Option<PathBuf>,
    live: Arc<LiveMeasurements>,
}

impl Followed {
    /// Those of the file, if there is one.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn open(path: Option<&Path>) -> anyhow::Result<Self> {
        let first = path.map(measurements).transpose()?.unwrap_or_default();
        Ok(Self {
            path: path.map(Path::to_owned),
            live: Arc::new(LiveMeasurements::new(first)),
        })
    }

    /// Those that count now.
    pub fn live(&self) -> Arc<LiveMeasurements> {
        Arc::clone(&self.live)
    }

    /// Takes what the file says whenever it changes; a file that cannot be taken changes nothing.
    pub async fn follow(&self) {
        let Some(path) = &self.path else {
            return std::future::pending().await;
        };
        loop {
            tokio::time::sleep(POLL).await;
            match measurements(path) {
                Ok(new) if new != *self.live.current() => {
                    tracing::info!("the measurements have changed");
                    self.live.replace(new);
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(
                    error = format!("{error:#}"),
                    "the measurements stay as they were"
                ),
            }
        }
    }
}
