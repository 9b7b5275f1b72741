//! `join-service`: parses the command line, composes, serves.

use std::process::ExitCode;

use anyhow::Context as _;
use bootstrapper::transport;
use clap::Parser as _;
use join_service::cli::Args;
use join_service::compose;
use join_service::compose::Followed;
use join_service::settings::Settings;
use kube::Client;
use tec_k8s::rpc::generated::join::api_server::ApiServer;
use tec_support::exit;
use tokio::net::TcpListener;
use tokio::signal::unix::SignalKind;
use tokio::signal::unix::signal;
use tokio::sync::watch;

fn main() -> ExitCode {
    exit::finish(start(&Args::parse()))
}

fn start(args: &Args) -> anyhow::Result<u8> {
    tec_support::log::start(&args.log, args.log_form)?;
    // Fails only when a provider is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let settings = Settings::read(&args.config)?;
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(run(&settings))
}

async fn run(settings: &Settings) -> anyhow::Result<u8> {
    let mut term = signal(SignalKind::terminate()).context("install the SIGTERM handler")?;
    let mut int = signal(SignalKind::interrupt()).context("install the SIGINT handler")?;
    let client = Client::try_default().await.context("find the API server")?;
    let service = compose::service(settings, client).await?;
    let followed = Followed::open(settings.nodes.measurements.as_deref())?;
    let endpoint = compose::server(settings, followed.live())?;
    let listener = TcpListener::bind(settings.listen).await;
    let listener = listener.with_context(|| format!("listen on {}", settings.listen))?;
    tracing::info!(address = %listener.local_addr()?, "tickets are served");
    let (sender, stop) = watch::channel(false);
    let serving = transport::serve(endpoint, listener, ApiServer::new(service), stop);
    let ending = async {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
            () = followed.follow() => {}
        }
        let _ = sender.send(true);
    };
    tokio::join!(serving, ending);
    Ok(exit::OK)
}
