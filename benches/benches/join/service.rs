//! A join service with members in memory.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bootstrapper::instance::authority::Authority;
use bootstrapper::instance::transport;
use bootstrapper::instance::transport::Bounds;
use tec_core::ak::{Fingerprint, PublicKey};
use tec_core::digest::Sha256Digest;
use tec_core::port::{CreateOutcome, PortError};
use tec_core::secret::SecretBytes;
use tec_node::atls::Endpoint;
use tec_node::derive::{ClusterId, DataKeyId, MeasurementSalt, MeasurementSecret};
use tec_node::grant::{Claim, ControlPlanes};
use tec_node::port::{DerivedKeys, KeyServices as _};
use tec_node::rpc::generated::join::api_server::ApiServer;
use tec_node::rpc::{
    ClusterFacts, ControlPlaneTurns, Enrollments, JoinService, JoinServicePorts, NodeStanding,
    Settled,
};
use tec_node::state::Role;
use tec_node::ticket::{CaPin, Component, NodeName, PkiFile};
use tec_node::uri::{KmsUri, StorageUri};
use tec_support::{SystemClock, SystemEntropy};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::plain::PlainServer;

/// Master key 40..5f, salt 60..7f (Constellation).
const KMS: &str = "kms://cluster-kms?key=QEFCQ0RFRkdISUpLTE1OT1BRUlNUVVZXWFlaW1xdXl8=\
                   &salt=YGFiY2RlZmdoaWprbG1ub3BxcnN0dXZ3eHl6e3x9fn8=";
const SALT: MeasurementSalt = MeasurementSalt::new([0x20; 32]);

#[derive(Debug, Default)]
struct Members(Mutex<Vec<Claim>>);

#[async_trait]
impl Enrollments for Members {
    async fn list(&self) -> Result<Vec<Claim>, PortError> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    async fn add(&self, claim: &Claim) -> Result<CreateOutcome, PortError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(claim.clone());
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

#[derive(Debug)]
struct Facts;

#[async_trait]
impl ControlPlaneTurns for Facts {
    async fn take(&self, _node: &NodeName) -> Result<(), PortError> {
        Ok(())
    }
}

#[async_trait]
impl ClusterFacts for Facts {
    async fn node(&self, _name: &NodeName) -> Result<NodeStanding, PortError> {
        Ok(NodeStanding::Absent)
    }

    async fn api_server(&self) -> Result<String, PortError> {
        Ok("10.0.0.1:6443".to_owned())
    }

    async fn ca_pin(&self) -> Result<CaPin, PortError> {
        Ok(CaPin::new(Sha256Digest::of("ca")))
    }

    async fn components(&self) -> Result<(String, Vec<Component>), PortError> {
        Ok(("v1.34.3".to_owned(), Vec::new()))
    }

    async fn files(&self, _role: Role) -> Result<Vec<(PkiFile, SecretBytes)>, PortError> {
        Ok(Vec::new())
    }
}

/// The service of one new cluster.
pub(crate) struct Service(PathBuf);

/// The service, serving until it is stopped.
pub(crate) struct Served {
    pub(crate) address: String,
    stop: watch::Sender<bool>,
    serving: JoinSet<()>,
}

impl Served {
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        self.stop.send_replace(true);
        while let Some(ended) = self.serving.join_next().await {
            ended?;
        }
        Ok(())
    }
}

/// The cluster that tickets are for.
pub(crate) async fn cluster() -> anyhow::Result<ClusterId> {
    let keys = DerivedKeys.open(KmsUri::parse(KMS)?, StorageUri::NoStore).await?;
    let secret = keys.data_key(&DataKeyId::measurement_secret(), 32).await?;
    Ok(MeasurementSecret::from_data_key(&secret)?.cluster_id(&SALT))
}

impl Service {
    /// `pki` has the files of the CA.
    pub(crate) fn new(pki: &Path) -> Self {
        Self(pki.to_owned())
    }

    async fn api(&self) -> anyhow::Result<ApiServer<JoinService>> {
        let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
        let keys = DerivedKeys.open(KmsUri::parse(KMS)?, StorageUri::NoStore).await?;
        Ok(ApiServer::new(JoinService::new(JoinServicePorts {
            keys: keys.into(),
            salt: SALT,
            enrollments: Arc::new(Members::default()),
            control_planes: ControlPlanes::Closed,
            turns: Arc::new(Facts),
            signer: Arc::new(Authority::new(&self.0, clock, entropy)),
            facts: Arc::new(Facts),
        })))
    }

    pub(crate) async fn attested(&self, endpoint: Endpoint) -> anyhow::Result<Served> {
        let (api, listener) = (self.api().await?, TcpListener::bind("127.0.0.1:0").await?);
        let address = listener.local_addr()?.to_string();
        let (stop, stopped) = watch::channel(false);
        let mut serving = JoinSet::new();
        serving.spawn(transport::serve(endpoint, listener, api, Bounds::SMALL, stopped));
        Ok(Served { address, stop, serving })
    }

    pub(crate) async fn plain(&self, server: PlainServer) -> anyhow::Result<Served> {
        let (api, listener) = (self.api().await?, TcpListener::bind("127.0.0.1:0").await?);
        let address = listener.local_addr()?.to_string();
        let (stop, stopped) = watch::channel(false);
        let mut serving = JoinSet::new();
        serving.spawn(server.serve(listener, api, stopped));
        Ok(Served { address, stop, serving })
    }
}
