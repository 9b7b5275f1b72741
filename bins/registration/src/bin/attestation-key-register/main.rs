//! `attestation-key-register`: registers the attestation keys of nodes.
//!
//! ```text
//!   watches of cluster, machines, keys ─► what is known ─┐
//!   PUT /register-ak ─► the cluster's policy decides ────┴─► one AttestationKey object
//! ```
//! It may submit keys but not bind them; the operator does that. It is stateless: any number of replicas can
//! run, and with a shared key any of them accepts the answer to a challenge.

mod cli;
mod compose;
mod setting;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use axum::extract::Request;
use clap::Parser as _;
use kube::Client;
use tec_core::http::ReplyStyle;
use tec_k8s::client::ServerClock;
use tec_k8s::server::{ClusterView, Known};
use tec_k8s::signal::Metric;
use tec_support::front::Front;
use tec_support::metrics::RequestMetrics;
use tec_support::serve::Shutdown;
use tec_support::{SystemClock, exit, front, program};
use tokio::task::JoinSet;

use crate::cli::Args;
use crate::compose::Composer;

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
    let (shutdown, signals) = Shutdown::on_signals()?;
    let view = Arc::new(ClusterView::default());
    let known = Arc::new(Known::default());
    let composer = Composer::new(client.clone(), &namespace, Arc::clone(&known), args.files());
    let composer = Arc::new(composer);
    let server_clock = ServerClock::new(client.clone(), Arc::new(SystemClock));
    let mut tasks = JoinSet::new();
    let (compared, stop) = (server_clock.clone(), shutdown.clone());
    tasks.spawn(async move { stop.until(compared.follow()).await });
    follow(&mut tasks, &shutdown, &client, &namespace, &view, &known);
    let (composed, changes, stop) = (Arc::clone(&composer), view.subscribe(), shutdown.clone());
    tasks.spawn(async move { stop.until(composed.follow(changes)).await });

    let respond = move |request: Request| {
        let composer = Arc::clone(&composer);
        async move { composer.respond(request).await }
    };
    let name = |metric: Metric| (metric.as_str(), metric.help());
    let served = Front {
        service: Router::new().fallback(respond),
        style: ReplyStyle::AttestationKey,
        metrics: RequestMetrics::new(name(Metric::KeyRequests), name(Metric::KeySeconds)),
        gate: Arc::new(move || server_clock.refusal()),
        also: None,
    };
    let ready = Arc::new(move || view.is_synced() && known.is_synced());
    front::run(&args.front, args.port, served, ready, (shutdown, signals), tasks).await
}

/// The three watches.
fn follow(
    tasks: &mut JoinSet<anyhow::Result<()>>,
    shutdown: &Shutdown,
    client: &Client,
    namespace: &str,
    view: &Arc<ClusterView>,
    known: &Arc<Known>,
) {
    let each = || (client.clone(), namespace.to_owned(), shutdown.clone());
    let (client, namespace, stop) = each();
    let view = Arc::clone(view);
    tasks.spawn(async move { stop.until(view.follow(client, &namespace)).await });
    let (client, namespace, stop) = each();
    let machines = Arc::clone(known);
    tasks.spawn(async move { stop.until(machines.follow_machines(client, &namespace)).await });
    let (client, namespace, stop) = each();
    let keys = Arc::clone(known);
    tasks.spawn(async move { stop.until(keys.follow_keys(client, &namespace)).await });
}
