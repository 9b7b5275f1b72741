//! Disk keys and the seal key, for `tec key`.

use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use tec_support::diskkey::DiskKeys;

use crate::args::{Consent, MachineRef};

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// List machines whose disk key is being rotated.
    List,
    /// Generate a new disk key; the old one is released until the machine has a key slot for the new one.
    Rotate(RotateArgs),
    /// Cancel a rotation, such as that of a machine that does not come back; the disk opens as before.
    Cancel(CancelArgs),
    /// Replace the seal key, the key that encrypts the disk keys in the store. Stop the server first.
    Reseal(Consent),
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true))]
pub(crate) struct RotateArgs {
    /// ID or name of the machine, or the first digits of its ID.
    #[arg(group = "which")]
    pub(crate) machine: Option<String>,
    /// All machines in service, in the order of their IDs.
    #[arg(long, group = "which")]
    pub(crate) all: bool,
    /// Largest number of rotations under way at a time, with --all; repeat the command to continue.
    #[arg(long, value_name = "COUNT", default_value_t = 50, requires = "all")]
    pub(crate) at_most: usize,
    /// With --all, only keys that were generated longer ago.
    #[arg(long, value_name = "DURATION", requires = "all")]
    #[arg(value_parser = humantime::parse_duration)]
    pub(crate) older_than: Option<Duration>,
    /// Form of the new key.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) disk_keys: DiskKeys,
    #[command(flatten)]
    pub(crate) consent: Consent,
}

#[derive(Debug, Args)]
pub(crate) struct CancelArgs {
    #[command(flatten)]
    pub(crate) machine: MachineRef,
    /// Also cancel if the new key is in use: a disk that was detached then opens only with a recovery key.
    #[arg(long)]
    pub(crate) dangerously_forget_previous_key: bool,
    #[command(flatten)]
    pub(crate) consent: Consent,
}
