//! The command lines: that of the guard here, that of the key broker in its module.

pub mod broker;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::Parser;
use http::uri::Authority;
use tec_support::evidence::EvidenceArgs;
use tec_support::pins::PinsArgs;
use tec_support::program::LogArgs;

/// A strict check in front of a Trustee that runs unmodified: only evidence of registered keys,
/// over all registers, once, reaches it.
#[derive(Clone, Debug, Parser)]
#[command(name = "kbs-guard", version)]
#[expect(clippy::exhaustive_structs, reason = "a command line, built field by field")]
pub struct Args {
    /// Where nodes connect to.
    #[arg(long, env = "KBS_GUARD_LISTEN", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// The Trustee, in plain HTTP; it belongs on the loopback of the same pod.
    #[arg(long, env = "KBS_GUARD_UPSTREAM", default_value = "127.0.0.1:8081")]
    pub upstream: Authority,
    /// Directory of attestation keys, one file `<machine id>.pub` each, in PEM; repeatable. A
    /// mounted Secret or ConfigMap is such a directory. Changes count within a second.
    #[arg(
        long,
        env = "KBS_GUARD_KEYS",
        value_delimiter = ',',
        required_unless_present = "kubernetes"
    )]
    pub keys: Vec<PathBuf>,
    /// Ask the API server of the cluster for each machine and its key, in place of directories. The
    /// service account of the pod must be allowed to read Machines, AttestationKeys and ApprovedImages
    /// of its namespace, to write AttestationRecords, where attempts are kept, and Events, which report
    /// how the attempts of each machine end. Boots of other images than the approved ones are refused
    /// here, before the Trustee sees them
    #[arg(long, conflicts_with = "keys")]
    pub kubernetes: bool,
    /// Directory for the audit log and, without `--kubernetes`, the last attempts; `tec explain
    /// --state-dir` reads it.
    #[arg(long, env = "KBS_GUARD_STATE_DIR", default_value = "/var/lib/kbs-guard")]
    pub state_dir: PathBuf,
    /// Certificate chain, PEM; read again when it changes.
    #[arg(long, env = "KBS_GUARD_TLS_CERT", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key, PEM.
    #[arg(long, env = "KBS_GUARD_TLS_KEY", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// CA certificates that nodes should trust for this server, PEM; read for each request. Nodes
    /// learn them here and report to trust them. Needs `--kubernetes`
    #[arg(long, env = "KBS_GUARD_TLS_CA", requires = "kubernetes")]
    pub tls_ca: Option<PathBuf>,
    /// Serve plain HTTP: anybody on the network path can read and drop.
    #[arg(long, conflicts_with = "tls_cert")]
    pub dangerous_plain_http: bool,
    /// Address of the guard's own `/metrics` and `/readyz` (200 while the Trustee answers, whatever
    /// its generation); `/metrics` of the public port are the Trustee's.
    #[arg(long, env = "KBS_GUARD_METRICS")]
    pub metrics_addr: Option<SocketAddr>,
    /// Sessions that may begin per second, in all.
    #[arg(long, env = "KBS_GUARD_AUTH_RATE", default_value = "100")]
    pub auth_rate: NonZeroU32,
    /// Which registers a boot must match, with `--kubernetes`. Without it the Trustee's policies alone
    /// judge boots.
    #[command(flatten)]
    pub pins: PinsArgs,
    /// Which evidence is taken.
    #[command(flatten)]
    pub evidence: EvidenceArgs,
    /// What is logged, and how.
    #[command(flatten)]
    pub log: LogArgs,
}
