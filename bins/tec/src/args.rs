//! Flags shared by several commands.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tec_support::log::LogForm;

/// What goes to stdout and stderr, and how.
#[derive(Debug, Args)]
pub(crate) struct Printing {
    /// Output format: table, wide, json, yaml, name.
    #[arg(
        long,
        short,
        env = "TEC_OUTPUT",
        hide_env = true,
        value_enum,
        value_name = "FORMAT",
        global = true
    )]
    #[arg(default_value_t = OutputForm::Table, hide_possible_values = true)]
    pub(crate) output: OutputForm,
    /// Log level on stderr, such as info or tec=debug.
    #[arg(
        long,
        env = "TEC_LOG",
        hide_env = true,
        default_value = "info",
        value_name = "LEVEL",
        global = true
    )]
    pub(crate) log: String,
    /// Log format: text, json.
    #[arg(
        long,
        env = "TEC_LOG_FORM",
        hide_env = true,
        value_enum,
        value_name = "FORMAT",
        global = true
    )]
    #[arg(default_value_t = LogForm::Text, hide_possible_values = true)]
    pub(crate) log_form: LogForm,
}

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputForm {
    Table,
    /// A table with all columns.
    Wide,
    Json,
    Yaml,
    /// The first column of a table, without a header.
    Name,
}

/// The trust anchor a command works on.
#[derive(Clone, Debug, Args)]
pub(crate) struct AnchorArgs {
    /// State directory of `tec serve`.
    #[arg(
        long,
        env = "TEC_STATE_DIR",
        hide_env = true,
        default_value = "/var/lib/tec",
        value_name = "DIR"
    )]
    #[arg(global = true)]
    pub(crate) state_dir: PathBuf,
    #[command(flatten)]
    pub(crate) access: Access,
}

/// A namespace of a Kubernetes cluster, selected as with kubectl.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Access {
    /// Work on a Kubernetes cluster, in this namespace.
    #[arg(long, short, global = true)]
    pub(crate) namespace: Option<String>,
    /// Work on a Kubernetes cluster, through this context of the kubeconfig.
    #[arg(long, global = true)]
    pub(crate) context: Option<String>,
    /// Work on a Kubernetes cluster, with this kubeconfig.
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) kubeconfig: Option<PathBuf>,
}

impl Access {
    /// Whether any of the flags is given.
    pub(crate) fn is_given(&self) -> bool {
        self.namespace.is_some() || self.context.is_some() || self.kubeconfig.is_some()
    }
}

/// A machine.
#[derive(Clone, Debug, Args)]
pub(crate) struct MachineRef {
    /// ID or name of the machine, or the first digits of its ID.
    pub(crate) machine: String,
}

/// Limits a list to one machine.
#[derive(Clone, Debug, Args)]
pub(crate) struct MachineFilter {
    /// Only entries of this machine: its ID, the first digits of its ID, or its name.
    #[arg(long)]
    pub(crate) machine: Option<String>,
}

/// For commands that write.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct DryRun {
    /// Print what would happen, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// For commands whose effect cannot be undone.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Consent {
    /// Do not ask for confirmation.
    #[arg(long, short)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

/// How the status is shown.
#[derive(Clone, Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) watch: Watch,
    /// Write a self-contained HTML page to this file instead of printing.
    #[arg(long, value_name = "FILE", conflicts_with = "watch")]
    pub(crate) html: Option<std::path::PathBuf>,
}

/// For commands that can be repeated.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Watch {
    /// Print again when something changes, until interrupted.
    #[arg(long, short)]
    pub(crate) watch: bool,
}
