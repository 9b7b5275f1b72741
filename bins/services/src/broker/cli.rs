//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::init::cli::Way;
use clap::Parser;
use tec_support::program::LogArgs;

/// Connects a component to NATS, and keeps it connected.
#[derive(Clone, Debug, Parser)]
#[command(name = "services-broker", version)]
#[expect(clippy::exhaustive_structs, reason = "a command line, built field by field")]
pub struct Args {
    /// The way to the controller.
    #[command(flatten)]
    pub way: Way,
    /// NATS, as tls URL, such as `tls://nats.<namespace>.svc:4222`; several with commas.
    #[arg(long, env = "TEC_NATS_URL")]
    pub nats: String,
    /// Where the runtime connects.
    #[arg(long, env = "TEC_LISTEN", default_value = "127.0.0.1:9443")]
    pub listen: SocketAddr,
    /// Where probes (/livez, /readyz) are served, in plain HTTP: a kubelet has no authority of ours.
    #[arg(long, env = "TEC_HEALTH_LISTEN")]
    pub health_listen: Option<SocketAddr>,
    /// Directory that the runtime reads the authorities from.
    #[arg(long, env = "TEC_OUT", default_value = "/shared")]
    pub out: PathBuf,
    /// Store events in NATS: one that is published is answered when it is stored, and who reads events
    /// misses none while NATS is away.
    #[arg(long, env = "TEC_STORED_EVENTS")]
    pub stored_events: bool,
    /// Collector, host and port of OTLP over HTTP, that gets the log, too.
    #[arg(long, env = "TEC_OTLP")]
    pub otlp: Option<String>,
    /// The log.
    #[command(flatten)]
    pub log: LogArgs,
}
