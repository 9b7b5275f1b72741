//! `tec`: keys only for nodes that prove what they booted.

mod cli;
mod command;
mod output;
mod reference;
mod serve;
mod state;

use std::process::ExitCode;

use clap::CommandFactory as _;
use clap::Parser as _;

use crate::cli::Cli;
use crate::cli::Command;
use crate::output::Output;

/// Version with the git revision that it was built from, where that is known.
pub(crate) const VERSION: &str = match option_env!("TEC_REVISION") {
    Some(revision) => revision,
    None => env!("CARGO_PKG_VERSION"),
};

fn main() -> ExitCode {
    let cli = Cli::parse();
    tec_support::exit::finish(run(cli))
}

fn run(cli: Cli) -> anyhow::Result<u8> {
    tec_support::log::start(&cli.log, cli.log_form)?;
    match cli.command {
        Command::Completion { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "tec", &mut std::io::stdout());
            return Ok(tec_support::exit::OK);
        }
        Command::Reference => {
            output::raw(&reference::markdown(Cli::command()))?;
            return Ok(tec_support::exit::OK);
        }
        _ => {}
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let output = Output::new(cli.output);
    runtime.block_on(async {
        match cli.command {
            Command::Serve(args) => serve::run(&cli.state_dir, *args).await,
            Command::Machine(command) => command::machine(&cli.state_dir, command, output).await,
            Command::Ak(command) => command::ak(&cli.state_dir, command, output).await,
            Command::Image(command) => command::image(&cli.state_dir, command, output).await,
            Command::Pcr(command) => command::pcr(&cli.state_dir, command, output).await,
            Command::Eventlog(command) => command::eventlog(command, output),
            Command::Ignition(command) => command::ignition(&cli.state_dir, command, output).await,
            Command::Trustee(command) => command::trustee(command, output),
            Command::Attest(args) => command::attest(*args, output).await,
            Command::Explain(args) => command::explain(&cli.state_dir, args, output).await,
            Command::Audit(command) => command::audit(&cli.state_dir, command, output).await,
            Command::Status => command::status(&cli.state_dir, output).await,
            Command::Node(command) => command::node(command, output),
            Command::Completion { .. } | Command::Reference => Ok(tec_support::exit::OK),
        }
    })
}
