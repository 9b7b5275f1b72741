//! Ignition configs: the commands of `tec ignition`.

use std::path::PathBuf;

use clap::Subcommand;
use tec_core::endpoint::BaseUrl;

use crate::args::MachineRef;

#[derive(Debug, Subcommand)]
pub(crate) enum IgnitionCommand {
    /// Print the merge directive for the config of the installer.
    Merge {
        /// URL of the registration server (default: the server of the state directory; required on
        /// Kubernetes).
        #[arg(long)]
        url: Option<BaseUrl>,
        /// CA bundle of that server (default on Kubernetes: that of its Secret).
        #[arg(long, value_name = "FILE", requires = "url")]
        ca: Option<PathBuf>,
        /// File with the registration token (default on Kubernetes: that of its Secret).
        #[arg(long, value_name = "FILE")]
        token_file: Option<PathBuf>,
    },
    /// Print the config of a machine, as the registration server serves it.
    Machine {
        #[command(flatten)]
        machine: MachineRef,
    },
}
