//! A cluster that admits nodes: the join service over attested connections, with members, tokens and turns
//! kept in memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bootstrapper::admission::live::LiveService;
use bootstrapper::instance::authority::Authority;
use bootstrapper::instance::transport;
use bootstrapper::instance::transport::Bounds;
use tec_core::ak::{Fingerprint, PublicKey};
use tec_core::digest::Sha256Digest;
use tec_core::port::{Clock, CreateOutcome, PortError};
use tec_core::secret::SecretBytes;
use tec_node::derive::{ClusterId, DataKeyId, MeasurementSalt, MeasurementSecret};
use tec_node::grant::{Claim, ControlPlanes};
use tec_node::host::KubeadmPaths;
use tec_node::lock::MarkerState;
use tec_node::port::{DerivedKeys, KeyServices as _};
use tec_node::rpc::{
    ClusterFacts, ControlPlaneTurns, Enrollments, JoinServicePorts, NodeStanding, Settled,
};
use tec_node::state::Role;
use tec_node::ticket::{CaPin, Component, NodeName, PkiFile};
use tec_node::uri::{KmsUri, StorageUri};
use tec_support::{SystemClock, SystemEntropy};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use x509_cert::Certificate;
use x509_cert::der::{DecodePem as _, Encode as _};

use crate::stage::{KMS, Machine};

/// Accepts any boot: what machines booted does not matter here.
pub(crate) const ANYTHING: &str = "dangerous_any_measurements = true\n";
pub(crate) const SALT: [u8; 32] = [0x20; 32];

#[derive(Debug, Default)]
struct Members(Mutex<Vec<Claim>>);

#[async_trait]
impl Enrollments for Members {
    async fn list(&self) -> Result<Vec<Claim>, PortError> {
        Ok(self.0.lock().unwrap().clone())
    }

    async fn add(&self, claim: &Claim) -> Result<CreateOutcome, PortError> {
        self.0.lock().unwrap().push(claim.clone());
        Ok(CreateOutcome::Created)
    }

    async fn was_removed(&self, _name: &NodeName) -> Result<bool, PortError> {
        Ok(false)
    }

    async fn readdress(&self, _claim: &Claim) -> Result<(), PortError> {
        Ok(())
    }

    async fn settle(
        &self,
        _claim: &Claim,
        _key: &PublicKey,
        _ek: Option<Fingerprint>,
    ) -> Result<Settled, PortError> {
        Ok(Settled::Bound)
    }

    async fn is_in_service(&self, claim: &Claim) -> Result<bool, PortError> {
        Ok(self.list().await?.contains(claim))
    }
}

/// What the control plane's machine has; tests register all other nodes.
#[derive(Debug)]
struct Facts {
    ca: Vec<u8>,
    registered: Arc<AtomicBool>,
}

#[async_trait]
impl ControlPlaneTurns for Facts {
    async fn take(&self, _node: &NodeName) -> Result<(), PortError> {
        Ok(())
    }
}

#[async_trait]
impl ClusterFacts for Facts {
    async fn node(&self, _name: &NodeName) -> Result<NodeStanding, PortError> {
        Ok(if self.registered.load(Ordering::SeqCst) {
            NodeStanding::Registered
        } else {
            NodeStanding::Absent
        })
    }

    async fn api_server(&self) -> Result<String, PortError> {
        Ok("127.0.0.1:6443".to_owned())
    }

    async fn ca_pin(&self) -> Result<CaPin, PortError> {
        let certificate = Certificate::from_pem(&self.ca).unwrap();
        let key = certificate.tbs_certificate().subject_public_key_info();
        Ok(CaPin::new(Sha256Digest::of(key.to_der().unwrap())))
    }

    async fn components(&self) -> Result<(String, Vec<Component>), PortError> {
        Ok(("v1.34.3".to_owned(), Vec::new()))
    }

    /// More than a worker may get: a worker accepts only the CA.
    async fn files(&self, _role: Role) -> Result<Vec<(PkiFile, SecretBytes)>, PortError> {
        let file = |file: PkiFile| match file {
            PkiFile::CA => (file, SecretBytes::new(self.ca.clone())),
            file => (file, SecretBytes::new(file.as_str().into())),
        };
        Ok(PkiFile::ALL.into_iter().map(file).collect())
    }
}

/// A running join service; stopped with the test.
pub(crate) struct Cluster {
    pub(crate) port: u16,
    /// Whether joining nodes have their objects.
    pub(crate) registered: Arc<AtomicBool>,
    pub(crate) ak: Fingerprint,
    pub(crate) id: ClusterId,
    config: PathBuf,
    live: Arc<LiveService>,
    serving: JoinHandle<()>,
    end: watch::Sender<bool>,
}

