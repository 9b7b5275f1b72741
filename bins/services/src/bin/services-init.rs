//! `services-init`: parses the command line, asks, writes, exits.

use std::process::ExitCode;

use clap::Parser as _;
use services::init::cli::Args;
use services::init::connect::Mounted;
use services::init::heal::Store;
use services::init::{connect, run};
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
        let store = Store::of(args);
        let heal = async {
            match &store {
                Some(store) => store.keep().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            kept = run::keep(args, args.reload.as_deref(), &SystemClock) => kept?,
            () = heal => {}
        }
    } else {
        run::run(args).await?;
    }
    Ok(exit::OK)
}
