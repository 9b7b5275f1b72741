//! `join-service`: parses the command line, composes, serves.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use bootstrapper::admission::compose;
use bootstrapper::admission::live::LiveService;
use bootstrapper::admission::settings::Settings;
use bootstrapper::instance::node::Attestation;
use bootstrapper::instance::transport;
use bootstrapper::instance::transport::Bounds;
use clap::Parser;
use kube::Client;
use tec_support::program::{LogArgs, Settings as _};
use tec_support::{exit, program};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Admits attested nodes to a cluster, and approves serving certificates of their kubelets.
#[derive(Debug, Parser)]
#[command(name = "join-service", version)]
struct Args {
    /// Settings file, TOML
    #[arg(long, env = "TEC_JOIN_SERVICE_CONFIG", default_value = "/etc/tec/join-service.toml")]
    config: PathBuf,
    /// The log.
    #[command(flatten)]
    log: LogArgs,
}

fn main() -> ExitCode {
    let args = Args::parse();
    exit::finish(program::run(&args.log, run(&args)))
}

async fn run(args: &Args) -> anyhow::Result<u8> {
    let settings = &Settings::read(&args.config)?;
    let stopped = program::stopped()?;
    let client = Client::try_default().await.context(exit::NO_CLIENT)?;
    let attestation = Attestation::open(&settings.tpm)?;
    let compose::Parts { ports, renewals } = compose::parts(settings, client, &attestation).await?;
    let keys = Arc::clone(&ports.keys);
    let service = LiveService::open(&args.config, ports, attestation)?;
    let listener = TcpListener::bind(settings.listen).await;
    let listener = listener.with_context(|| format!("cannot listen on {}", settings.listen))?;
    tracing::info!(address = %listener.local_addr()?, "tickets are served");
    let (sender, stop) = watch::channel(false);
    let serving = transport::serve(listener, || service.current(), Bounds::SMALL, stop);
    let ending = async {
        tokio::select! {
            () = stopped => {}
            () = service.follow() => {}
            () = compose::keep(&*keys) => {}
            () = renewals.run() => {}
        }
        let _ = sender.send(true);
    };
    tokio::join!(serving, ending);
    Ok(exit::OK)
}