impl Cluster {
    /// Runs on the machine of a control plane; admits `nodes`, of which `planes` may be control planes.
    pub(crate) async fn start(on: &Machine, nodes: &[Fingerprint], planes: &[Fingerprint]) -> Self {
        Self::start_at(Arc::new(SystemClock), on, nodes, planes).await
    }

    /// Like `start`, with a separate clock for the certificates of members.
    pub(crate) async fn start_at(
        clock: Arc<dyn Clock>,
        on: &Machine,
        nodes: &[Fingerprint],
        planes: &[Fingerprint],
    ) -> Self {
        let keys = format!("{ANYTHING}attestation_keys = {}\n", list(nodes));
        Self::judging(clock, on, &keys, planes).await
    }

    /// Like `start`, for the nodes admitted by these settings.
    pub(crate) async fn taking(on: &Machine, nodes: &str, planes: &[Fingerprint]) -> Self {
        Self::judging(Arc::new(SystemClock), on, nodes, planes).await
    }

    async fn judging(
        clock: Arc<dyn Clock>,
        on: &Machine,
        nodes: &str,
        planes: &[Fingerprint],
    ) -> Self {
        let config = on.path("join-service.toml");
        write_settings(&config, nodes, planes);
        let authority = Authority::new(on.path("ca"), clock, Arc::new(SystemEntropy));
        let registered = Arc::<AtomicBool>::default();
        let facts = Arc::new(Facts {
            ca: fs::read(on.path("ca/ca.crt")).unwrap(),
            registered: Arc::clone(&registered),
        });
        let kms = KmsUri::parse(KMS).unwrap();
        let keys = DerivedKeys.open(kms, StorageUri::NoStore).await.unwrap();
        let secret = keys.data_key(&DataKeyId::measurement_secret(), 32).await;
        let secret = MeasurementSecret::from_data_key(&secret.unwrap()).unwrap();
        let salt = MeasurementSalt::new(SALT);
        let cluster = secret.cluster_id(&salt);
        let ports = JoinServicePorts {
            keys: keys.into(),
            salt,
            enrollments: Arc::new(Members::default()),
            control_planes: ControlPlanes::Closed,
            turns: Arc::clone(&facts) as Arc<_>,
            signer: Arc::new(authority),
            facts,
        };
        let attestation = on.attestation();
        // What its own init did, unless a test did it.
        if attestation.marker.read().await.unwrap() == MarkerState::Unset {
            attestation.marker.set(&cluster).await.unwrap();
        }
        let ak = attestation.ak;
        let live = Arc::new(LiveService::open(&config, ports, attestation).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let end = watch::Sender::new(false);
        let (stop, current) = (end.subscribe(), Arc::clone(&live));
        let serving = async move {
            transport::serve(listener, || current.current(), Bounds::SMALL, stop).await;
        };
        Self {
            port,
            registered,
            ak,
            id: cluster,
            config,
            live,
            // The test's runtime stops it at the latest.
            serving: spawned(serving),
            end,
        }
    }

    /// Writes other settings, and makes the service reload its files.
    pub(crate) fn change(&self, nodes: &str, planes: &[Fingerprint]) {
        write_settings(&self.config, nodes, planes);
        self.look();
    }

    /// Makes the service reload its files.
    pub(crate) fn look(&self) {
        self.live.look();
    }

    pub(crate) async fn stop(self) {
        self.end.send_replace(true);
        self.serving.await.unwrap();
    }
}

fn list(keys: &[Fingerprint]) -> String {
    let keys: Vec<String> = keys.iter().map(|key| format!("'{key}'")).collect();
    format!("[{}]", keys.join(", "))
}

/// Text before `[nodes]`, if there is any, belongs to the service itself.
fn write_settings(config: &Path, nodes: &str, planes: &[Fingerprint]) {
    let table = if nodes.contains("[nodes]") { "" } else { "[nodes]\n" };
    let text = format!(
        "api_server = '127.0.0.1:6443'\nnamespace = 'tec'\ncomponents = '/components.json'\n\
         control_planes = {}\n{table}{nodes}",
        list(planes)
    );
    fs::write(config, text).unwrap();
}

#[expect(clippy::disallowed_methods, reason = "a test's server runs beside the test")]
fn spawned(task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    tokio::spawn(task)
}

/// Content of a file of the control plane on a machine.
pub(crate) fn pki_file(machine: &Machine, file: PkiFile) -> Vec<u8> {
    fs::read(ticket_file(machine, file)).unwrap_or_default()
}

/// Its path.
pub(crate) fn ticket_file(machine: &Machine, file: PkiFile) -> PathBuf {
    KubeadmPaths::under(machine.path("root")).of_ticket(file)
}
