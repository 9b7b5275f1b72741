//! `bootstrapper`: parses the command line, and runs.

mod cli;

use std::io::Write as _;
use std::process::ExitCode;

use bootstrapper::instance::finding::coded;
use bootstrapper::instance::node::Attestation;
use bootstrapper::instance::prepare::Erase;
use bootstrapper::instance::settings::Settings;
use bootstrapper::instance::{prepare, recover, run};
use clap::Parser as _;
use tec_support::program::Settings as _;
use tec_support::{exit, program};

use self::cli::{Args, Command};

fn main() -> ExitCode {
    let args = Args::parse();
    exit::finish(program::run(&args.log, start(&args)))
}

async fn start(args: &Args) -> anyhow::Result<u8> {
    let settings = Settings::read(&args.config)?;
    let stop = program::stopped()?;
    match args.command {
        Command::Run => run::run(&settings, stop).await.map_err(coded),
        Command::Prepare { dangerous_erase } => {
            let erase = if dangerous_erase { Erase::Everything } else { Erase::Nothing };
            prepare::run(&settings, erase, stop).await.map_err(coded)
        }
        Command::Recover => recover::run(&settings, stop).await.map_err(coded),
        Command::Key => {
            let attestation = Attestation::open(&settings.tpm)?;
            writeln!(std::io::stdout(), "{}", attestation.ak)?;
            Ok(exit::OK)
        }
        Command::EndorsementKey => {
            let offer = Attestation::open(&settings.tpm)?.endorser.offer().await?;
            writeln!(std::io::stdout(), "{}", offer.ek.public.fingerprint())?;
            Ok(exit::OK)
        }
    }
}
