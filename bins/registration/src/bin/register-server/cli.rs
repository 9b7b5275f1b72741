//! The command line.

use std::path::PathBuf;

use clap::Parser;
use tec_support::front::FrontArgs;

use crate::compose::Files;

/// Serves the Ignition config of a node's first boot, and registers its machine.
#[derive(Clone, Debug, Parser)]
#[command(name = "register-server", version)]
pub(crate) struct Args {
    /// Port to listen on
    #[arg(short, long, default_value_t = 8000)]
    pub(crate) port: u16,
    /// CA of the key broker, PEM, that nodes trust. Read again when the file changes
    #[arg(long)]
    kbs_ca: Option<PathBuf>,
    /// CA of the attestation key server, PEM, that nodes trust
    #[arg(long)]
    ak_ca: Option<PathBuf>,
    /// File with the token that a node must present when the cluster's registration mode is Token
    #[arg(long)]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) front: FrontArgs,
}

impl Args {
    pub(crate) fn files(&self) -> Files {
        Files {
            kbs_ca: self.kbs_ca.clone(),
            ak_ca: self.ak_ca.clone(),
            token: self.token_file.clone(),
        }
    }
}
