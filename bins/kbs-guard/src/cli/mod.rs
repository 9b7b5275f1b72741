//! The command lines: the guard's here, the key broker's in its own module.

pub mod broker;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::Parser;
use http::uri::Authority;
use tec_support::evidence::EvidenceArgs;
use tec_support::pins::PinsArgs;
use tec_support::program::LogArgs;

/// Guards an unmodified Trustee: passes on only evidence that is signed by a registered key, covers
/// all registers, and was not used before
#[derive(Clone, Debug, Parser)]
#[command(name = "kbs-guard", version)]
pub struct Args {
    /// Address that nodes connect to
    #[arg(long, env = "KBS_GUARD_LISTEN", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// Address of the Trustee, plain HTTP; it belongs on the loopback interface of the same pod
    #[arg(long, env = "KBS_GUARD_UPSTREAM", default_value = "127.0.0.1:8081")]
    pub upstream: Authority,
    /// Directory of attestation keys, one PEM file `<machine id>.pub` each, such as a mounted Secret or
    /// ConfigMap; repeatable. Changes take effect within a second
    #[arg(
        long,
        env = "KBS_GUARD_KEYS",
        value_delimiter = ',',
        required_unless_present = "kubernetes"
    )]
    pub keys: Vec<PathBuf>,
    /// Look up each machine and its key in the cluster's API server instead of directories. The pod's service
    /// account must be allowed to read Machines, AttestationKeys and ApprovedImages of its namespace, and to
    /// write AttestationRecords (the attempts) and Events (the outcomes for each machine). Boots of
    /// unapproved images are refused here, before the Trustee sees them
    #[arg(long, conflicts_with = "keys")]
    pub kubernetes: bool,
    /// Directory for the audit log and, without `--kubernetes`, the most recent attempts; `tec explain
    /// --state-dir` reads it
    #[arg(long, env = "KBS_GUARD_STATE_DIR", default_value = "/var/lib/kbs-guard")]
    pub state_dir: PathBuf,
    /// Free space at the state directory, in MiB, below which a machine that is bound by first use gets few disk keys per
    /// hour, and its refusals are not recorded, so that audit lines of other machines still fit. 0 turns this off
    #[arg(long, env = "KBS_GUARD_RESERVE_MIB", default_value_t = 16)]
    pub reserve_mib: u64,
    /// Certificate chain, PEM; read again when it changes
    #[arg(long, env = "KBS_GUARD_TLS_CERT", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key, PEM
    #[arg(long, env = "KBS_GUARD_TLS_KEY", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// CA certificates that nodes should trust for this server, PEM; read for each request. Nodes fetch them
    /// here and report that they trust them. Needs `--kubernetes`
    #[arg(long, env = "KBS_GUARD_TLS_CA", requires = "kubernetes")]
    pub tls_ca: Option<PathBuf>,
    /// Serve plain HTTP: anyone on the network path can read and drop traffic
    #[arg(long, conflicts_with = "tls_cert")]
    pub dangerous_plain_http: bool,
    /// Address of the guard's own `/metrics` and `/readyz` (200 while the Trustee answers, whatever its
    /// generation); `/metrics` on the public port is the Trustee's
    #[arg(long, env = "KBS_GUARD_METRICS")]
    pub metrics_addr: Option<SocketAddr>,
    /// Maximum new sessions per second, in total
    #[arg(long, env = "KBS_GUARD_AUTH_RATE", default_value = "100")]
    pub auth_rate: NonZeroU32,
    /// Which registers a boot must match, with `--kubernetes`. Without it, only the Trustee's policies judge
    /// boots.
    #[command(flatten)]
    pub pins: PinsArgs,
    /// Which evidence is accepted.
    #[command(flatten)]
    pub evidence: EvidenceArgs,
    /// What is logged, and how.
    #[command(flatten)]
    pub log: LogArgs,
}
