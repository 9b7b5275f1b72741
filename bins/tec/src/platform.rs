//! The command line of `tec platform`.

use clap::Subcommand;

use crate::args::{Consent, MachineRef};

#[derive(Debug, Subcommand)]
pub(crate) enum PlatformCommand {
    /// List machines by firmware and Secure Boot policy, and what waits for approval.
    List,
    /// Show what changed between the baseline of a machine and its last boot.
    Diff {
        #[command(flatten)]
        machine: MachineRef,
    },
    /// Approve the firmware or Secure Boot policy that a machine reported last.
    ///
    /// Applies to every machine with the same baseline: approve an update once for each model and
    /// version. The previous baseline of a machine is accepted until its first boot with the update.
    Approve {
        #[command(flatten)]
        machine: MachineRef,
        #[command(flatten)]
        consent: Consent,
    },
}
