//! The flags of `tec serve`.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tec_core::ak::Fingerprint;
use tec_support::diskkey::DiskKeys;
use tec_support::evidence::EvidenceArgs;
use tec_support::pins::PinsArgs;

const REGISTER_PORT: u16 = 8000;
const AK_PORT: u16 = 8001;
const KBS_PORT: u16 = 8080;
/// Default of `--unclaimed-seconds`.
const UNCLAIMED_SECONDS: u32 = 3600;
/// Default of `--unclaimed-seconds` with manual approval.
const UNCLAIMED_MANUAL_SECONDS: u32 = 7 * 24 * 3600;

use super::ui::Loopback;

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Listening address of the registration server (default port 8000, on all interfaces if
    /// --public-host is set, else on 127.0.0.1)
    #[arg(long, env = "TEC_REGISTER_ADDR", value_name = "ADDRESS:PORT")]
    pub(crate) register_addr: Option<SocketAddr>,
    /// Listening address of the attestation-key registration server (default port 8001; default
    /// address as for --register-addr)
    #[arg(long, env = "TEC_AK_ADDR", value_name = "ADDRESS:PORT")]
    pub(crate) ak_addr: Option<SocketAddr>,
    /// Listening address of the key broker (default port 8080; default address as for --register-addr)
    #[arg(long, env = "TEC_KBS_ADDR", value_name = "ADDRESS:PORT")]
    pub(crate) kbs_addr: Option<SocketAddr>,
    /// Loopback address of a read-only page of machines and refusals (default off)
    #[arg(long, env = "TEC_UI_ADDR", value_name = "ADDRESS:PORT")]
    pub(crate) ui_addr: Option<Loopback>,
    /// DNS name or IP address at which nodes reach this host, also put into the certificate
    /// (default localhost, for this machine only)
    #[arg(long, env = "TEC_PUBLIC_HOST", value_name = "HOST")]
    pub(crate) public_host: Option<String>,
    /// Additional KBS servers that nodes try after this one, `URL` or `URL=CA-FILE`.
    #[arg(long, value_name = "URL[=CA-FILE]")]
    pub(crate) also_kbs: Vec<String>,
    /// Block device of the root volume on nodes.
    #[arg(long, env = "TEC_ROOT_DEVICE", default_value = "/dev/disk/by-partlabel/root")]
    pub(crate) root_device: String,
    /// Certificate chain, PEM (default: a certificate of a CA created on first start).
    #[arg(long, env = "TEC_TLS_CERT", requires_all = ["tls_key", "tls_ca"])]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of the certificate.
    #[arg(long, env = "TEC_TLS_KEY", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// CA bundle for nodes to pin, PEM.
    #[arg(long, env = "TEC_TLS_CA", requires = "tls_cert")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Serve plain HTTP. Anyone on the network path can read the Ignition configs and drop requests.
    #[arg(long, conflicts_with = "tls_cert")]
    pub(crate) dangerous_plain_http: bool,
    /// When an attestation key is approved.
    #[arg(long, env = "TEC_AK_APPROVAL", value_enum, default_value_t = Approval::Tofu)]
    pub(crate) ak_approval: Approval,
    /// Fingerprint of an endorsement key that may vouch for attestation keys; with `--ak-approval
    /// ek`; repeatable.
    #[arg(long, value_name = "FINGERPRINT")]
    pub(crate) allow_ek: Vec<Fingerprint>,
    /// CA certificates, PEM, that endorsement key certificates must chain to; with `--ak-approval ek`
    /// (default: accept any endorsement key, which only identifies the TPM).
    #[arg(long, env = "TEC_EK_ROOTS")]
    pub(crate) ek_roots: Option<PathBuf>,
    /// File with the token that nodes must present to register.
    #[arg(long, env = "TEC_REGISTRATION_TOKEN_FILE")]
    pub(crate) registration_token_file: Option<PathBuf>,
    /// Registrations per second in total; each client address gets a tenth of that, with bursts of
    /// up to 5 seconds' worth of the total, and a few in addition.
    #[arg(long, env = "TEC_REGISTER_RATE", default_value = "50")]
    pub(crate) register_rate: NonZeroU32,
    /// Requests to the key broker per second in total; an unlock takes three. Each client address
    /// gets a tenth of that, with bursts of up to 5 seconds' worth of the total, and a few in addition.
    #[arg(long, env = "TEC_KBS_RATE", default_value = "600")]
    pub(crate) kbs_rate: NonZeroU32,
    /// Maximum number of machines that may wait without an attestation key.
    #[arg(long, env = "TEC_MAX_UNCLAIMED", default_value_t = 10_000)]
    pub(crate) max_unclaimed: u64,
    /// Maximum number of machines that trust on first use admits; further keys wait for an admin.
    #[arg(long, env = "TEC_MAX_CLAIMED", default_value_t = 10_000)]
    pub(crate) max_claimed: u64,
    /// Maximum number of machines that trust on first use admits from one network: an IPv4 address
    /// or an IPv6 /64.
    #[arg(long, env = "TEC_MAX_CLAIMED_PER_SOURCE", default_value_t = 1_000)]
    pub(crate) max_claimed_per_source: u64,
    /// Free space at the state directory, in MiB, below which registration is paused, a machine that is bound by first
    /// use gets four disk keys per hour, and its refusals are not recorded; the rest is reserved for the audit lines of
    /// known nodes. 0 turns this off.
    #[arg(long, env = "TEC_RESERVE_MIB", default_value_t = 64)]
    pub(crate) reserve_mib: u64,
    /// Seconds after which a machine without an attestation key may be removed (default: an hour, or a week
    /// if an admin approves keys).
    #[arg(long, env = "TEC_UNCLAIMED_SECONDS")]
    pub(crate) unclaimed_seconds: Option<u32>,
    #[command(flatten)]
    pub(crate) pins: PinsArgs,
    /// Form of the disk keys of new machines; existing keys do not change.
    #[arg(long, env = "TEC_DISK_KEYS", value_enum, default_value_t)]
    pub(crate) disk_keys: DiskKeys,
    #[command(flatten)]
    pub(crate) evidence: EvidenceArgs,
}

