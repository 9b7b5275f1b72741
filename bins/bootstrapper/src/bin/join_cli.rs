//! The command line.

use std::path::PathBuf;

use clap::Parser;
use tec_support::program::LogArgs;

/// Admits attested nodes to a cluster.
#[derive(Debug, Parser)]
#[command(name = "join-service", version)]
#[expect(clippy::exhaustive_structs, reason = "parsed, never built")]
pub struct Args {
    /// File of settings, TOML.
    #[arg(
        long,
        env = "TEC_JOIN_SERVICE_CONFIG",
        default_value = "/etc/tec/join-service.toml"
    )]
    pub config: PathBuf,
    /// The log.
    #[command(flatten)]
    pub log: LogArgs,
}
