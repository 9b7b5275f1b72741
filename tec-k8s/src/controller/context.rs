//! State that all controllers share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DynamicObject, PartialObjectMeta};
use kube::runtime::events::{EventType, Recorder, Reporter};
use kube::{Api, Client, Resource, ResourceExt as _};
use parking_lot::{Mutex, MutexGuard};
use tec_core::id::MachineId;
use tec_core::migrate::{Authority, Deed, Role};
use tec_core::port::{Clock, Entropy, PortError};
use tec_core::time::Timestamp;
use tokio::sync::Notify;

use super::cache::Cache;
use super::metrics::Metrics;
use super::parts::Parts;
use super::queue::Queue;
use crate::api::{
    AUTHORITY, ApprovedImage, AttestationKey, AttestationRecord, ConditionKind, FIELD_MANAGER,
    FollowedImage, Machine, Reason, TargetStatus, TrustedExecutionCluster,
};
use crate::client::{KubeRegistry, Object, ReadKey, ServerClock, record_of, remembered_of};
use crate::{render, signal};

/// An object to reconcile, by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Task {
    Cluster(String),
    Machine(String),
    Key(String),
    Image(String),
    Followed(String),
}

impl Task {
    /// Names of all controllers.
    pub(super) const CONTROLLERS: [&str; 5] =
        ["cluster", "machine", "attestation-key", "image", "followed-image"];

    /// Name of the controller in metrics.
    pub(super) fn controller(&self) -> &'static str {
        match self {
            Self::Cluster(_) => "cluster",
            Self::Machine(_) => "machine",
            Self::Key(_) => "attestation-key",
            Self::Image(_) => "image",
            Self::Followed(_) => "followed-image",
        }
    }
}

/// Everything that is watched. For Secrets, only the metadata is.
#[derive(Debug)]
pub(super) struct Caches {
    pub(super) clusters: Cache<TrustedExecutionCluster>,
    /// Indexed by ID.
    pub(super) machines: Cache<Machine>,
    /// Indexed by the machine's ID.
    pub(super) keys: Cache<AttestationKey>,
    /// Indexed by digest.
    pub(super) images: Cache<ApprovedImage>,
    pub(super) followed: Cache<FollowedImage>,
    /// The Jobs that compute what an image measures.
    pub(super) jobs: Cache<Job>,
    pub(super) deployments: Cache<Deployment>,
    pub(super) secrets: Cache<PartialObjectMeta<Secret>>,
    /// Of each record, a `summary::Summary`. Indexed by the machine's ID.
    pub(super) records: Cache<AttestationRecord>,
    /// The record of authority.
    pub(super) authority: Cache<ConfigMap>,
}

impl Caches {
    fn new() -> Self {
        Self {
            clusters: Cache::new(|_| None),
            machines: Cache::new(|machine| Some(machine.spec.id.clone())),
            keys: Cache::new(|key| key.spec.uuid.clone()),
            images: Cache::new(|image| image.digest().ok().map(str::to_owned)),
            followed: Cache::new(|_| None),
            jobs: Cache::new(|_| None),
            deployments: Cache::new(|_| None),
            secrets: Cache::new(|_| None),
            records: Cache::new(|record| record.spec.machine.clone()),
            authority: Cache::new(|_| None),
        }
    }
}

/// What is reported about the CA.
#[derive(Clone, Debug)]
pub(super) struct Spoken {
    pub(super) said: (ConditionKind, Reason, String),
    /// When to check again, even without an event.
    pub(super) again: Option<Duration>,
    /// Time since which the next CA has waited for machines.
    pub(super) held_since: Option<Timestamp>,
}

