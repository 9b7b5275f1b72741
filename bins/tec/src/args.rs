//! Flags that commands share.

use clap::{Args, ValueEnum};
use tec_core::id::MachineId;
use tec_support::log::LogForm;

/// What goes to stdout and stderr, and how.
#[derive(Debug, Args)]
pub(crate) struct Printing {
    /// Form of what is printed on stdout.
    #[arg(long, short, env = "TEC_OUTPUT", value_enum, default_value_t = OutputForm::Text, global = true)]
    pub(crate) output: OutputForm,
    /// Which log lines go to stderr, for example `info` or `tec=debug`.
    #[arg(long, env = "TEC_LOG", default_value = "info", global = true)]
    pub(crate) log: String,
    /// Form of the log lines.
    #[arg(long, env = "TEC_LOG_FORM", value_enum, default_value_t = LogForm::Text, global = true)]
    pub(crate) log_form: LogForm,
}

/// Form of what is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputForm {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// Limits a list to one machine of a store.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct OfMachine {
    /// Only those of this machine
    #[arg(long)]
    pub(crate) machine: Option<MachineId>,
}

/// Selects attempts to attest, by a filter for the machine.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct AttemptArgs<F: Args> {
    #[command(flatten)]
    pub(crate) of: F,
    /// Maximum number of attempts
    #[arg(long, default_value_t = 100)]
    pub(crate) limit: usize,
}

/// For commands that write.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct DryRun {
    /// Say what would happen, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
}
