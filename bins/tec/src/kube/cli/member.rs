//! `kubectl tec member`, as a command line.

use std::net::IpAddr;

use clap::{Args, Subcommand, ValueEnum};
use tec_core::node::derive::DiskId;
use tec_core::node::ticket::NodeName;

use crate::args::Consent;
use crate::args::DryRun;

#[derive(Debug, Subcommand)]
pub(crate) enum MemberCommand {
    /// List members, and those that were removed.
    List,
    /// Remove a member for good: its key is revoked, its Node deleted, and nobody gets the key of its
    /// disk any more. Its name is free when its certificates have expired.
    Remove {
        #[command(flatten)]
        leave: LeaveArgs,
    },
    /// Let a node join again with a new disk, under the same name or another one: its membership ends,
    /// and nobody gets the key of its old disk any more.
    Replace {
        /// Whether the node comes back with the same TPM, whose key is then forgotten and may join
        /// again, or with a new one, and the old key is revoked.
        #[arg(long, value_enum)]
        tpm: Tpm,
        #[command(flatten)]
        leave: LeaveArgs,
    },
    /// Set the addresses that serving certificates of a member may have (default: the address that it
    /// joined with): for nodes with two stacks, with another address, or named by a cloud provider.
    Addresses {
        /// Name of the node.
        name: NodeName,
        /// All its addresses.
        #[arg(required = true)]
        addresses: Vec<IpAddr>,
        #[command(flatten)]
        dry_run: DryRun,
    },
}

/// The TPM that a replaced node comes back with.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Tpm {
    /// The one that it has.
    Same,
    /// Another one.
    New,
}

#[derive(Debug, Args)]
pub(crate) struct LeaveArgs {
    /// Name of the node.
    pub(crate) name: NodeName,
    /// UUID of the member's disk; needed where a removed member had the same name.
    #[arg(long)]
    pub(crate) disk: Option<DiskId>,
    /// Let any node join under this name, although client certificates of the removed member count
    /// until they expire (a year): whoever has one acts as the new node. For machines whose state
    /// disk is erased.
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
