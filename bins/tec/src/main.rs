//! `tec`: releases keys only to nodes that prove what they booted.

mod ak;
mod anchor;
mod args;
mod attempt;
mod audit;
mod cli;
mod command;
mod consent;
mod dispatch;
mod ignition;
mod image;
mod key;
mod known;
mod kube;
mod machine;
mod output;
mod page;
mod place;
mod platform;
mod recovery;
mod serve;
mod settings;
mod state;
mod status;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{ArgMatches, FromArgMatches as _};

use crate::cli::{Cli, PLUGIN, command};
use crate::output::Output;

/// Version; that of a release is followed by its commit.
pub(crate) const VERSION: &str = match option_env!("TEC_VERSION") {
    Some(version) => version,
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
            let code = dispatch::run(cli, (is_plugin, on_cluster), &output).await?;
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
