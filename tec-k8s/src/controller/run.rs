//! Puts everything together: leadership, watches, the queue, and an orderly shutdown.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt as _;
use kube::api::PartialObjectMeta;
use kube::runtime::watcher;
use tec_core::code::Code;
use tec_core::id::MachineId;
use tec_core::port::{PortError, PortErrorKind, chain};
use tokio::time::Instant;

use super::cache::Cache;
use super::context::{Context, Task};
use super::lease::Leadership;
use super::metrics::Metrics;
use super::parts::Parts;
use super::queue::Next;
use super::{cluster, follow, image, key, machine, record, sweep, sync, untrusted};
use crate::api::{AUTHORITY, FIELD_MANAGER, Machine};
use crate::client::Object;
use crate::signal::Metric;

/// Number of objects that are reconciled concurrently.
const WORKERS: usize = 16;

/// The operator stopped without being asked to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperatorError {
    /// Another replica leads, or the API server cannot be reached. The program exits, so that nothing
    /// continues with stale knowledge.
    #[error("this replica is no longer the leader")]
    LeadershipLost,
}

/// Health for probes.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<AtomicBool>);

impl Health {
    /// Whether this replica is ready: it waits to become the leader, or it leads and has seen every object.
    pub fn is_ready(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, is_ready: bool) {
        self.0.store(is_ready, Ordering::Relaxed);
    }
}

/// All controllers of one namespace.
#[derive(Debug)]
pub struct Operator {
    context: Context,
    health: Health,
}

impl Operator {
    /// The operator of a namespace.
    pub fn new(parts: Parts) -> Self {
        let metrics = Arc::new(Metrics::default());
        Self { context: Context::new(parts, metrics), health: Health::default() }
    }

    /// Its metrics.
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.context.metrics)
    }

    /// Its health, for probes.
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// Waits to become the leader, leads, and ends when `shutdown` does: work under way is finished, and the
    /// next replica leads immediately.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), OperatorError> {
        let ctx = &self.context;
        let mut shutdown = pin!(shutdown.fuse());
        let leases = ctx.objects();
        let mut leadership = Leadership::new(leases, ctx.parts.identity.clone());
        ctx.metrics.set(Metric::Leader, &[], 0);
        self.health.set(true);
        tokio::select! {
            () = leadership.acquire(|| ctx.now()) => {}
            () = &mut shutdown => return Ok(()),
        }
        tracing::info!(identity = ctx.parts.identity, "leads");
        ctx.metrics.set(Metric::Leader, &[], 1);
        for controller in Task::CONTROLLERS {
            ctx.metrics.begin(Metric::Reconciliations, &[controller, "error"]);
        }
        self.health.set(false);
        let ended = tokio::select! {
            () = leadership.hold(|| ctx.now()) => Err(OperatorError::LeadershipLost),
            () = self.lead(&mut shutdown) => Ok(()),
        };
        self.health.set(false);
        if ended.is_ok() {
            leadership.release().await;
        }
        ended
    }

    async fn lead(&self, shutdown: impl Future<Output = ()>) {
        let ctx = &self.context;
        let mut shutdown = pin!(shutdown);
        let work = async {
            // A worker that sees only half of the objects would ask for what exists already.
            tokio::select! {
                () = synced(ctx) => {}
                () = &mut shutdown => return,
            }
            self.health.set(true);
            let untrusted = untrusted::run(ctx).boxed();
            let rounds = async {
                futures::join!(sync::run(ctx).boxed(), sweep::run(ctx).boxed(), untrusted)
            };
            tokio::select! {
                _ = rounds => {}
                () = process(ctx, shutdown) => {}
            }
        };
        tokio::select! {
            () = follow(ctx) => {}
            () = work => {}
        }
    }
}

/// Waits for the first list of everything, and records which machines exist.
async fn synced(ctx: &Context) {
    let caches = &ctx.caches;
    futures::join!(
        caches.clusters.synced(),
        caches.machines.synced(),
        caches.keys.synced(),
        caches.images.synced(),
        caches.jobs.synced(),
        caches.deployments.synced(),
        caches.secrets.synced(),
        caches.authority.synced(),
        compared(ctx),
    );
    read_ahead(ctx).await;
    let names = ctx.caches.machines.all();
    let names = names.iter().map(|machine| machine.name_any());
    ctx.memory().unseen.extend(names);
    for machine in ctx.caches.machines.all() {
        ctx.queue.wake(Task::Machine(machine.name_any()));
    }
}

