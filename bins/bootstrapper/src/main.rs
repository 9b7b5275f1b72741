//! `bootstrapper`: parses the command line, and runs.

use std::io::Write as _;
use std::process::ExitCode;

use bootstrapper::cli::{Args, Command};
use bootstrapper::node::Attestation;
use bootstrapper::settings::Settings;
use bootstrapper::{recover, run};
use clap::Parser as _;
use tec_support::program::Settings as _;
use tec_support::{exit, program};

fn main() -> ExitCode {
    let args = Args::parse();
    exit::finish(program::run(&args.log, start(&args)))
}

async fn start(args: &Args) -> anyhow::Result<u8> {
    let settings = Settings::read(&args.config)?;
    let stop = program::stopped()?;
    match args.command {
        Command::Run => run::run(&settings, stop).await,
        Command::Recover => recover::run(&settings, stop).await,
        Command::Key => {
            let attestation = Attestation::open(&settings.tpm)?;
            writeln!(std::io::stdout(), "{}", attestation.ak)?;
            Ok(exit::OK)
        }
    }
}