/// State that changes while the operator runs, besides the caches.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// IDs of machines by object name, for use after the object is gone.
    pub(super) ids: BTreeMap<String, MachineId>,
    /// UID and generation of the cluster object that counted last, as text.
    pub(super) counting: String,
    /// Machines that existed at startup and have not been reconciled yet.
    pub(super) unseen: BTreeSet<String>,
    /// Disk keys that were read at startup, until their machines are reconciled.
    pub(super) read_ahead: BTreeMap<MachineId, ReadKey>,
    /// Whether the list of Trustees is known.
    pub(super) is_configured: bool,
    /// Whether a publishing round has been completed since startup.
    pub(super) had_round: bool,
    /// Machines whose facts have not been published everywhere yet.
    pub(super) unpublished: BTreeSet<String>,
    /// The Trustees, as of the last round.
    pub(super) targets: Vec<TargetStatus>,
    /// Versions of the child objects as last applied, by kind and name.
    pub(super) applied: BTreeMap<String, String>,
    /// Versions of Deployments whose stuck rollout was already reported.
    pub(super) stuck: BTreeMap<String, String>,
    /// The report about the CA, as of the last check.
    pub(super) authority: Option<Spoken>,
    /// Time since which the Trustee has been available.
    pub(super) available_since: Option<String>,
}

/// State that all controllers share.
#[derive(derive_more::Debug)]
pub(super) struct Context {
    pub(super) parts: Parts,
    pub(super) registry: KubeRegistry,
    pub(super) caches: Caches,
    pub(super) queue: Queue<Task>,
    pub(super) metrics: Arc<Metrics>,
    /// Something may have to be published.
    pub(super) publish: Notify,
    /// Untrusted machines may have to be looked at.
    pub(super) untrusted: Notify,
    #[debug(skip)]
    warnings: Recorder,
    memory: Mutex<Memory>,
}

impl Context {
    pub(super) fn new(parts: Parts, metrics: Arc<Metrics>) -> Self {
        let clock = Arc::clone(&parts.clock);
        Self {
            registry: KubeRegistry::new(parts.client.clone(), &parts.namespace, clock),
            caches: Caches::new(),
            queue: Queue::new(Arc::clone(&parts.entropy)),
            metrics,
            publish: Notify::new(),
            untrusted: Notify::new(),
            warnings: recorder(&parts),
            memory: Mutex::default(),
            parts,
        }
    }

    pub(super) fn client(&self) -> Client {
        self.parts.client.clone()
    }

    pub(super) fn clock(&self) -> &dyn Clock {
        &*self.parts.clock
    }

    pub(super) fn entropy(&self) -> &dyn Entropy {
        &*self.parts.entropy
    }

    pub(super) fn now(&self) -> Timestamp {
        self.parts.clock.now()
    }

    /// Whether time-based decisions may use this clock.
    pub(super) fn clock_agrees(&self) -> Result<(), PortError> {
        self.parts.server_clock.as_ref().map_or(Ok(()), ServerClock::check)
    }

    /// The time by which approvals expire.
    pub(super) fn latest(&self) -> Timestamp {
        self.parts.server_clock.as_ref().map_or_else(|| self.now(), ServerClock::latest)
    }

    /// Reconciles every machine, key and image, and publishes again.
    pub(super) fn wake_all(&self) {
        let caches = &self.caches;
        let machines = caches.machines.all().into_iter().map(|it| Task::Machine(it.name_any()));
        let keys = caches.keys.all().into_iter().map(|it| Task::Key(it.name_any()));
        let images = caches.images.all().into_iter().map(|it| Task::Image(it.name_any()));
        machines.chain(keys).chain(images).for_each(|task| self.queue.wake(task));
        self.wake_followed();
        self.publish.notify_one();
    }

    /// Reconciles every followed tag.
    pub(super) fn wake_followed(&self) {
        for followed in self.caches.followed.all() {
            self.queue.wake(Task::Followed(followed.name_any()));
        }
    }