/// Reads the disk keys of all machines that have one. A key that is not among them is read when its machine
/// is reconciled.
async fn read_ahead(ctx: &Context) {
    let is_keyed = |machine: &Arc<Machine>| {
        machine.status.as_ref().is_some_and(|status| status.key_secret.is_some())
    };
    if !ctx.caches.machines.all().iter().any(is_keyed) {
        return;
    }
    let has_key =
        |id: &MachineId| ctx.caches.machines.indexed(&id.to_string()).iter().any(is_keyed);
    let mut keys = BTreeMap::new();
    let read = ctx.registry.each_disk_key(|id, key| {
        if has_key(&id) {
            keys.insert(id, key);
        }
    });
    if let Err(error) = read.await {
        tracing::warn!(error = chain(&error), "disk keys are read one by one");
    }
    ctx.memory().read_ahead = keys;
}

/// Waits until the clocks have been compared, if this is required.
async fn compared(ctx: &Context) {
    if let Some(clock) = &ctx.parts.server_clock {
        clock.compared().await;
    }
}

/// Follows every watch forever.
async fn follow(ctx: &Context) {
    let wake_cluster = || {
        for cluster in ctx.caches.clusters.all() {
            ctx.queue.wake(Task::Cluster(cluster.name_any()));
        }
    };
    let ours =
        watcher::Config::default().labels(&format!("app.kubernetes.io/managed-by={FIELD_MANAGER}"));
    let caches = &ctx.caches;
    let any = watcher::Config::default;
    let watches: [BoxFuture<'_, ()>; 14] = [
        caches
            .clusters
            .follow(watcher(ctx.objects(), any()), |cluster| {
                ctx.queue.wake(Task::Cluster(cluster.name_any()));
                ctx.untrusted.notify_one();
                // A different one may now be the oldest.
                wake_cluster();
                ctx.wake_followed();
            })
            .boxed(),
        caches
            .machines
            .follow(watcher(ctx.objects(), any()), |machine| {
                ctx.queue.wake(Task::Machine(machine.name_any()));
                ctx.untrusted.notify_one();
                ctx.wake_machine(&machine.spec.id);
                ctx.wake_keys(&machine.spec.id);
            })
            .boxed(),
        caches
            .keys
            .follow(watcher(ctx.objects(), any()), |key| {
                ctx.queue.wake(Task::Key(key.name_any()));
                if let Some(uuid) = &key.spec.uuid {
                    ctx.wake_machine(uuid);
                    ctx.wake_keys(uuid);
                }
            })
            .boxed(),
        caches
            .images
            .follow(watcher(ctx.objects(), any()), |image| {
                ctx.queue.wake(Task::Image(image.name_any()));
                image::wake_same(ctx, image);
                follow::wake_follower(ctx, image);
            })
            .boxed(),
        // Nothing waits for its first list: it may be that only the operator was upgraded so far.
        caches
            .followed
            .follow(watcher(ctx.objects(), any()), |followed| {
                ctx.queue.wake(Task::Followed(followed.name_any()));
            })
            .boxed(),
        caches
            .jobs
            .follow(watcher(ctx.objects(), any().labels("kind=compute-pcrs")), |job| {
                for owner in job.owner_references() {
                    ctx.queue.wake(Task::Image(owner.name.clone()));
                }
            })
            .boxed(),
        caches.deployments.follow(watcher(ctx.objects(), ours.clone()), |_| wake_cluster()).boxed(),
        caches
            .secrets
            .follow(watcher(ctx.objects::<PartialObjectMeta<Secret>>(), any()), |secret| {
                // Disk keys that someone restored, or created beforehand, have no owner.
                ctx.wake_machine(&secret.name_any());
                for owner in secret.owner_references() {
                    match owner.kind.as_str() {
                        "Machine" => ctx.queue.wake(Task::Machine(owner.name.clone())),
                        "AttestationKey" => ctx.queue.wake(Task::Key(owner.name.clone())),
                        "TrustedExecutionCluster" => wake_cluster(),
                        _ => {}
                    }
                }
            })
            .boxed(),
        async {
            // By a wrong clock, attempts would be from the future, and would not be looked at again.
            compared(ctx).await;
            record::follow(ctx).await;
        }
        .boxed(),
        authority(ctx),
        clock(ctx, wake_cluster).boxed(),
        child::<ConfigMap>(ctx, &ours, &wake_cluster),
        child::<Service>(ctx, &ours, &wake_cluster),
        child::<NetworkPolicy>(ctx, &ours, &wake_cluster),
    ];
    futures::future::join_all(watches).await;
}