impl ServeArgs {
    /// Listening addresses of the registration server, the attestation-key registration server and the key
    /// broker.
    pub(crate) fn addresses(&self) -> [SocketAddr; 3] {
        let everywhere = match self.public_host {
            Some(_) => Ipv4Addr::UNSPECIFIED,
            None => Ipv4Addr::LOCALHOST,
        };
        let or_port =
            |given: Option<SocketAddr>, port| given.unwrap_or_else(|| (everywhere, port).into());
        [
            or_port(self.register_addr, REGISTER_PORT),
            or_port(self.ak_addr, AK_PORT),
            or_port(self.kbs_addr, KBS_PORT),
        ]
    }

    /// The same addresses, which nodes will keep.
    pub(crate) fn kept_addresses(&self) -> anyhow::Result<[SocketAddr; 3]> {
        let addresses = self.addresses();
        anyhow::ensure!(
            addresses.iter().all(|address| address.port() != 0),
            "port 0 is not allowed, because nodes keep these addresses permanently (pass \
             three fixed ports)"
        );
        Ok(addresses)
    }

    /// Name or address at which nodes reach this host.
    pub(crate) fn public_host(&self) -> &str {
        self.public_host.as_deref().unwrap_or("localhost")
    }

    /// How long a machine may wait for its key to be bound.
    pub(crate) fn unclaimed_seconds(&self) -> i64 {
        let default = match self.ak_approval {
            Approval::Tofu | Approval::Ek => UNCLAIMED_SECONDS,
            // Admins have weekends.
            Approval::Manual => UNCLAIMED_MANUAL_SECONDS,
        };
        self.unclaimed_seconds.unwrap_or(default).into()
    }
}

/// When an attestation key is approved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Approval {
    /// The first key of a machine.
    Tofu,
    /// The first key of a machine, proven by the TPM's endorsement key.
    Ek,
    /// Only by an admin, with `tec ak approve`.
    Manual,
}