    /// Never held across an await.
    pub(super) fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock()
    }

    /// Objects of a kind in the operator's namespace.
    pub(super) fn objects<K: Object>(&self) -> Api<K> {
        Api::namespaced(self.client(), &self.parts.namespace)
    }

    /// Objects of the kind of a rendered object, in the operator's namespace.
    pub(super) fn objects_like(&self, rendered: &render::Object) -> Api<DynamicObject> {
        Api::namespaced_with(self.client(), &self.parts.namespace, &rendered.resource())
    }

    /// Whether this anchor may do this, according to the watch. The registry reads the record itself before
    /// it writes; for the measurements of images this is the only gate.
    pub(super) fn may(&self, deed: Deed) -> bool {
        match self.authority() {
            Ok(None) => true,
            Ok(Some(record)) => record.permit(deed).is_ok(),
            // What exists is served, and nothing new is admitted.
            Err(_) => deed == Deed::Release,
        }
    }

    /// The record of authority; `None` if there never was one. If its ConfigMap was removed, what the cluster
    /// objects remember applies.
    fn authority(&self) -> Result<Option<Authority>, PortError> {
        let object = self.caches.authority.get(AUTHORITY);
        if let Some(record) = object.map(|object| record_of(&object)).transpose()?.flatten() {
            return Ok(Some(record));
        }
        let mut latest: Option<Authority> = None;
        for cluster in self.caches.clusters.all() {
            let record = remembered_of(&*cluster)?;
            latest = latest.into_iter().chain(record).max_by_key(Authority::epoch);
        }
        Ok(latest)
    }

    /// The reason why this anchor does not act as the authority.
    pub(super) fn role(&self) -> String {
        let record = self.authority().ok().flatten();
        let role = record.map_or(Role::ServeOnly, |record| record.role());
        format!("this trust anchor is {role}")
    }

    /// The cluster object that counts: the oldest one, and of several created in the same second, which is
    /// the resolution of an API server, the one that is installed.
    pub(super) fn cluster(&self) -> Option<Arc<TrustedExecutionCluster>> {
        let all = self.caches.clusters.all();
        all.into_iter().filter(|cluster| cluster.metadata.deletion_timestamp.is_none()).min_by_key(
            |cluster| {
                let is_new = !is_installed(cluster);
                (cluster.creation_timestamp(), is_new, cluster.name_any())
            },
        )
    }

    /// Whether an admin paused the operator.
    pub(super) fn is_paused(&self) -> bool {
        self.cluster().is_some_and(|cluster| cluster.is_paused())
    }

    /// Reports to people. An Event that cannot be written is no reason to stop.
    pub(super) async fn event<K>(&self, object: &K, event: signal::Event, note: &str)
    where
        K: Resource<DynamicType = ()>,
    {
        let wanted = kube::runtime::events::Event {
            type_: match event.event_type() {
                signal::EventType::Warning => EventType::Warning,
                signal::EventType::Normal => EventType::Normal,
            },
            reason: event.as_str().to_owned(),
            note: Some(note.to_owned()),
            action: event.as_str().to_owned(),
            secondary: None,
        };
        let reference = object.object_ref(&());
        // A recorder remembers each Event for minutes, to count repetitions. Good news is reported once for
        // each of many machines.
        let published = match wanted.type_ {
            EventType::Normal => recorder(&self.parts).publish(&wanted, &reference).await,
            EventType::Warning => self.warnings.publish(&wanted, &reference).await,
        };
        if let Err(error) = published {
            tracing::warn!(event = event.as_str(), error = %error, "an Event is not written");
        }
    }

    /// Reconciles everything related to the machine with this ID.
    pub(super) fn wake_machine(&self, id: &str) {
        for machine in self.caches.machines.indexed(id) {
            self.queue.wake(Task::Machine(machine.name_any()));
        }
    }

    /// Reconciles every key that was submitted for the machine with this ID.
    pub(super) fn wake_keys(&self, id: &str) {
        for key in self.caches.keys.indexed(id) {
            self.queue.wake(Task::Key(key.name_any()));
        }
    }
}

fn recorder(parts: &Parts) -> Recorder {
    let reporter =
        Reporter { controller: FIELD_MANAGER.to_owned(), instance: Some(parts.identity.clone()) };
    Recorder::new(parts.client.clone(), reporter)
}

fn is_installed(cluster: &TrustedExecutionCluster) -> bool {
    let conditions = cluster.status.iter().flat_map(|status| &status.conditions);
    conditions
        .filter(|condition| condition.type_ == ConditionKind::Installed.as_str())
        .any(|condition| condition.status == "True")
}
