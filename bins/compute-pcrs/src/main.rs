//! `compute-pcrs`: predicts the PCR values of an image's boot from its files.
//!
//! Accepts the command line of the program of the same name that labels images today, and prints the same
//! JSON on stdout. Exit code 0, or 1 with the reason on stderr. As a Job it runs twice: the step that reads
//! the image has no token for the cluster, and the step that writes the values to the status of an
//! ApprovedImage does not read the image.

mod cli;
mod compute;
mod job;
mod publish;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;
use tec_support::exit;

use crate::cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|error| {
        job::last_words(&error.to_string());
        error.exit()
    });
    exit::finish(run(&cli))
}

fn run(cli: &Cli) -> anyhow::Result<u8> {
    tec_support::log::start(cli.log_filter(), cli.log_form)?;
    let printed = match &cli.command {
        Command::Job(args) => return job::told(job::run(args)),
        Command::Publish(args) => return job::told(publish::run(args)),
        Command::Compute(register) => compute::run(register)?,
    };
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{printed}")?;
    stdout.flush()?;
    Ok(exit::OK)
}
