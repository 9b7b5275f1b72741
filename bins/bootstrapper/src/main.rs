//! `bootstrapper`: parses the command line, and runs.

use std::io::Write as _;
use std::process::ExitCode;

use bootstrapper::cli::Args;
use bootstrapper::cli::Command;
use bootstrapper::node::Attestation;
use bootstrapper::recover;
use bootstrapper::run;
use bootstrapper::settings::Settings;
use clap::Parser as _;
use tec_support::exit;
use tokio::signal::unix::SignalKind;
use tokio::signal::unix::signal;

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
        .block_on(async {
            let (mut term, mut int) = (
                signal(SignalKind::terminate())?,
                signal(SignalKind::interrupt())?,
            );
            let stop = async move {
                tokio::select! {
                    _ = term.recv() => {}
                    _ = int.recv() => {}
                }
            };
            match args.command {
                Command::Run => run::run(&settings, stop).await,
                Command::Recover => recover::run(&settings, stop).await,
                Command::Key => {
                    let attestation = Attestation::open(&settings.tpm)?;
                    writeln!(std::io::stdout(), "{}", attestation.ak)?;
                    Ok(exit::OK)
                }
            }
        })
}
