//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use tec_support::program::LogArgs;

/// Makes an instance a node of a cluster.
#[derive(Debug, Parser)]
#[command(name = "bootstrapper", version, arg_required_else_help = true)]
pub(crate) struct Args {
    /// File of settings, TOML.
    #[arg(long, env = "TEC_BOOTSTRAPPER_CONFIG", default_value = "/etc/tec/bootstrapper.toml")]
    pub(crate) config: PathBuf,
    /// The log.
    #[command(flatten)]
    pub(crate) log: LogArgs,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve Init and try to join until the node is a member; then start the kubelet and end.
    /// Exit status 3: the state disk has to be recovered first.
    Run,
    /// Make a blank disk the state disk of this node, with a fresh key, and mount it.
    ///
    /// Does nothing where a cluster may have a key of the disk. Comes before `recover` and `run`.
    Prepare {
        /// Erase whatever is on the disk, of a cluster or of others.
        #[arg(long)]
        dangerous_erase: bool,
    },
    /// Open the state disk of a node that booted again, by a rejoin ticket or a Recover call.
    Recover,
    /// Print the fingerprint of the attestation key, made now if there is none.
    Key,
    /// Print the fingerprint of the endorsement key of the TPM.
    EndorsementKey,
}
