//! `services-broker`: parses the command line, connects, serves.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser as _;
use services::broker::cli::Args;
use services::broker::run;
use services::init::connect;
use services::init::connect::Mounted;
use tec_support::serve::Shutdown;
use tec_support::{SystemClock, exit, program};

fn main() -> ExitCode {
    let args = Args::parse();
    exit::finish(program::run(&args.log, run(&args)))
}

async fn run(args: &Args) -> anyhow::Result<u8> {
    if let Err(code) = connect::look(&args.way, Mounted::Authorities) {
        return Ok(code);
    }
    let (shutdown, signals) = Shutdown::on_signals()?;
    let broker = run::run(args, Arc::new(SystemClock), shutdown);
    tokio::select! {
        ended = broker => ended?,
        () = signals => {}
    }
    Ok(exit::OK)
}
