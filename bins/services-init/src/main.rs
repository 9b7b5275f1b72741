//! `services-init`: parses the command line, asks, writes, ends.

use std::process::ExitCode;

use clap::Parser as _;
use services_init::cli::Args;
use services_init::connect;
use services_init::run;
use tec_support::exit;

fn main() -> ExitCode {
    let args = Args::parse();
    exit::finish(start(&args))
}

fn start(args: &Args) -> anyhow::Result<u8> {
    tec_support::log::start(&args.log, args.log_form)?;
    let authorities = match connect::authorities(&args.ca) {
        Ok(authorities) => authorities,
        Err(fatal) => {
            let (code, file) = (fatal.code(), args.ca.display());
            tracing::error!(%code, %file, error = %fatal, "a person has to look");
            return Ok(fatal.exit_code());
        }
    };
    // Fails only when a provider is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(run::run(args, &authorities))?;
    Ok(exit::OK)
}
