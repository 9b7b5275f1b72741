//! `services-init`: parses the command line, asks, writes, ends.

use std::process::ExitCode;

use clap::Parser as _;
use services_init::cli::Args;
use services_init::connect;
use services_init::run;
use tec_support::SystemClock;
use tec_support::exit;
use tec_support::program;

fn main() -> ExitCode {
    let args = Args::parse();
    exit::finish(program::run(&args.log, run(&args)))
}

async fn run(args: &Args) -> anyhow::Result<u8> {
    let authorities = match connect::mounted(&args.way) {
        Ok(authorities) => authorities,
        Err(code) => return Ok(code),
    };
    if args.keep {
        run::keep(args, &authorities, args.reload.as_deref(), &SystemClock).await?;
    } else {
        run::run(args, &authorities).await?;
    }
    Ok(exit::OK)
}
