//! `join-service`: parses the command line, composes, serves.

use std::process::ExitCode;

use anyhow::Context as _;
use bootstrapper::admission::cli::Args;
use bootstrapper::admission::compose;
use bootstrapper::admission::compose::Followed;
use bootstrapper::admission::settings::Settings;
use bootstrapper::node::Attestation;
use bootstrapper::transport;
use bootstrapper::transport::Bounds;
use clap::Parser as _;
use kube::Client;
use tec_k8s::rpc::generated::join::api_server::ApiServer;
use tec_support::program::Settings as _;
use tec_support::{exit, program};
use tokio::net::TcpListener;
use tokio::sync::watch;

fn main() -> ExitCode {
    let args = Args::parse();
    exit::finish(program::run(&args.log, run(&args)))
}

async fn run(args: &Args) -> anyhow::Result<u8> {
    let settings = &Settings::read(&args.config)?;
    let stopped = program::stopped()?;
    let client = Client::try_default().await.context("find the API server")?;
    let attestation = Attestation::open(&settings.tpm)?;
    let (service, keys) = compose::service(settings, client, &attestation).await?;
    let followed = Followed::open(settings.nodes.measurements.as_deref())?;
    let endpoint = compose::server(settings, attestation, followed.live())?;
    let listener = TcpListener::bind(settings.listen).await;
    let listener = listener.with_context(|| format!("listen on {}", settings.listen))?;
    tracing::info!(address = %listener.local_addr()?, "tickets are served");
    let (sender, stop) = watch::channel(false);
    let server = ApiServer::new(service);
    let serving = transport::serve(endpoint, listener, server, Bounds::SMALL, stop);
    let ending = async {
        tokio::select! {
            () = stopped => {}
            () = followed.follow() => {}
            () = compose::keep(&*keys) => {}
        }
        let _ = sender.send(true);
    };
    tokio::join!(serving, ending);
    Ok(exit::OK)
}
