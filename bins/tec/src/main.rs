//! `tec`: keys only for nodes that prove what they booted.

mod args;
mod attempt;
mod audit;
mod cli;
mod command;
mod image;
mod kube;
mod machine;
mod output;
mod recovery;
mod reference;
mod serve;
mod settings;
mod state;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use crate::cli::{Cli, Command};
use crate::kube::cli::Plugin;
use crate::output::Output;

/// Version with the git revision that it was built from, where that is known.
pub(crate) const VERSION: &str = match option_env!("TEC_REVISION") {
    Some(revision) => revision,
    None => env!("CARGO_PKG_VERSION"),
};

/// Name under which kubectl finds the program.
const PLUGIN: &str = "kubectl-tec";

fn main() -> ExitCode {
    let name = std::env::args_os().next().map(PathBuf::from);
    let is_plugin = name.is_some_and(|name| name.file_stem().is_some_and(|stem| stem == PLUGIN));
    tec_support::exit::finish(if is_plugin {
        run_plugin(Plugin::parse())
    } else {
        command_line().and_then(run)
    })
}

/// Reads the command line, with the settings of the state directory.
fn command_line() -> anyhow::Result<Cli> {
    let further = settings::further_words(&Cli::command().get_matches())?;
    Ok(Cli::parse_from(std::env::args_os().chain(further)))
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}

/// `kubectl tec`.
fn run_plugin(plugin: Plugin) -> anyhow::Result<u8> {
    tec_support::log::start(&plugin.printing.log, plugin.printing.log_form)?;
    let output = Output::new(plugin.printing.output);
    runtime()?.block_on(kube::run(plugin.kube, output))
}

fn run(cli: Cli) -> anyhow::Result<u8> {
    tec_support::log::start(&cli.printing.log, cli.printing.log_form)?;
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
    let output = Output::new(cli.printing.output);
    runtime()?.block_on(async {
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
            Command::Bootstrap(command) => {
                command::bootstrap(&cli.state_dir, command, output).await
            }
            Command::Init(args) => command::member::init(*args, output).await,
            Command::Join(args) => command::member::join(args, output).await,
            Command::Recover(args) => command::member::recover(*args, output).await,
            Command::Verify(args) => command::member::verify(*args, output).await,
            Command::Ticket(command) => command::ticket(command, output),
            Command::Backup(command) => command::backup(&cli.state_dir, command, output).await,
            Command::Restore(args) => command::restore(&cli.state_dir, args, output).await,
            Command::Migrate(command) => command::migrate(&cli.state_dir, command, output).await,
            Command::Status => command::status(&cli.state_dir, output).await,
            Command::Node(command) => command::node(&cli.state_dir, command, output).await,
            Command::Kube(args) => kube::run(args, output).await,
            Command::Completion { .. } | Command::Reference => Ok(tec_support::exit::OK),
        }
    })
}
