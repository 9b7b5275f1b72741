//! What the two servers of a node's first boot share: their start, and how they follow the cluster object.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use kube::Client;
use tec_core::http::ReplyStyle;
use tec_core::port::chain;
use tec_k8s::api::TrustedExecutionCluster;
use tec_k8s::client::ServerClock;
use tec_k8s::server::ClusterView;
use tec_k8s::signal::Metric;
use tec_support::front::{Front, FrontArgs};
use tec_support::metrics::RequestMetrics;
use tec_support::serve::Shutdown;
use tec_support::{SystemClock, exit, front};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Polling interval of mounted files; the kubelet replaces them within a minute or so.
const POLL: Duration = Duration::from_secs(2);

/// The cluster object, and its changes.
pub type Changes = watch::Receiver<Option<Arc<TrustedExecutionCluster>>>;

/// A part of a server that runs until the program must stop.
pub type Endless = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Serves what `start` returns until a signal arrives or a part dies; ready once the cluster object is known
/// and the service is ready.
/// Errors: there is neither a service account nor a kubeconfig; those of [`front::run`].
pub async fn run<R: Fn() -> bool + Send + Sync + 'static, const N: usize>(
    (args, port): (&FrontArgs, u16),
    (style, metrics): (ReplyStyle, [Metric; 2]),
    start: impl FnOnce(Client, &str, Changes) -> (Router, R, [Endless; N]),
) -> anyhow::Result<u8> {
    let client = tec_k8s::client::connect().await.context(exit::NO_CLIENT)?;
    let namespace = args.namespace.clone();
    let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
    let (shutdown, signals) = Shutdown::on_signals()?;
    let clock = ServerClock::new(client.clone(), Arc::new(SystemClock));
    let view = Arc::new(ClusterView::default());
    let (service, ready, parts) = start(client.clone(), &namespace, view.subscribe());
    let mut tasks = JoinSet::new();
    for part in parts {
        tasks.spawn(shutdown.clone().until(part));
    }
    let (compared, stop) = (clock.clone(), shutdown.clone());
    tasks.spawn(async move { stop.until(compared.follow()).await });
    let (watched, stop) = (Arc::clone(&view), shutdown.clone());
    tasks.spawn(async move { stop.until(watched.follow(client, &namespace)).await });
    let [requests, seconds] = metrics.map(|metric| (metric.as_str(), metric.help()));
    let metrics = RequestMetrics::new(requests, seconds);
    let gate = Arc::new(move || clock.refusal());
    let served = Front { service, style, metrics, gate, also: None };
    let ready = Arc::new(move || view.is_synced() && ready());
    front::run(args, port, served, ready, (shutdown, signals), tasks).await
}

/// Composes now, and after each change of what `read` returns, forever.
pub async fn follow<S: PartialEq, E: Error + 'static>(
    mut changes: Changes,
    read: impl Fn(Option<&Arc<TrustedExecutionCluster>>) -> Result<S, E>,
    compose: impl Fn(&Result<S, String>),
) {
    let mut last = None;
    loop {
        let cluster = changes.borrow_and_update().clone();
        let setting = read(cluster.as_ref()).map_err(|error| chain(&error));
        if last.as_ref() != Some(&setting) {
            compose(&setting);
            last = Some(setting);
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(POLL) => {},
        }
    }
}