/// Follows the record of authority. When it changes, everything that is published may change.
fn authority(ctx: &Context) -> BoxFuture<'_, ()> {
    let one = watcher::Config::default().fields(&format!("metadata.name={AUTHORITY}"));
    let events = watcher(ctx.objects::<ConfigMap>(), one);
    ctx.caches.authority.follow(events, |_| ctx.wake_all()).boxed()
}

/// Compares the clocks, and reconciles everything again when they start or stop agreeing.
async fn clock(ctx: &Context, wake_cluster: impl Fn()) {
    let Some(clock) = &ctx.parts.server_clock else {
        return futures::future::pending().await;
    };
    let mut changes = clock.subscribe();
    let wake = async {
        while changes.changed().await.is_ok() {
            refusing(ctx, clock.refusal());
            wake_cluster();
            ctx.wake_all();
        }
    };
    futures::join!(clock.follow(), wake);
}

/// Reports why no time-based decisions are made.
fn refusing(ctx: &Context, code: Option<Code>) {
    let code = code.map(Code::as_str);
    ctx.metrics.keep_only(Metric::Refusing, code.as_slice());
    if let Some(code) = code {
        ctx.metrics.set(Metric::Refusing, &[code], 1);
    }
}

/// Follows children for which it only matters that something happened to them.
fn child<'a, K: Object + Send + Sync + 'static>(
    ctx: &'a Context,
    ours: &watcher::Config,
    changed: &'a (impl Fn() + Sync),
) -> BoxFuture<'a, ()> {
    let events = watcher(ctx.objects::<PartialObjectMeta<K>>(), ours.clone());
    async move {
        let cache = Cache::new(|_| None);
        cache.follow(events, |_| changed()).await;
    }
    .boxed()
}

/// Reconciles what is due until `shutdown`, then finishes what is under way.
async fn process(ctx: &Context, shutdown: impl Future<Output = ()>) {
    let mut shutdown = pin!(shutdown);
    let mut running = FuturesUnordered::new();
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            task = ctx.queue.next(), if running.len() < WORKERS => running.push(look(ctx, task)),
            Some(()) = running.next() => {}
        }
    }
    while running.next().await.is_some() {}
}

async fn look(ctx: &Context, task: Task) {
    if ctx.is_paused() && !matches!(task, Task::Cluster(_)) {
        // It counts as not reconciled, and is reconciled when the pause ends.
        ctx.queue.done(&task, Next::Wait);
        return;
    }
    let begin = Instant::now();
    let outcome = match &task {
        Task::Cluster(name) => cluster::reconcile(ctx, name).await,
        Task::Machine(name) => machine::reconcile(ctx, name).await,
        Task::Key(name) => key::reconcile(ctx, name).await,
        Task::Image(name) => image::reconcile(ctx, name).await,
        Task::Followed(name) => follow::reconcile(ctx, name).await,
    };
    let controller = task.controller();
    ctx.metrics.observe(Metric::ReconcileSeconds, &[controller], begin.elapsed());
    settle(ctx, &task, outcome);
    ctx.metrics.set(Metric::QueueDepth, &["all"], ctx.queue.len());
}

fn settle(ctx: &Context, task: &Task, outcome: Result<Next, PortError>) {
    let controller = task.controller();
    let is_seen;
    match outcome {
        Ok(next) => {
            is_seen = next != Next::Again;
            ctx.queue.done(task, next);
            ctx.metrics.count(Metric::Reconciliations, &[controller, "ok"]);
        }
        // Someone else was faster; the watch reports the new state, or has reported it already.
        Err(error) if error.kind() == PortErrorKind::Conflict => {
            ctx.queue.failed(task);
            is_seen = false;
        }
        Err(error) => {
            is_seen = !error.is_retryable();
            let delay = ctx.queue.failed(task);
            ctx.metrics.count(Metric::Reconciliations, &[controller, "error"]);
            tracing::warn!(?task, error = chain(&error), ?delay, "it is tried again");
        }
    }
    if let Task::Machine(name) = task
        && is_seen
    {
        let mut memory = ctx.memory();
        if memory.unseen.remove(name) && memory.unseen.is_empty() {
            ctx.publish.notify_one();
        }
    }
}
