//! The parts of an API server that the guard and the key broker use.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use tec_core::port::Clock;
use tec_k8s::api::AUTHORITY;
use tec_k8s::client::{AttemptEvents, AttemptRecords, KubeRegistry, ServerClock};
use tec_k8s::server::WatchedImages;
use tec_support::front::Ready;
use tec_support::serve::Shutdown;
use tec_support::{SystemClock, exit};
use tokio::task::JoinSet;

/// Interval between checks that the API server answers.
const ASK: Duration = Duration::from_secs(3);
/// An API server that takes longer counts as unreachable.
const PATIENCE: Duration = Duration::from_secs(3);
/// Time limit of the last writes before the process ends.
const FLUSH: Duration = Duration::from_secs(5);

/// The objects of one namespace, with attempts stored as objects and reported as Events about machines.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ApiServer {
    /// Machines, keys, clocks and disk keys.
    pub registry: Arc<KubeRegistry>,
    /// Approved images, cached while they are watched.
    pub images: Arc<WatchedImages>,
    /// Attempts; those of unknown machines are written by a task of [`spawn`](Self::spawn).
    pub records: AttemptRecords,
    /// The same attempts, also reported as Events by a task of [`spawn`](Self::spawn).
    pub attempts: Arc<AttemptEvents>,
    /// The API server's clock, compared with this host's.
    pub clock: ServerClock,
}

impl ApiServer {
    /// The API server of this pod, or of the current context; the namespace defaults to the pod's own.
    pub async fn of_this_pod(namespace: Option<String>) -> anyhow::Result<Self> {
        let client = tec_k8s::client::connect().await.context(exit::NO_CLIENT)?;
        let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let server_clock = ServerClock::new(client.clone(), Arc::clone(&clock));
        let registry = KubeRegistry::new(client, namespace, clock);
        let records = AttemptRecords::new(registry.clone());
        let attempts = AttemptEvents::new(Arc::new(records.clone()), registry.clone());
        let images = Arc::new(WatchedImages::new(registry.clone()));
        let (registry, attempts) = (Arc::new(registry), Arc::new(attempts));
        Ok(Self { registry, images, records, attempts, clock: server_clock })
    }

    /// Watches the images, compares the clocks and writes attempts until shutdown.
    pub fn spawn(&self, tasks: &mut JoinSet<anyhow::Result<()>>, shutdown: &Shutdown) {
        let (images, stop) = (Arc::clone(&self.images), shutdown.clone());
        tasks.spawn(async move { stop.until(images.run()).await });
        let (clock, stop) = (self.clock.clone(), shutdown.clone());
        tasks.spawn(async move { stop.until(clock.follow()).await });
        let (events, stop) = (Arc::clone(&self.attempts), shutdown.clone());
        tasks.spawn(async move { stop.until(events.run()).await });
        let (records, stop) = (self.records.clone(), shutdown.clone());
        tasks.spawn(async move {
            let ended = stop.until(records.run()).await;
            // An API server that does not answer must not keep the pod.
            let _ = tokio::time::timeout(FLUSH, records.flush()).await;
            ended
        });
    }

    /// Whether the API server can be reached, checked repeatedly.
    pub fn reachable(&self) -> Reachable {
        Reachable { objects: self.registry.objects(), answers: Arc::default() }
    }
}

/// Whether the API server answers.
#[derive(Debug)]
pub struct Reachable {
    objects: Api<ConfigMap>,
    answers: Arc<AtomicBool>,
}

impl Reachable {
    /// Whether the API server answered the last time.
    pub fn answer(&self) -> Ready {
        let answers = Arc::clone(&self.answers);
        Arc::new(move || answers.load(Ordering::Relaxed))
    }

    /// Checks forever, by reading the record of authority, without which no key is released.
    pub async fn follow(self) {
        loop {
            let asked = self.objects.get_metadata_opt(AUTHORITY);
            let answer = tokio::time::timeout(PATIENCE, asked).await;
            let answers = matches!(answer, Ok(Ok(_)));
            if self.answers.swap(answers, Ordering::Relaxed) != answers {
                if answers {
                    tracing::info!("the API server answers");
                } else {
                    tracing::warn!("the API server does not answer: no key is released");
                }
            }
            tokio::time::sleep(ASK).await;
        }
    }
}
