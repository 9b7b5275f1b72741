//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::init::cli::Way;
use clap::Parser;
use tec_support::program::LogArgs;

/// Connects a component to NATS, and keeps it connected.
#[derive(Clone, Debug, Parser)]
#[command(name = "services-broker", version)]
pub struct Args {
    /// Connection to the controller.
    #[command(flatten)]
    pub way: Way,
    /// URL of NATS, such as `tls://nats.<namespace>.svc:4222`; several separated by commas
    #[arg(long, env = "TEC_NATS_URL")]
    pub nats: String,
    /// Address that the runtime connects to
    #[arg(long, env = "TEC_LISTEN", default_value = "127.0.0.1:9443")]
    pub listen: SocketAddr,
    /// Address of the probes (/livez, /readyz), plain HTTP because a kubelet does not have this CA
    #[arg(long, env = "TEC_HEALTH_LISTEN")]
    pub health_listen: Option<SocketAddr>,
    /// Directory where the runtime reads the authorities
    #[arg(long, env = "TEC_OUT", default_value = "/shared")]
    pub out: PathBuf,
    /// Store events in NATS: publishing an event returns once it is stored, and readers miss no events while
    /// NATS is unreachable
    #[arg(long, env = "TEC_STORED_EVENTS")]
    pub stored_events: bool,
    /// Host and port of a collector (OTLP over HTTP) that also receives the log
    #[arg(long, env = "TEC_OTLP")]
    pub otlp: Option<String>,
    /// The log.
    #[command(flatten)]
    pub log: LogArgs,
}
