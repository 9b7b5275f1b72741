//! `services-init`: parses the command line, asks, writes, ends.

use std::process::ExitCode;

use clap::Parser as _;
use services_init::cli::Args;
use services_init::connect::Mounted;
use services_init::{connect, run};
use tec_support::{SystemClock, exit, program};

fn main() -> ExitCode {
    let args = Args::parse();
    exit::finish(program::run(&args.log, run(&args)))
}

async fn run(args: &Args) -> anyhow::Result<u8> {
    if let Err(code) = connect::look(&args.way, Mounted::Secret) {
        return Ok(code);
    }
    if args.keep {
        run::keep(args, args.reload.as_deref(), &SystemClock).await?;
    } else {
        run::run(args).await?;
    }
    Ok(exit::OK)
}
