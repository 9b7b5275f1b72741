//! The service, rebuilt when its files change.
//!
//! ```text
//!   join-service.toml, measurements, roots ── changed content? ──► generation: endpoint and service
//!                                                                    │ each connection keeps its own
//!   new connections ◄────────────────────────────────────────────────┘
//! ```
//! A connection is evaluated with the same settings from its first byte to its last: a peer that the
//! handshake let pass because the calls require more never reaches calls that require less.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tec_core::digest::Sha256Digest;
use tec_core::port::Clock;
use tec_core::system::{SystemClock, SystemEntropy};
use tec_node::atls::{Endpoint, LiveMeasurements, Measurements, VtpmValidator};
use tec_node::plane::AdminTickets;
use tec_node::rpc::generated::join::api_server::ApiServer;
use tec_node::rpc::{Endorsements, JoinService, JoinServicePorts};
use tec_support::program::Settings as _;

use crate::admission::nodes::Nodes;
use crate::admission::settings::Settings;
use crate::instance::node::{Attestation, endpoint, measurements};

/// Interval between checks of the files.
const POLL: Duration = Duration::from_secs(5);

/// Validates a connection and answers its calls.
#[derive(Debug)]
struct Generation {
    endpoint: Endpoint,
    api: ApiServer<JoinService>,
}

#[derive(Debug)]
struct Current {
    generation: Generation,
    /// The content of the files when the service was built, or when building a new one failed.
    seen: Sha256Digest,
}

/// The service, and the files that it follows.
#[derive(Debug)]
pub struct LiveService {
    config: PathBuf,
    ports: JoinServicePorts,
    attestation: Attestation,
    /// Settings that take effect only at startup.
    fixed: Settings,
    current: Mutex<Current>,
}

impl LiveService {
    /// Builds the service from the settings in a file. The control planes in `ports` are replaced by those of
    /// the settings.
    pub fn open(
        config: &Path,
        ports: JoinServicePorts,
        attestation: Attestation,
    ) -> anyhow::Result<Self> {
        tracing::info!(ak.fingerprint = %attestation.ak, "this service proves itself with this key");
        let seen = content(config);
        let settings = Settings::read(config)?;
        let generation = generation(&settings, &ports, &attestation)?;
        Ok(Self {
            config: config.to_owned(),
            ports,
            attestation,
            fixed: settings.fixed(),
            current: Mutex::new(Current { generation, seen }),
        })
    }

    /// Validates and serves the next connection.
    pub fn current(&self) -> (Endpoint, ApiServer<JoinService>) {
        let current = self.current.lock();
        (current.generation.endpoint.clone(), current.generation.api.clone())
    }

    /// Applies the files whenever they change; never returns.
    pub async fn follow(&self) {
        loop {
            tokio::time::sleep(POLL).await;
            self.look();
        }
    }

    /// Checks the files once. Content that cannot be applied is logged once and has no other effect.
    pub fn look(&self) {
        // Read before taking the lock, which every new connection takes.
        let now = content(&self.config);
        let mut current = self.current.lock();
        if now == current.seen {
            return;
        }
        current.seen = now;
        match self.read() {
            Ok(generation) => {
                current.generation = generation;
                tracing::info!("the settings have changed");
            }
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(error, "the new settings are refused; the old ones still count");
            }
        }
    }

    fn read(&self) -> anyhow::Result<Generation> {
        let settings = Settings::read(&self.config)?;
        let generation = generation(&settings, &self.ports, &self.attestation)?;
        if settings.fixed() != self.fixed {
            tracing::warn!("settings other than [nodes] and control planes count after a restart");
        }
        Ok(generation)
    }
}

/// A digest over everything that settings are read from.
fn content(config: &Path) -> Sha256Digest {
    // A missing file differs from an empty one.
    let digest = |path: &Path| {
        let read = fs::read(path).map_err(|error| error.kind());
        *Sha256Digest::of(format!("{read:?}")).as_bytes()
    };
    let nodes = Settings::read(config).map(|settings| settings.nodes).unwrap_or_default();
    let files = [nodes.measurements, nodes.endorsement_roots];
    let files = files.iter().flatten().map(|path| digest(path));
    Sha256Digest::of(std::iter::once(digest(config)).chain(files).collect::<Vec<_>>().concat())
}

fn generation(
    settings: &Settings,
    ports: &JoinServicePorts,
    attestation: &Attestation,
) -> anyhow::Result<Generation> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let nodes = Arc::new(Nodes::new(&settings.nodes, Arc::clone(&clock))?);
    let expected = match &settings.nodes.measurements {
        Some(path) => measurements(path)?,
        None => Measurements::default(),
    };
    let expected = Arc::new(LiveMeasurements::new(expected));
    let trust = Arc::clone(&nodes) as Arc<_>;
    let validator = VtpmValidator::new(attestation.variant, trust, expected);
    let endpoint = endpoint()
        .with_issuer(Arc::clone(&attestation.issuer))
        .with_validator(Arc::new(validator))
        .with_channel_binding(settings.nodes.binding())
        .build()?;
    let control_planes = settings.control_planes();
    let service = JoinService::new(JoinServicePorts { control_planes, ..ports.clone() });
    let admins = AdminTickets::new(settings.control_plane_signers.clone(), Arc::clone(&clock));
    let endorsements = Endorsements::new(nodes, clock, Arc::new(SystemEntropy));
    let service = service.with_endorsements(endorsements).with_plane_tickets(Arc::new(admins));
    Ok(Generation { endpoint, api: ApiServer::new(service) })
}
