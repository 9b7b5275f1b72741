//! The command line.

use clap::Parser;
use tec_support::front::FrontArgs;

/// Takes the attestation keys of nodes.
#[derive(Clone, Debug, Parser)]
#[command(name = "attestation-key-register", version)]
pub(crate) struct Args {
    /// Port to listen on.
    #[arg(short, long, default_value_t = 8001)]
    pub(crate) port: u16,
    #[command(flatten)]
    pub(crate) front: FrontArgs,
}
