//! Attestation keys: the commands of `tec ak`.

use clap::Subcommand;
use tec_core::code::Code;
use tec_support::diskkey::DiskKeys;
use tec_support::exit::CodedError;

use crate::args::{DryRun, MachineFilter, Watch};

#[derive(Debug, Subcommand)]
pub(crate) enum AkCommand {
    /// List attestation keys.
    List {
        #[command(flatten)]
        of: MachineFilter,
        #[command(flatten)]
        watch: Watch,
    },
    /// Approve a pending key.
    Approve {
        /// Fingerprint of the key, or its first digits; on Kubernetes also the name of the object.
        key: String,
        /// Form of the machine's disk key, if it has none yet (default: compatible).
        #[arg(long, env = "TEC_DISK_KEYS", value_enum)]
        disk_keys: Option<DiskKeys>,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Revoke a key; the machine may then register a new one.
    Revoke {
        /// Fingerprint of the key, or its first digits; on Kubernetes also the name of the object.
        key: String,
        #[command(flatten)]
        dry_run: DryRun,
    },
}

/// No key, or several keys, are meant.
pub(crate) fn not_one(text: &str, several: bool) -> CodedError {
    let what = if several { "stands for several keys" } else { "is not a known key" };
    CodedError::new(Code::AkNotBound, format!("{text} {what}"))
}
