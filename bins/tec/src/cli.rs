//! The command line: one tree for `tec` and for `kubectl tec`.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::ak::AkCommand;
use crate::args::{AnchorArgs, DryRun, Printing, StatusArgs};
use crate::audit::AuditCommand;
use crate::command::attest::AttestArgs;
use crate::command::backup::BackupCommand;
use crate::command::bootstrap::BootstrapCommand;
use crate::command::eventlog::EventlogCommand;
use crate::command::explain::ExplainArgs;
use crate::command::migrate::MigrateCommand;
use crate::command::node::NodeCommand;
use crate::command::pcr::PcrCommand;
use crate::command::ticket::TicketCommand;
use crate::command::trustee::TrusteeCommand;
use crate::ignition::IgnitionCommand;
use crate::image::ImageCommand;
use crate::key::KeyCommand;
use crate::kube::cli::member::MemberCommand;
use crate::machine::MachineCommand;
use crate::platform::PlatformCommand;
use crate::serve::args::ServeArgs;

/// Name under which kubectl finds this program.
pub(crate) const PLUGIN: &str = "kubectl-tec";

/// Release disk keys only to nodes that prove what they booted.
#[derive(Debug, Parser)]
#[command(name = "tec", version = crate::VERSION, propagate_version = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) anchor: AnchorArgs,
    #[command(flatten)]
    pub(crate) printing: Printing,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the registration servers and the key broker in one process.
    Serve {
        /// Its flags.
        #[command(flatten)]
        args: Box<ServeArgs>,
        /// Demand less of nodes than the last server here, or the one of a restored backup: no registration token, no
        /// approval by an admin, or no proof by an endorsement key.
        #[arg(long)]
        dangerous_lower_demands: bool,
    },
    /// Show servers, counts, recent refusals and open tasks; exit code 3 if not ready.
    Status(StatusArgs),
    /// Explain why a machine got its key or was refused.
    Explain(ExplainArgs),
    /// List, register, quarantine, revoke and remove machines.
    #[command(subcommand)]
    Machine(MachineCommand),
    /// List, approve and revoke attestation keys.
    #[command(subcommand)]
    Ak(AkCommand),
    /// Rotate disk keys, and replace the seal key of the store.
    #[command(subcommand)]
    Key(KeyCommand),
    /// Show and approve firmware and Secure Boot policies of machines.
    #[command(subcommand)]
    Platform(PlatformCommand),
    /// Show the audit log and attestation attempts.
    #[command(subcommand)]
    Audit(AuditCommand),
    /// Approve, list and revoke images.
    #[command(subcommand)]
    Image(ImageCommand),
    /// Compute, combine, identify and compare PCR values.
    #[command(subcommand)]
    Pcr(PcrCommand),
    /// Show, verify and compare TPM event logs.
    #[command(subcommand)]
    Eventlog(EventlogCommand),
    /// Set up a trust anchor for a new cluster, and check it as a node would.
    #[command(subcommand)]
    Bootstrap(BootstrapCommand),
    /// Print Ignition configs for the installer and for nodes.
    #[command(subcommand)]
    Ignition(IgnitionCommand),
    /// Initialize, join, recover and verify nodes, and predict their next boot.
    #[command(subcommand)]
    Node(NodeCommand),
    /// List, remove and replace members of a cluster.
    #[command(subcommand)]
    Member(MemberCommand),
    /// Sign tickets for control-plane nodes.
    #[command(subcommand)]
    Ticket(TicketCommand),
    /// Create and restore sealed backups.
    #[command(subcommand)]
    Backup(BackupCommand),
    /// Move trust to another anchor.
    #[command(subcommand)]
    Migrate(MigrateCommand),
    /// Check an installation on Kubernetes; exit code 1 if a check fails.
    Check,
    /// Write configuration, policies and token signers for Trustee, and test policies.
    #[command(subcommand)]
    Trustee(TrusteeCommand),
    /// Attest to a key broker and print the result, or fetch a resource.
    Attest(Box<AttestArgs>),
    /// Collect diagnostics for support; secrets are redacted.
    SupportBundle {
        /// Archive to write.
        #[arg(long, value_name = "FILE", default_value = "tec-support.tar.gz")]
        file: PathBuf,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Print a completion script for a shell.
    Completion {
        /// Shell.
        shell: clap_complete::Shell,
    },
    /// Print the reference of all commands as Markdown, or write it as manual pages.
    #[command(hide = true)]
    Reference {
        /// Directory for manual pages, one for each command.
        #[arg(long, value_name = "DIRECTORY")]
        man: Option<PathBuf>,
    },
}

/// Headings of the help, each with its commands.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Everyday", &["serve", "status", "explain", "machine", "ak", "key", "platform", "audit"]),
    ("Images and PCRs", &["image", "pcr", "eventlog"]),
    (
        "Cluster life cycle",
        &["bootstrap", "ignition", "node", "member", "ticket", "backup", "migrate", "check"],
    ),
    ("Advanced", &["trustee", "attest", "support-bundle", "completion"]),
];

/// Width of the command names in the help.
const NAMES: usize = 16;

/// The clap command under its current name, with subcommands in groups.
pub(crate) fn command(is_plugin: bool) -> clap::Command {
    let command = Cli::command();
    let mut groups = String::new();
    for (heading, names) in GROUPS {
        let _ = writeln!(groups, "{heading}:");
        for name in names {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(groups, "  {name:NAMES$}{about}");
        }
    }
    let template =
        format!("{{about}}\n\n{{usage-heading}} {{usage}}\n{groups}Options:\n{{options}}");
    let command = command.help_template(template);
    if is_plugin { command.name(PLUGIN).bin_name("kubectl tec") } else { command }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_command_is_in_one_group_and_the_help_fits_a_screen() {
        let mut command = command(false);
        let grouped: Vec<_> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        let names: BTreeSet<_> = grouped.iter().copied().collect();
        assert_eq!(names.len(), grouped.len());
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
        let shown: BTreeSet<_> = shown.map(clap::Command::get_name).collect();
        assert_eq!(shown, names);
        let help = command.render_help().to_string();
        assert!(help.lines().count() <= 40, "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
        let is_short = |arg: &clap::Arg| arg.get_long_help().is_none();
        assert!(command.get_arguments().all(is_short) && command.get_long_about().is_none());
        command.debug_assert();
    }
}
