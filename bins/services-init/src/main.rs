//! `services-init`: parses the command line, asks, writes, ends.

use std::process::ExitCode;

use clap::Parser as _;
use services_init::cli::Args;
use services_init::connect;
use services_init::run;
use tec_support::SystemClock;
use tec_support::exit;

fn main() -> ExitCode {
    let args = Args::parse();
    exit::finish(start(&args))
}

fn start(args: &Args) -> anyhow::Result<u8> {
    tec_support::log::start(&args.log, args.log_form)?;
    let authorities = match connect::mounted(&args.way) {
        Ok(authorities) => authorities,
        Err(code) => return Ok(code),
    };
    // Fails only when a provider is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(async {
            if args.keep {
                run::keep(args, &authorities, args.reload.as_deref(), &SystemClock).await
            } else {
                run::run(args, &authorities).await
            }
        })?;
    Ok(exit::OK)
}
