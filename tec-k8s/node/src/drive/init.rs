//! The shell of [`InitPlan`].

use async_trait::async_trait;
use tec_core::plan;
use tec_core::plan::Shell;
use tec_core::port::PortError;
use tec_core::secret::SecretBytes;

use super::{check_disk, disk_key, is_final, lock, measurement_secret, unlocked, write_intent};
use crate::derive::ClusterId;
use crate::init::{InitEffect, InitEvent, InitOutcome, InitPlan, InitRequest, InitStep};
use crate::journal::{Intent, Phase};
use crate::lock::{LockedNode, NodeLock};
use crate::port::{ClusterInitializer, DataKeys, KeyUris, NodeStore, Pause, StateDisk};
use crate::state::{NodeState, Role};

/// Ports that init acts on.
#[derive(Clone, Copy, Debug)]
pub struct InitPorts<'p> {
    /// The lock that it shares with join.
    pub lock: &'p NodeLock,
    /// The state disk.
    pub disk: &'p dyn StateDisk,
    /// Journal and state.
    pub store: &'p dyn NodeStore,
    /// Runs kubeadm.
    pub cluster: &'p dyn ClusterInitializer,
    /// Where the keys come from; kept before the cluster is created.
    pub uris: &'p KeyUris,
    /// Waits between attempts.
    pub pause: &'p dyn Pause,
}

/// Outcome of an init, with the last failure on the way.
#[derive(Debug)]
#[non_exhaustive]
pub struct InitReport {
    /// The outcome.
    pub outcome: Option<InitOutcome>,
    /// The last failure, if there was one.
    pub failure: Option<PortError>,
}

/// Runs an init to its end. The request must be authenticated.
///
/// # Cancel safety
/// May be dropped at any await; the same request continues it.
pub async fn drive_init(
    ports: InitPorts<'_>,
    keys: &dyn DataKeys,
    request: &InitRequest,
) -> InitReport {
    drive(ports, keys, request, Extent::Whole).await
}

/// Checks whether an init could begin. Changes nothing on the node except for downloads. A key
/// service that stores keys keeps the two that are generated here, and the init itself then uses
/// them. The request must be authenticated.
///
/// # Cancel safety
/// May be dropped at any await.
pub async fn check_init(
    ports: InitPorts<'_>,
    keys: &dyn DataKeys,
    request: &InitRequest,
) -> InitReport {
    drive(ports, keys, request, Extent::Check).await
}

/// How far an init goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// Up to its first change.
    Check,
    /// To its end.
    Whole,
}

async fn drive(
    ports: InitPorts<'_>,
    keys: &dyn DataKeys,
    request: &InitRequest,
    extent: Extent,
) -> InitReport {
    let mut shell = InitShell {
        ports,
        keys,
        request,
        extent,
        intent: None,
        disk_key: None,
        locked: None,
        report: InitReport { outcome: None, failure: None },
    };
    let first = InitEvent::Requested(request.digest);
    plan::run(&mut InitPlan::new(), first, &mut shell).await;
    shell.report
}

struct InitShell<'p> {
    ports: InitPorts<'p>,
    keys: &'p dyn DataKeys,
    request: &'p InitRequest,
    extent: Extent,
    intent: Option<Intent>,
    disk_key: Option<SecretBytes>,
    locked: Option<LockedNode>,
    report: InitReport,
}

impl InitShell<'_> {
    async fn run(&mut self, step: InitStep) -> InitEvent {
        self.ports.pause.began(&step);
        match self.attempt(step).await {
            Ok(event) => event,
            Err(error) => {
                self.ports.pause.failed(&step, &error);
                let refused = is_final(&error);
                self.report.failure = Some(error);
                if refused { InitEvent::Refused(step) } else { InitEvent::Failed(step) }
            }
        }
    }

    async fn attempt(&mut self, step: InitStep) -> Result<InitEvent, PortError> {
        let ports = self.ports;
        match step {
            InitStep::ReadJournal => {
                return ports.store.read_intent().await.map(InitEvent::Journal);
            }
            InitStep::ReadMarker => return ports.lock.marker().read().await.map(InitEvent::Marker),
            InitStep::Prepare => return self.prepare().await.map(InitEvent::Prepared),
            InitStep::Lock => return self.lock().await,
            InitStep::WriteIntent => {
                let intent = self.intent.as_ref().ok_or_else(unlocked)?;
                if !write_intent(ports.lock, ports.store, intent).await? {
                    return Ok(InitEvent::LockTaken);
                }
            }
            InitStep::WriteDone => {
                let intent = self.intent.as_ref().ok_or_else(unlocked)?;
                ports.store.write_intent(intent).await?;
            }
            InitStep::RekeyDisk => {
                let key = self.disk_key.as_ref().ok_or_else(unlocked)?;
                ports.disk.rekey(self.node()?, key).await?;
            }
            InitStep::WriteState => {
                let salt = self.request.measurement_salt();
                let state = NodeState::new(Role::ControlPlane, salt);
                ports.store.write_state(self.node()?, &state).await?;
            }
            InitStep::InitCluster => {
                let node = self.node()?;
                // Only now, when only the cluster's key opens the disk.
                ports.cluster.keep_key_uris(node, ports.uris).await?;
                ports.cluster.init(node, self.request).await?;
            }
        }
        Ok(InitEvent::Done(step))
    }

    /// Finds everything that can be wrong before anything is changed.
    async fn prepare(&mut self) -> Result<ClusterId, PortError> {
        let secret = measurement_secret(self.keys).await?;
        let disk = self.ports.disk.id().await?;
        let key = disk_key(self.keys, disk).await?;
        check_disk(self.ports.disk, &key).await?;
        self.ports.cluster.prepare(self.request).await?;
        self.disk_key = Some(key);
        Ok(secret.cluster_id(&self.request.measurement_salt()))
    }

    async fn lock(&mut self) -> Result<InitEvent, PortError> {
        self.locked = lock(self.ports.lock, self.intent.as_ref()).await?;
        Ok(match self.locked {
            Some(_) => InitEvent::Done(InitStep::Lock),
            None => InitEvent::LockTaken,
        })
    }

    fn node(&self) -> Result<&LockedNode, PortError> {
        self.locked.as_ref().ok_or_else(unlocked)
    }
}

#[async_trait]
impl Shell<InitPlan> for InitShell<'_> {
    async fn perform(&mut self, effect: InitEffect) -> Option<InitEvent> {
        let step = match effect {
            InitEffect::Run(step) => step,
            InitEffect::WriteIntent(intent) if self.extent == Extent::Check => {
                self.report.outcome = Some(InitOutcome::Possible(intent.cluster));
                return None;
            }
            InitEffect::WriteIntent(intent) => {
                self.intent = Some(intent);
                match intent.phase {
                    Phase::Intended => InitStep::WriteIntent,
                    Phase::Done => InitStep::WriteDone,
                }
            }
            InitEffect::Lock(_) => InitStep::Lock,
            InitEffect::Again(step) => {
                self.ports.pause.pause(0).await;
                step
            }
            InitEffect::Finish(outcome) => {
                self.report.outcome = Some(outcome);
                return None;
            }
        };
        Some(self.run(step).await)
    }
}
