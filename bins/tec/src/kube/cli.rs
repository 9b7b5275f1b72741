//! The command line of `kubectl tec`, which is `tec kube`, too.

pub(crate) mod member;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use tec_core::endpoint::BaseUrl;
use tec_core::id::{ImageName, MachineId};

use self::member::MemberCommand;
use crate::args::{AttemptArgs, DryRun, Printing};

/// See and steer Trusted Execution Clusters on Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "kubectl-tec", bin_name = "kubectl tec", version = crate::VERSION, propagate_version = true)]
pub(crate) struct Plugin {
    #[command(flatten)]
    pub(crate) printing: Printing,
    #[command(flatten)]
    pub(crate) kube: KubeArgs,
}

#[derive(Debug, Args)]
pub(crate) struct KubeArgs {
    #[command(flatten)]
    pub(crate) access: Access,
    #[command(subcommand)]
    pub(crate) command: KubeCommand,
}

/// Which cluster, as kubectl is told.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Access {
    /// Namespace; that of the context where not given.
    #[arg(long, short, global = true)]
    pub(crate) namespace: Option<String>,
    /// Context of the kubeconfig; the current one where not given.
    #[arg(long, global = true)]
    pub(crate) context: Option<String>,
    /// The kubeconfig; that of KUBECONFIG or of the home directory where not given.
    #[arg(long, global = true)]
    pub(crate) kubeconfig: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KubeCommand {
    /// The cluster, its counts, and what needs a person; ends with 3 while it is not ready.
    Status,
    /// Check an installation; ends with 1 if a check fails.
    Check,
    /// The machines.
    #[command(subcommand)]
    Machine(KubeMachineCommand),
    /// Nodes that joined through the join service: list, remove, replace.
    #[command(subcommand)]
    Member(MemberCommand),
    /// The attestation keys.
    #[command(subcommand)]
    Ak(KubeAkCommand),
    /// The approved images.
    #[command(subcommand)]
    Image(KubeImageCommand),
    /// Explain why a machine got its key, or did not: its last attempt, or the attempt of an id.
    Explain {
        /// Id or name of the machine, or id of an attempt.
        subject: String,
    },
    /// Audit lines and attempts to attest.
    #[command(subcommand)]
    Audit(KubeAuditCommand),
    /// Ignition configs for installers and nodes.
    #[command(subcommand)]
    Ignition(KubeIgnitionCommand),
    /// Collect what somebody needs who is to help; secrets stay where they are.
    SupportBundle {
        /// The archive to write.
        #[arg(long, default_value = "tec-support.tar.gz")]
        file: PathBuf,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Print a completion script for kubectl-tec.
    Completion {
        /// For which shell.
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum KubeMachineCommand {
    /// List the machines.
    List,
    /// Show a machine with its conditions.
    Show {
        #[command(flatten)]
        machine: MachineRef,
    },
    /// Register a machine manually, and print its Ignition config.
    Add {
        /// Id of the machine (default: a random one).
        #[arg(long)]
        id: Option<MachineId>,
        /// Name of the node that will run on it.
        #[arg(long)]
        node_name: Option<String>,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Set the name of the node that runs on a machine; commands accept it in place of the id.
    Name {
        #[command(flatten)]
        machine: MachineRef,
        /// The name, for example that of the Kubernetes Node.
        node_name: String,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Withhold the disk key from a machine until it is released.
    Quarantine {
        #[command(flatten)]
        machine: MachineRef,
        /// Reason, shown to other admins.
        #[arg(long)]
        reason: Option<String>,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Lift the quarantine of a machine.
    Release {
        #[command(flatten)]
        machine: MachineRef,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Decommission a machine, which cannot be undone. Its disk key is kept until it is removed.
    Retire {
        #[command(flatten)]
        machine: MachineRef,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Revoke a machine that is not trusted any more, which cannot be undone. Its disk key is kept.
    Revoke {
        #[command(flatten)]
        machine: MachineRef,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Accept the next quote of its TPM as the first: after a deliberate reset of the TPM, such as
    /// restoring a snapshot of a virtual machine. Any other copy of that TPM state may then come first.
    Readmit {
        #[command(flatten)]
        machine: MachineRef,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Print the recovery keys of a machine, latest first: sealed, or opened with the admin's key. The
    /// built-in key broker accepts them from nodes; Trustee keeps none.
    RecoveryKey {
        #[command(flatten)]
        machine: MachineRef,
        /// Private key of the admin, a JWK. Without it the sealed keys are printed
        #[arg(long, value_name = "FILE")]
        identity: Option<PathBuf>,
    },
    /// Remove a machine and its disk key. Only a recovery key opens the disk then.
    Remove {
        #[command(flatten)]
        machine: MachineRef,
        #[command(flatten)]
        dry_run: DryRun,
    },
}

/// A machine, as commands are given it.
#[derive(Clone, Debug, Args)]
pub(crate) struct MachineRef {
    /// Id of the machine, or name of its node.
    pub(crate) machine: String,
}

/// Limits a list to one machine.
#[derive(Clone, Debug, Args)]
pub(crate) struct MachineFilter {
    /// Only those of this machine: its id, or the name of its node
    #[arg(long)]
    pub(crate) machine: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KubeAkCommand {
    /// List them.
    List {
        #[command(flatten)]
        of: MachineFilter,
    },
    /// Approve a key that waits.
    Approve {
        /// Name of the object.
        name: String,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Take a key back; the machine may then register another one.
    Revoke {
        /// Name of the object.
        name: String,
        #[command(flatten)]
        dry_run: DryRun,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum KubeImageCommand {
    /// List them.
    List,
    /// Show one: its measurements by component, which registers are pinned, what is missing, and which
    /// machines booted it last.
    Show {
        /// Name of the approval
        name: ImageName,
    },
    /// Approve an image: the cluster computes what its boot measures.
    Approve {
        /// Name of the approval.
        name: ImageName,
        /// The image by digest: `registry/name@sha256:…`.
        image: String,
        /// Let the approval end after this many hours.
        #[arg(long, value_name = "HOURS")]
        for_hours: Option<u32>,
        /// Secret with the credentials of the registry.
        #[arg(long)]
        pull_secret: Option<String>,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Take an approval back; with --dry-run, list the machines that last booted it.
    Revoke {
        /// Which.
        name: ImageName,
        #[command(flatten)]
        dry_run: DryRun,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum KubeAuditCommand {
    /// List audit lines, oldest first: those in annotations of objects, which stay with their object,
    /// and those in Events, which the API server drops after an hour by default. They are records, not
    /// a verified chain: an account that may write these objects can change them. Collect the logs of
    /// the operator and the key broker to keep every line.
    List {
        #[command(flatten)]
        of: MachineFilter,
        /// Maximum number of lines; the latest are shown
        #[arg(long, default_value_t = 1000)]
        limit: usize,
    },
    /// List the latest attempts to attest, newest first: the last 16 of each machine, from its
    /// AttestationRecord. `kubectl tec explain` shows the checks of an attempt.
    Attempts(AttemptArgs<MachineFilter>),
}

#[derive(Debug, Subcommand)]
pub(crate) enum KubeIgnitionCommand {
    /// The merge directive for the installer's config.
    Merge {
        /// Where nodes reach the registration server.
        #[arg(long)]
        url: BaseUrl,
        /// CA bundle of that server; that of its Secret where not given.
        #[arg(long)]
        ca: Option<PathBuf>,
        /// File with the registration token; that of its Secret where not given.
        #[arg(long)]
        token_file: Option<PathBuf>,
    },
    /// The config of a machine, as the registration server hands it out.
    Machine {
        #[command(flatten)]
        machine: MachineRef,
    },
}
