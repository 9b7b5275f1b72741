//! `register-server`: serves the Ignition config of a node's first boot, and registers its machine.
//!
//! ```text
//!   watch of the cluster object ─┐
//!   mounted CAs, token ──────────┴─► RegisterService, or the reason why there is none
//!   GET /ignition-clevis-pin-trustee ─► that service ─► one Machine object
//! ```
//! It is stateless, so any number of replicas can run.

mod cli;
mod compose;
mod slot;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use axum::extract::Request;
use clap::Parser as _;
use tec_core::http::ReplyStyle;
use tec_k8s::client::{KubeRegistry, ServerClock};
use tec_k8s::server::ClusterView;
use tec_k8s::signal::Metric;
use tec_support::front::Front;
use tec_support::metrics::RequestMetrics;
use tec_support::serve::Shutdown;
use tec_support::{SystemClock, exit, front, program};
use tokio::task::JoinSet;

use crate::cli::Args;
use crate::compose::Composer;
use crate::slot::Slot;

fn main() -> ExitCode {
    let args = Args::parse();
    exit::finish(program::run(&args.front.log, run(&args)))
}

async fn run(args: &Args) -> anyhow::Result<u8> {
    let client = tec_k8s::client::connect().await.context(
        "cannot create a Kubernetes client: found neither a service account nor a usable \
         kubeconfig",
    )?;
    let namespace = args.front.namespace.clone();
    let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
    let registry = KubeRegistry::new(client.clone(), &namespace, Arc::new(SystemClock));
    let server_clock = ServerClock::new(client.clone(), Arc::new(SystemClock));
    let (shutdown, signals) = Shutdown::on_signals()?;
    let mut tasks = JoinSet::new();
    let (compared, stop) = (server_clock.clone(), shutdown.clone());
    tasks.spawn(async move { stop.until(compared.follow()).await });
    let view = Arc::new(ClusterView::default());
    let slot = Arc::new(Slot::default());
    let composer = Composer::new(registry, args.files(), Arc::clone(&slot));
    let (changes, stop) = (view.subscribe(), shutdown.clone());
    tasks.spawn(async move { stop.until(composer.follow(changes)).await });
    let (watched, stop) = (Arc::clone(&view), shutdown.clone());
    tasks.spawn(async move { stop.until(watched.follow(client, &namespace)).await });

    let respond = move |request: Request| {
        let slot = Arc::clone(&slot);
        async move { slot.respond(request).await }
    };
    let name = |metric: Metric| (metric.as_str(), metric.help());
    let served = Front {
        service: Router::new().fallback(respond),
        style: ReplyStyle::Registration,
        metrics: RequestMetrics::new(name(Metric::RegisterRequests), name(Metric::RegisterSeconds)),
        gate: Arc::new(move || server_clock.refusal()),
        also: None,
    };
    let ready = Arc::new(move || view.is_synced());
    front::run(&args.front, args.port, served, ready, (shutdown, signals), tasks).await
}
