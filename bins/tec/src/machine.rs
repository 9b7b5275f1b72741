//! Machines, for `tec machine` on a state directory and on a cluster.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use clap::builder::NonEmptyStringValueParser;
use tec_core::code::Code;
use tec_core::flow;
use tec_core::id::MachineId;
use tec_core::port::{ClockLog, PortErrorKind};
use tec_support::SystemClock;
use tec_support::exit::CodedError;

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

/// Minimum number of digits to identify an ID or a fingerprint.
pub(crate) const PREFIX: usize = 4;

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

/// No machine, or more than one, matches the given string.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unknown {
    /// No machine matches.
    #[error("no machine has the ID or name {0}")]
    None(String),
    /// Several IDs start with the string, or several machines have that name.
    #[error("{0} matches several machines: {ids}", ids = .1.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Several(String, Vec<MachineId>),
}

/// Resolves a name, or the first digits of an ID, among these machines with their names.
///
/// # Errors
/// No machine or several machines match.
pub(crate) fn meant(
    known: impl IntoIterator<Item = (MachineId, Option<String>)>,
    text: &str,
) -> Result<MachineId, Unknown> {
    let wanted = text.to_ascii_lowercase();
    let digits = wanted.chars().filter(char::is_ascii_hexdigit).count();
    let is_prefix = digits >= PREFIX && wanted.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    let (mut named, mut begun) = (Vec::new(), Vec::new());
    for (id, name) in known {
        if name.as_deref() == Some(text) {
            named.push(id);
        } else if is_prefix && id.to_string().starts_with(&wanted) {
            begun.push(id);
        }
    }
    let found = if named.is_empty() { begun } else { named };
    match found.as_slice() {
        [id] => Ok(*id),
        [] => Err(Unknown::None(text.to_owned())),
        several => Err(Unknown::Several(text.to_owned(), several.to_vec())),
    }
}

/// Readmits the TPM of a machine.
pub(crate) async fn readmit(
    clocks: &dyn ClockLog,
    unavailable: Code,
    id: MachineId,
    dry_run: DryRun,
    output: &Output,
) -> anyhow::Result<()> {
    if dry_run.dry_run {
        return say(output, "readmitted", true, &[id]);
    }
    match flow::readmit_tpm(clocks, &SystemClock, id).await {
        Ok(()) => say(output, "readmitted", false, &[id]),
        Err(error) if error.kind() == PortErrorKind::NotFound => Err(no_clock(id).into()),
        Err(error) => {
            let context = format!("readmit the TPM of machine {id}");
            Err(CodedError::caused(error.code().unwrap_or(unavailable), context, error).into())
        }
    }
}

/// There is nothing to readmit.
pub(crate) fn no_clock(id: MachineId) -> CodedError {
    let context = format!("no quote of machine {id} was accepted here");
    CodedError::new(Code::MachineUnknown, context)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_meant_by_its_name_or_by_the_first_digits_of_its_id() {
        let id = |text: &str| text.parse::<MachineId>().unwrap();
        let first = id("7c9e6679-7425-40de-944b-e07fc1f90ae7");
        let second = id("7c9e6679-aaaa-40de-944b-e07fc1f90ae7");
        let third = id("00000000-7425-40de-944b-e07fc1f90ae7");
        let known = || {
            let name = |name: &str| Some(name.to_owned());
            [(first, name("beef")), (second, None), (third, name("7c9e"))]
        };
        assert_eq!(meant(known(), "beef"), Ok(first));
        assert_eq!(meant(known(), "7c9e"), Ok(third), "a name comes before digits");
        assert_eq!(meant(known(), "7C9E6679-a"), Ok(second));
        assert_eq!(meant(known(), "0000"), Ok(third));
        let several = Unknown::Several("7c9e6679".to_owned(), vec![first, second]);
        assert_eq!(meant(known(), "7c9e6679"), Err(several));
        for unknown in ["000", "worker", "7c9e6679x", "", "dead"] {
            assert!(meant(known(), unknown).is_err(), "{unknown}");
        }
    }
}
