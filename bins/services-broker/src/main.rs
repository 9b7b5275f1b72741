//! `services-broker`: parses the command line, connects, serves.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser as _;
use services_broker::cli::Args;
use services_broker::run;
use services_init::connect;
use tec_support::SystemClock;
use tec_support::exit;
use tec_support::serve::Shutdown;

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
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(async {
            let (shutdown, signals) = Shutdown::on_signals()?;
            let broker = run::run(args, &authorities, Arc::new(SystemClock), shutdown);
            tokio::select! {
                ended = broker => ended?,
                () = signals => {}
            }
            Ok(exit::OK)
        })
}
