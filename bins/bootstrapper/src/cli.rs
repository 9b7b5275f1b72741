//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use tec_support::program::LogArgs;

/// Makes an instance a node of a cluster.
#[derive(Debug, Parser)]
#[command(name = "bootstrapper", version, arg_required_else_help = true)]
pub(crate) struct Args {
    /// Settings file, TOML
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
    /// Serve Init and try to join until the node is a member; then start the kubelet and exit. Exit status 3:
    /// the state disk has to be recovered first
    Run,
    /// Make a blank disk the state disk of this node, with a fresh key, and mount it.
    ///
    /// Does nothing if a cluster may hold a key of the disk. Run it before `recover` and `run`.
    Prepare {
        /// Erase whatever is on the disk, whether it belongs to a cluster or not
        #[arg(long)]
        dangerous_erase: bool,
    },
    /// Open the state disk of a node that booted again, with a rejoin ticket or a Recover call
    Recover,
    /// Print the fingerprint of the attestation key; create the key if there is none
    Key,
    /// Print the fingerprint of the TPM's endorsement key
    EndorsementKey,
}
