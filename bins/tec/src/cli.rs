//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::args::Printing;
use crate::command::ak::AkCommand;
use crate::command::attest::AttestArgs;
use crate::command::audit::AuditCommand;
use crate::command::backup::{BackupCommand, RestoreArgs};
use crate::command::bootstrap::BootstrapCommand;
use crate::command::eventlog::EventlogCommand;
use crate::command::explain::ExplainArgs;
use crate::command::ignition::IgnitionCommand;
use crate::command::image::ImageCommand;
use crate::command::machine::MachineCommand;
use crate::command::member::{InitArgs, JoinArgs, RecoverArgs, VerifyArgs};
use crate::command::migrate::MigrateCommand;
use crate::command::node::NodeCommand;
use crate::command::pcr::PcrCommand;
use crate::command::ticket::TicketCommand;
use crate::command::trustee::TrusteeCommand;
use crate::kube::cli::KubeArgs;
use crate::serve::args::ServeArgs;

/// Keys only for nodes that prove what they booted.
#[derive(Debug, Parser)]
#[command(name = "tec", version = crate::VERSION, propagate_version = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// Directory with the store, the seal key and the built-in CA.
    #[arg(long, env = "TEC_STATE_DIR", default_value = "/var/lib/tec", global = true)]
    pub(crate) state_dir: PathBuf,
    #[command(flatten)]
    pub(crate) printing: Printing,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run registration, attestation-key registration and key broker in one process.
    Serve(Box<ServeArgs>),
    /// The registered machines.
    #[command(subcommand)]
    Machine(MachineCommand),
    /// The attestation keys.
    #[command(subcommand)]
    Ak(AkCommand),
    /// The approved images.
    #[command(subcommand)]
    Image(ImageCommand),
    /// PCR values: compute, combine, identify, compare.
    #[command(subcommand)]
    Pcr(PcrCommand),
    /// Event logs: show, replay, verify, compare.
    #[command(subcommand)]
    Eventlog(EventlogCommand),
    /// What the next boot of a node will measure.
    #[command(subcommand)]
    Node(NodeCommand),
    /// Ignition configs for installers and nodes.
    #[command(subcommand)]
    Ignition(IgnitionCommand),
    /// Configuration, policies and token signer of a Trustee.
    #[command(subcommand)]
    Trustee(TrusteeCommand),
    /// Attest to a key broker by hand, and show what it found, or fetch a resource.
    Attest(Box<AttestArgs>),
    /// Say why a machine got its key, or did not.
    Explain(ExplainArgs),
    /// The audit log.
    #[command(subcommand)]
    Audit(AuditCommand),
    /// Set a trust anchor up for a cluster that does not exist yet, and look at it as a node does.
    #[command(subcommand)]
    Bootstrap(BootstrapCommand),
    /// Make the first node of a cluster, once it has proved itself.
    Init(Box<InitArgs>),
    /// On a node: join the cluster whose join services the platform names.
    Join(JoinArgs),
    /// Open the disks of nodes that booted again, where their cluster cannot.
    Recover(Box<RecoverArgs>),
    /// Look at what a node proves, check by check.
    Verify(Box<VerifyArgs>),
    /// What an admin signs for nodes of a cluster.
    #[command(subcommand)]
    Ticket(TicketCommand),
    /// Back the trust of this anchor up, in one sealed file.
    #[command(subcommand)]
    Backup(BackupCommand),
    /// Restore a backup.
    Restore(RestoreArgs),
    /// Move the trust of an anchor to another one.
    #[command(subcommand)]
    Migrate(MigrateCommand),
    /// Servers, counts, and what needs a person.
    Status,
    /// A cluster on Kubernetes; the same as `kubectl tec`.
    Kube(KubeArgs),
    /// Print a completion script.
    Completion {
        /// For which shell.
        shell: clap_complete::Shell,
    },
    /// Print the reference of all commands, as Markdown.
    Reference,
}
