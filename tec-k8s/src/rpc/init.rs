//! The Init call.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use tec_core::node::drive::InitPorts;
use tec_core::node::drive::InitReport;
use tec_core::node::drive::drive_init;
use tec_core::node::init::InitOutcome;
use tec_core::node::lock::NodeLock;
use tec_core::node::port::ClusterInitializer;
use tec_core::node::port::KeyServices;
use tec_core::node::port::NodeStore;
use tec_core::node::port::Pause;
use tec_core::node::port::StateDisk;
use tec_core::secret::SecretBytes;
use tonic::Request;
use tonic::Response;
use tonic::Status;

use super::caller::refusal;
use super::convert;
use super::generated::init::InitRequest;
use super::generated::init::InitResponse;
use super::generated::init::api_server::Api;

/// Knows whether a caller may init, by a secret whose hash the node was given.
pub trait SecretCheck: fmt::Debug + Send + Sync {
    /// Whether this is the secret; in time that does not depend on its content.
    fn admits(&self, secret: &SecretBytes) -> bool;
}

/// What init acts on.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "callers write all of it out")]
pub struct InitServicePorts {
    /// Who may.
    pub secret: Arc<dyn SecretCheck>,
    /// The lock that it shares with join.
    pub lock: Arc<NodeLock>,
    /// Where keys come from.
    pub keys: Arc<dyn KeyServices>,
    /// The state disk.
    pub disk: Arc<dyn StateDisk>,
    /// Journal and state.
    pub store: Arc<dyn NodeStore>,
    /// Who runs kubeadm.
    pub cluster: Arc<dyn ClusterInitializer>,
    /// Waits between attempts.
    pub pause: Arc<dyn Pause>,
}

/// Serves Init. A caller is authenticated before anything else is looked at, and nothing is changed
/// before all was checked.
#[derive(Clone, Debug)]
pub struct InitService(InitServicePorts);

impl InitService {
    /// Over these ports.
    pub fn new(ports: InitServicePorts) -> Self {
        Self(ports)
    }

    async fn answer(&self, report: InitReport) -> Result<InitResponse, Status> {
        match report.outcome {
            Some(InitOutcome::Initialized(cluster)) => {
                let kubeconfig = self.0.cluster.kubeconfig().await;
                let kubeconfig =
                    kubeconfig.map_err(|error| refusal("the kubeconfig cannot be read", &error))?;
                Ok(InitResponse {
                    kubeconfig: kubeconfig.expose("the caller is authenticated").to_vec(),
                    cluster_id: cluster.as_bytes().to_vec(),
                })
            }
            Some(InitOutcome::AlreadyActivated) => Err(Status::failed_precondition(
                "the node is already being activated",
            )),
            Some(InitOutcome::Retry(_) | InitOutcome::Refused(_)) => {
                Err(report.failure.map_or_else(defect, |error| {
                    refusal("the node cannot be prepared; nothing was changed", &error)
                }))
            }
            _ => Err(defect()),
        }
    }
}

fn defect() -> Status {
    Status::internal("init ended without an outcome")
}

#[async_trait]
impl Api for InitService {
    async fn init(&self, request: Request<InitRequest>) -> Result<Response<InitResponse>, Status> {
        let mut message = request.into_inner();
        let (secrets, digest) = convert::take_secrets(&mut message);
        if !self.0.secret.admits(&secrets.init_secret) {
            tracing::warn!("an Init call with a wrong secret");
            return Err(Status::permission_denied("invalid init secret"));
        }
        let (kms, storage) = secrets.uris()?;
        let request = convert::init_request(&message, digest)?;
        let keys = self.0.keys.open(kms, storage).await;
        let keys = keys.map_err(|error| refusal("the key service cannot be used", &error))?;
        let ports = InitPorts {
            lock: &self.0.lock,
            disk: &*self.0.disk,
            store: &*self.0.store,
            cluster: &*self.0.cluster,
            pause: &*self.0.pause,
        };
        let report = drive_init(ports, &*keys, &request).await;
        self.answer(report).await.map(Response::new)
    }
}
