//! The command line.

use std::path::PathBuf;

use clap::Parser;
use tec_support::log::LogForm;

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
    /// Which log lines go to stderr, for example `info` or `tec=debug`.
    #[arg(long, env = "TEC_LOG", default_value = "info")]
    pub log: String,
    /// Form of the log lines.
    #[arg(long, env = "TEC_LOG_FORM", value_enum, default_value_t = LogForm::Text)]
    pub log_form: LogForm,
}
