//! Machines: the commands of `tec machine`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use clap::builder::NonEmptyStringValueParser;
use tec_core::id::MachineId;

use crate::args::{Consent, DryRun, MachineRef, Watch};
use crate::output::Output;

#[derive(Debug, Subcommand)]
pub(crate) enum MachineCommand {
    /// List machines.
    List(Watch),
    /// Show a machine with its keys, conditions and last attempts.
    Show {
        #[command(flatten)]
        machine: MachineRef,
    },
    /// Register a machine manually, and print its Ignition config.
    Add {
        /// ID of the machine (default: a random one).
        #[arg(long)]
        id: Option<MachineId>,
        /// Name of the machine, such as that of its Kubernetes Node.
        #[arg(long, value_parser = NonEmptyStringValueParser::new())]
        name: Option<String>,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Name a machine; commands accept the name in place of the ID.
    Name {
        #[command(flatten)]
        machine: MachineRef,
        /// Name, such as that of its Kubernetes Node.
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Withhold the disk key of a machine until you release the machine.
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
    /// Decommission a machine permanently; its disk key is kept until the machine is removed.
    Retire {
        #[command(flatten)]
        machine: MachineRef,
        #[command(flatten)]
        consent: Consent,
    },
    /// Revoke a machine that is no longer trusted, permanently; its disk key is kept.
    Revoke {
        #[command(flatten)]
        machine: MachineRef,
        #[command(flatten)]
        consent: Consent,
    },
    /// Remove a machine and its disk key; only a recovery key opens the disk afterwards.
    Remove {
        #[command(flatten)]
        machine: MachineRef,
        #[command(flatten)]
        consent: Consent,
    },
    /// Accept the next quote of the TPM as its first.
    ///
    /// For a TPM that was reset deliberately, for example by restoring a snapshot of a virtual machine.
    /// Another copy of that TPM state could then be accepted in its place.
    Readmit {
        #[command(flatten)]
        machine: MachineRef,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Print the recovery keys of a machine, latest first.
    RecoveryKey {
        #[command(flatten)]
        machine: MachineRef,
        /// Private key of the admin, a JWK (default: print the sealed keys, for `jose jwe dec`).
        #[arg(long, value_name = "FILE")]
        identity: Option<PathBuf>,
    },
    /// Remove machines that registered but never got an attestation key.
    Prune {
        /// Minimum age.
        #[arg(long, value_name = "DURATION", default_value = "1h")]
        #[arg(value_parser = humantime::parse_duration)]
        older_than: Duration,
        #[command(flatten)]
        dry_run: DryRun,
    },
}

/// An irreversible change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Final {
    /// Decommissioned.
    Retire,
    /// No longer trusted.
    Revoke,
    /// Forgotten, with its keys.
    Remove,
}

impl Final {
    /// The past participle.
    pub(crate) fn done(self) -> &'static str {
        match self {
            Self::Retire => "retired",
            Self::Revoke => "revoked",
            Self::Remove => "removed",
        }
    }

    /// The consequence for a machine, in full sentences.
    pub(crate) fn effect(self, machine: &str) -> String {
        let effect = match self {
            Self::Retire => {
                "gets no disk key from now on. Its disk key is kept until it is removed"
            }
            Self::Revoke => {
                "and its attestation key are refused from now on. Its disk key is kept until it is removed"
            }
            Self::Remove => {
                "is deleted with its attestation keys and its disk key. Only a recovery key opens its disk \
                 afterwards"
            }
        };
        format!("Machine {machine} {effect}. This cannot be undone.")
    }
}

/// Prints what was done, or would be done, to machines.
pub(crate) fn say(
    output: &Output,
    done: &str,
    dry_run: bool,
    ids: &[MachineId],
) -> anyhow::Result<()> {
    let value = serde_json::json!({ "machines": ids, "action": done, "dry_run": dry_run });
    output.print(&value, |_| {
        let would = if dry_run { "would be " } else { "" };
        match ids {
            [] => format!("no machine {would}{done}"),
            ids => ids
                .iter()
                .map(|id| format!("machine {id} {would}{done}"))
                .collect::<Vec<_>>()
                .join("\n"),
        }
    })
}
