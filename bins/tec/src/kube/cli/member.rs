//! `kubectl tec member`, as a command line.

use std::net::IpAddr;

use clap::{Args, Subcommand, ValueEnum};
use tec_node::derive::DiskId;
use tec_node::ticket::NodeName;

use crate::args::Consent;
use crate::args::DryRun;

#[derive(Debug, Subcommand)]
pub(crate) enum MemberCommand {
    /// List members and removed members.
    List,
    /// Remove a member permanently: its key is revoked, its Node is deleted, and the key of its disk is no
    /// longer released to anyone. Its name is free once its certificates have expired.
    Remove {
        #[command(flatten)]
        leave: LeaveArgs,
    },
    /// Let a node join again with a new disk, under the same name or a different one: its membership ends,
    /// and the key of its old disk is no longer released to anyone.
    Replace {
        /// TPM with which the node returns: the same one, whose key is forgotten so that it can
        /// join again, or a new one, in which case the old key is revoked.
        #[arg(long, value_enum)]
        tpm: Tpm,
        #[command(flatten)]
        leave: LeaveArgs,
    },
    /// Set the addresses allowed in a member's serving certificates (default: the address it joined with):
    /// for nodes that are dual-stack, have a new address, or are named by a cloud provider.
    Addresses {
        /// Name of the node.
        name: NodeName,
        /// All addresses of the node.
        #[arg(required = true)]
        addresses: Vec<IpAddr>,
        #[command(flatten)]
        dry_run: DryRun,
    },
}

/// The TPM that a replaced node returns with.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Tpm {
    /// The same TPM.
    Same,
    /// A new TPM.
    New,
}

#[derive(Debug, Args)]
pub(crate) struct LeaveArgs {
    /// Name of the node.
    pub(crate) name: NodeName,
    /// UUID of the member's disk; required if a removed member had the same name.
    #[arg(long)]
    pub(crate) disk: Option<DiskId>,
    /// Let any node join under this name, although client certificates of the removed member remain valid
    /// until they expire (a year): whoever has one can act as the new node. For machines whose state disk was
    /// erased.
    #[arg(long)]
    pub(crate) dangerous_free_name: bool,
    /// Cordon the node and evict its pods first.
    #[arg(long)]
    pub(crate) drain: bool,
    /// Seconds until all pods must be gone.
    #[arg(long, default_value_t = 300, requires = "drain")]
    pub(crate) drain_timeout: u64,
    #[command(flatten)]
    pub(crate) consent: Consent,
}
