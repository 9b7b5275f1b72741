//! `operator`: parses the command line, composes, runs the controllers.

mod cli;

use std::future::ready;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use axum::routing::get;
use clap::Parser as _;
use kube::Client;
use operator::Maker;
use tec_core::port::{Clock, Entropy};
use tec_k8s::controller::{Operator, Parts};
use tec_operator::{FedTrust, Registries};
use tec_support::listen::{Limits, Server};
use tec_support::serve::{Shutdown, Transport, bind, probes, until_ended};
use tec_support::{SystemClock, SystemEntropy, exit, program};
use tokio::task::JoinSet;

use self::cli::Args;

fn main() -> ExitCode {
    let args = Args::parse();
    exit::finish(program::run(&args.log, run(&args)))
}

async fn run(args: &Args) -> anyhow::Result<u8> {
    let client = tec_k8s::client::connect().await.context(exit::NO_CLIENT)?;
    let operator = Operator::new(parts(args, client)?);
    let (shutdown, signals) = Shutdown::on_signals()?;
    let mut tasks: JoinSet<anyhow::Result<()>> = JoinSet::new();
    let listener = bind(args.metrics_addr)?;
    let address = listener.local_addr()?;
    let (metrics, health) = (operator.metrics(), operator.health());
    // Readiness does not depend on any Trustee.
    let router =
        probes(move || ready((!health.is_ready()).then_some("not everything was read yet")))
            .route("/metrics", get(async move || metrics.render()));
    let plain = Transport::DangerousPlain;
    let server = Server::new(plain, router).with_limits(Limits::probes());
    tasks.spawn(server.run(listener, shutdown.clone()));
    let mut stop = shutdown;
    tasks.spawn(async move {
        let ended = Box::pin(operator.run(stop.triggered())).await;
        ended.context("the controllers failed")
    });
    tracing::info!(%address, namespace = args.namespace, "started");
    until_ended(tasks, signals, "operator").await
}

fn parts(args: &Args, client: Client) -> anyhow::Result<Parts> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let entropy: Arc<dyn Entropy> = Arc::new(SystemEntropy);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let flags = args.registry.clone();
    let registries = Registries::new(move || flags.options(), Arc::clone(&provider));
    let trust = FedTrust::new(
        client.clone(),
        &args.namespace,
        args.pins.pins()?,
        Arc::clone(&clock),
        Arc::clone(&entropy),
        Arc::clone(&provider),
    )?
    .with_own_url(args.trustee_url.clone());
    Ok(Parts::new(
        client,
        args.namespace.clone(),
        args.identity.clone(),
        Arc::new(trust),
        Arc::new(registries.clone()),
        Arc::new(Maker),
        clock,
        entropy,
    )
    .with_tags(Arc::new(registries))
    .with_server_clock()
    .with_deploy(args.deploy(cli::images()?)?)
    .with_keys(args.disk_keys.generator()))
}
