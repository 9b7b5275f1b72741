//! `tec`: keys only for nodes that prove what they booted.

mod args;
mod attempt;
mod audit;
mod cli;
mod command;
mod consent;
mod image;
mod kube;
mod machine;
mod output;
mod place;
mod recovery;
mod reference;
mod serve;
mod settings;
mod state;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{ArgMatches, FromArgMatches as _};
use tec_support::exit::OK;

use crate::cli::{Cli, Command, PLUGIN, command};
use crate::output::Output;

/// Version with the git revision that it was built from, where that is known.
pub(crate) const VERSION: &str = match option_env!("TEC_REVISION") {
    Some(revision) => revision,
    None => env!("CARGO_PKG_VERSION"),
};

fn main() -> ExitCode {
    let name = std::env::args_os().next().map(PathBuf::from);
    let is_plugin = name.is_some_and(|name| name.file_stem().is_some_and(|stem| stem == PLUGIN));
    tec_support::exit::finish(start(is_plugin))
}

fn start(is_plugin: bool) -> anyhow::Result<u8> {
    let matches = command(is_plugin).get_matches();
    let on_cluster = is_plugin || parsed(&matches, is_plugin).anchor.access.is_given();
    if let Some(misplaced) = place::misplaced(&matches, on_cluster) {
        command(is_plugin).error(ErrorKind::ArgumentConflict, misplaced).exit();
    }
    let further = if on_cluster { Vec::new() } else { settings::further_words(&matches)? };
    let words = std::env::args_os().chain(further);
    let matches = command(is_plugin).get_matches_from(words);
    let printing = parsed(&matches, is_plugin).printing;
    tec_support::log::start(&printing.log, printing.log_form)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let output = Output::new(printing.output);
    runtime.block_on(async {
        loop {
            let cli = parsed(&matches, is_plugin);
            let is_watched = watch::is_wanted(&cli.command);
            let code = run(cli, (is_plugin, on_cluster), &output).await?;
            if !is_watched {
                return Ok(code);
            }
            tokio::time::sleep(watch::EVERY).await;
        }
    })
}

fn parsed(matches: &ArgMatches, is_plugin: bool) -> Cli {
    Cli::from_arg_matches(matches)
        .unwrap_or_else(|error| error.format(&mut command(is_plugin)).exit())
}

async fn run(
    cli: Cli,
    (is_plugin, on_cluster): (bool, bool),
    output: &Output,
) -> anyhow::Result<u8> {
    match cli.command {
        Command::Completion { shell } => {
            let (mut command, name) = (command(is_plugin), if is_plugin { PLUGIN } else { "tec" });
            clap_complete::generate(shell, &mut command, name, &mut std::io::stdout());
            return Ok(OK);
        }
        Command::Reference => {
            output::raw(&reference::markdown(command(is_plugin)))?;
            return Ok(OK);
        }
        _ => {}
    }
    if let Command::Explain(args) = &cli.command
        && let Some(explained) = command::explain_code(args, output)
    {
        return explained;
    }
    let (state_dir, access) = (&cli.anchor.state_dir, &cli.anchor.access);
    let access = on_cluster.then_some(access);
    match cli.command {
        Command::Serve(args) => serve::run(state_dir, *args).await,
        Command::Bootstrap(command) => command::bootstrap(state_dir, access, command, output).await,
        Command::Pcr(command) => command::pcr(state_dir, command, output).await,
        Command::Eventlog(command) => command::eventlog(command, output),
        Command::Node(command) => command::node(state_dir, command, output).await,
        Command::Trustee(command) => command::trustee(command, output),
        Command::Attest(args) => command::attest(*args, output).await,
        Command::Ticket(command) => command::ticket(command, output),
        Command::Backup(command) => command::backup(state_dir, command, output).await,
        Command::Migrate(command) => command::migrate(state_dir, command, output).await,
        command => match access {
            Some(access) => kube::run(access, command, output).await,
            None => on_directory(state_dir, command, output).await,
        },
    }
}

/// What a state directory and a cluster both answer, asked of a state directory.
async fn on_directory(
    state_dir: &std::path::Path,
    command: Command,
    output: &Output,
) -> anyhow::Result<u8> {
    match command {
        Command::Status(_) => command::status(state_dir, output).await,
        Command::Explain(args) => command::explain(state_dir, args, output).await,
        Command::Machine(command) => command::machine(state_dir, command, output).await,
        Command::Ak(command) => command::ak(state_dir, command, output).await,
        Command::Audit(command) => command::audit(state_dir, command, output).await,
        Command::Image(command) => command::image(state_dir, command, output).await,
        Command::Ignition(command) => command::ignition(state_dir, command, output).await,
        // `place::misplaced` refuses what needs a cluster; `run` does the rest.
        _ => anyhow::bail!("this command needs a Kubernetes cluster"),
    }
}
