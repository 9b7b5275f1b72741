//! `services-bootstrap`: parses the command line, composes, serves.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Parser as _;
use services::bootstrap::cli::{Action, Args};
use services::bootstrap::controller::{Controller, RoundError};
use services::bootstrap::disk::Volume;
use services::bootstrap::{compose, copy, export, guard, restore, show};
use tec_support::exit::CodedError;
use tec_support::serve::{Shutdown, Transport};
use tec_support::{exit, program, serve};
use tokio::task::JoinSet;

fn main() -> ExitCode {
    let Args { log, command } = Args::parse();
    exit::finish(program::run(&log, run(command)))
}

async fn run(action: Action) -> anyhow::Result<u8> {
    let (shutdown, signals) = Shutdown::on_signals()?;
    let mut tasks: JoinSet<anyhow::Result<u8>> = JoinSet::new();
    tasks.spawn(async {
        signals.await;
        Ok(exit::OK)
    });
    match action {
        Action::Password(args) => {
            tasks.spawn(async move {
                show::run(&args, &mut std::io::stdout()).await?;
                Ok(exit::OK)
            });
        }
        Action::Snapshots { snapshots, command } => {
            tasks.spawn_blocking(move || {
                let (mut from, mut to) = (std::io::stdin(), std::io::stdout());
                copy::run(&snapshots, &command, &mut from, &mut to)?;
                Ok(exit::OK)
            });
        }
        Action::Restore(args) => {
            tasks.spawn(async move {
                restore::run(&args).await?;
                Ok(exit::OK)
            });
        }
        Action::RunVault { volume, storage, certificate, command } => {
            let volume = Volume::new(volume);
            tasks.spawn(async move {
                guard::run(&command, &storage, &volume, certificate.as_ref(), shutdown).await?;
                Ok(exit::OK)
            });
        }
        Action::Serve(args) => {
            let controller = Arc::new(compose::controller(&args)?);
            if let Some(collector) = args.otlp.clone()
                && let Some(lines) = tec_support::export::lines()
            {
                let controller = Arc::clone(&controller);
                tasks.spawn(async move {
                    export::run(&controller, &collector, lines).await;
                    std::future::pending().await
                });
            }
            let listener = serve::bind(args.listen)?;
            let transport = Transport::Tls(controller.certificate.server_config());
            let router = controller.router().await?;
            let server = serve::serve(listener, transport, router, shutdown.clone());
            if let Some(address) = args.health_listen {
                let listener = serve::bind(address)?;
                let probes = controller.health.probes();
                let plain = Transport::DangerousPlain;
                let server = serve::serve(listener, plain, probes, shutdown.clone());
                tasks.spawn(async move { server.await.map(|()| exit::OK) });
            }
            tasks.spawn(async move { server.await.map(|()| exit::OK) });
            let snapshots = Arc::clone(&controller);
            tasks.spawn(async move {
                snapshots.keep_snapshots().await;
                std::future::pending().await
            });
            tasks.spawn(async move { keep(&controller, shutdown).await });
        }
    }
    // The first task to end, normally or with a defect, ends the program.
    match tasks.join_next().await {
        Some(ended) => ended.context("a task of the program ended unexpectedly")?,
        None => Ok(exit::OK),
    }
}

/// Runs rounds. In a state that needs manual intervention, the program exits with that state's code.
async fn keep(controller: &Controller, shutdown: Shutdown) -> anyhow::Result<u8> {
    match controller.keep(shutdown).await {
        Ok(()) => Ok(exit::OK),
        Err(RoundError::Fatal(fatal, detail)) => {
            let error = anyhow::Error::from(CodedError::caused(fatal.code(), detail, fatal));
            tracing::error!(code = %fatal.code(), error = %format!("{error:#}"), "a person has to look");
            Ok(fatal.exit_code())
        }
        Err(error) => Err(error.into()),
    }
}
