//! The Init call.

use std::fmt;
use std::sync::Arc;

use crate::derive::{ClusterId, DataKeyId, MeasurementSecret};
use crate::drive::{InitPorts, InitReport, check_init, drive_init};
use crate::init;
use crate::init::InitOutcome;
use crate::lock::NodeLock;
use crate::port::{
    ClusterInitializer, DataKeys, KeyServices, KeyUris, NodeStore, Pause, StateDisk,
};
use crate::uri::KmsUri;
use async_trait::async_trait;
use tec_core::secret::SecretBytes;
use tonic::{Code, Status};

use super::caller::refusal;
use super::generated::init::{InitRequest, InitResponse};
use super::watch::Told;
use super::{Reason, Watcher, convert};

/// Reason for writing URIs to the disk.
const KEEP: &str = "the cluster's join service opens its key service with it";
/// Length of the key from which a cluster's ID is derived.
const MEASUREMENT_SECRET: usize = 32;

/// Decides whether a caller may init, by a secret whose hash the node was given.
#[async_trait]
pub trait SecretCheck: fmt::Debug + Send + Sync {
    /// Whether this is the secret; takes time that does not depend on its content.
    async fn admits(&self, secret: &SecretBytes) -> bool;
}

/// The ports of init.
#[derive(Clone, Debug)]
pub struct InitServicePorts {
    /// Decides who may init.
    pub secret: Arc<dyn SecretCheck>,
    /// The lock that it shares with join.
    pub lock: Arc<NodeLock>,
    /// Where keys come from.
    pub keys: Arc<dyn KeyServices>,
    /// The state disk.
    pub disk: Arc<dyn StateDisk>,
    /// Journal and state.
    pub store: Arc<dyn NodeStore>,
    /// Runs kubeadm.
    pub cluster: Arc<dyn ClusterInitializer>,
    /// Waits between attempts.
    pub pause: Arc<dyn Pause>,
}

/// A request whose caller may init.
#[derive(derive_more::Debug)]
#[debug("AdmittedInit {{ .. }}")]
pub struct AdmittedInit {
    message: InitRequest,
    secrets: convert::InitSecrets,
    checks: bool,
}

/// Serves Init. The caller is authenticated before anything else is examined, and everything is checked
/// before anything is changed. A program with a transport and tasks turns it into gRPC calls.
#[derive(Clone, Debug)]
pub struct InitService {
    ports: InitServicePorts,
    log: Option<fn() -> Vec<u8>>,
}

impl InitService {
    /// Uses these ports.
    pub fn new(ports: InitServicePorts) -> Self {
        Self { ports, log: None }
    }

    /// Shows the last lines of this log, the oldest first, to callers that may init and whose watched init
    /// failed. *Contract*: bounded, and without secrets.
    pub fn with_log(mut self, log: fn() -> Vec<u8>) -> Self {
        self.log = Some(log);
        self
    }

    /// Authenticates the caller. If you run calls in tasks, create the task only after this returns: anyone
    /// can send messages and disconnect.
    pub async fn admit(&self, mut message: InitRequest) -> Result<AdmittedInit, Status> {
        let checks = message.check;
        let secrets = convert::take_secrets(&mut message);
        if !self.ports.secret.admits(&secrets.init_secret).await {
            tracing::warn!("an Init call with a wrong secret");
            let sentence = "invalid init secret";
            return Err(Reason::InitSecret.status(Code::PermissionDenied, sentence));
        }
        Ok(AdmittedInit { message, secrets, checks })
    }

    /// Carries out an admitted caller's request.
    ///
    /// # Cancel safety
    /// May be dropped at any await; the same request continues.
    pub async fn carry_out(
        &self,
        admitted: AdmittedInit,
        watcher: &Watcher,
    ) -> Result<InitResponse, Status> {
        let AdmittedInit { message, secrets, checks } = admitted;
        let answer = async {
            let (kms, storage) = secrets.uris()?;
            let request = convert::init_request(&message, &kms, &storage)?;
            let uris =
                KeyUris { kms: kms.to_secret_text(KEEP), storage: storage.to_secret_text(KEEP) };
            let keys = self.ports.keys.open(kms, storage).await;
            let sentence = "the key service cannot be used";
            let keys = keys.map_err(|error| refusal(Reason::KeyService, sentence, &error))?;
            self.run(&*keys, &uris, &request, checks, watcher).await
        };
        let answer = answer.await;
        if let Err(status) = &answer {
            let log = self.log.map(|log| log());
            watcher.failed(status, &log.unwrap_or_default()).await;
        }
        answer
    }

    async fn run(
        &self,
        keys: &dyn DataKeys,
        uris: &KeyUris,
        request: &init::InitRequest,
        checks: bool,
        watcher: &Watcher,
    ) -> Result<InitResponse, Status> {
        let pause = Told { inner: Arc::clone(&self.ports.pause), watcher };
        let ports = InitPorts {
            lock: &self.ports.lock,
            disk: &*self.ports.disk,
            store: &*self.ports.store,
            cluster: &*self.ports.cluster,
            uris,
            pause: &pause,
        };
        let report = if checks {
            check_init(ports, keys, request).await
        } else {
            drive_init(ports, keys, request).await
        };
        self.answer(report).await
    }

    async fn answer(&self, report: InitReport) -> Result<InitResponse, Status> {
        match report.outcome {
            Some(InitOutcome::Initialized(cluster)) => {
                let sentence = "the kubeconfig cannot be read";
                let kubeconfig = self.ports.cluster.kubeconfig().await;
                let kubeconfig =
                    kubeconfig.map_err(|error| refusal(Reason::Kubeconfig, sentence, &error))?;
                Ok(InitResponse {
                    kubeconfig: kubeconfig.expose("the caller is authenticated").to_vec(),
                    cluster_id: cluster.as_bytes().to_vec(),
                })
            }
            Some(InitOutcome::Possible(cluster)) => {
                Ok(InitResponse { kubeconfig: Vec::new(), cluster_id: cluster.as_bytes().to_vec() })
            }
            Some(InitOutcome::AlreadyActivated) => {
                let sentence = "the node is already being activated";
                Err(Reason::AlreadyActivated.status(Code::FailedPrecondition, sentence))
            }
            Some(InitOutcome::Retry(_) | InitOutcome::Refused(_)) => {
                let sentence = "the node cannot be prepared; nothing was changed";
                let told = |error| refusal(Reason::NotPrepared, sentence, &error);
                Err(report.failure.map_or_else(defect, told))
            }
            _ => Err(defect()),
        }
    }
}

/// The cluster that a node creates from this request, for clients that recognize it by its register. `None`
/// if that cannot be derived from the request: its keys come from elsewhere, or it is malformed, which the
/// node must refuse.
pub fn derived_cluster(mut message: InitRequest) -> Option<ClusterId> {
    let secrets = convert::take_secrets(&mut message);
    let (kms, storage) = secrets.uris().ok()?;
    let request = convert::init_request(&message, &kms, &storage).ok()?;
    let KmsUri::Cluster(master) = kms else {
        return None;
    };
    let id = DataKeyId::measurement_secret();
    let key = master.data_key(&id, MEASUREMENT_SECRET).ok()?;
    let secret = MeasurementSecret::from_data_key(&key).ok()?;
    Some(secret.cluster_id(&request.measurement_salt()))
}

fn defect() -> Status {
    Reason::Defect.status(Code::Internal, "init ended without an outcome")
}
