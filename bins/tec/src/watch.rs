//! `--watch`: runs the same command repeatedly, and prints the result when it changes.

use std::time::Duration;

use crate::ak::AkCommand;
use crate::cli::Command;
use crate::image::ImageCommand;
use crate::machine::MachineCommand;

/// Interval between runs.
pub(crate) const EVERY: Duration = Duration::from_secs(2);

/// Whether the command should be repeated.
pub(crate) fn is_wanted(command: &Command) -> bool {
    match command {
        Command::Status(status) => status.watch.watch,
        Command::Machine(MachineCommand::List(watch))
        | Command::Image(ImageCommand::List(watch))
        | Command::Ak(AkCommand::List { watch, .. }) => watch.watch,
        _ => false,
    }
}
