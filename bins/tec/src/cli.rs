//! The command line.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tec_core::ak::Fingerprint;
use tec_core::endpoint::BaseUrl;
use tec_core::id::{ImageName, MachineId};
use tec_core::pcr::PcrIndex;
use tec_support::evidence::EvidenceArgs;
use tec_support::log::LogForm;

use crate::command::attest::AttestArgs;
use crate::command::backup::{BackupCommand, RestoreArgs};
use crate::command::bootstrap::BootstrapCommand;
use crate::command::eventlog::EventlogCommand;
use crate::command::member::{InitArgs, JoinArgs, RecoverArgs, VerifyArgs};
use crate::command::migrate::MigrateCommand;
use crate::command::node::NodeCommand;
use crate::command::pcr::{PcrCommand, ProofArgs};
use crate::command::trustee::TrusteeCommand;
use crate::kube::cli::KubeArgs;
use tec_support::boot::{ChainArgs, MachineArgs, parse_pcr};

/// Keys only for nodes that prove what they booted.
#[derive(Debug, Parser)]
#[command(name = "tec", version = crate::VERSION, propagate_version = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// Directory with the store, the seal key and the built-in CA.
    #[arg(
        long,
        env = "TEC_STATE_DIR",
        default_value = "/var/lib/tec",
        global = true
    )]
    pub(crate) state_dir: PathBuf,
    #[command(flatten)]
    pub(crate) printing: Printing,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What goes to stdout and stderr, and how.
#[derive(Debug, Args)]
pub(crate) struct Printing {
    /// Form of what is printed on stdout.
    #[arg(long, env = "TEC_OUTPUT", value_enum, default_value_t = OutputForm::Text, global = true)]
    pub(crate) output: OutputForm,
    /// Which log lines go to stderr, for example `info` or `tec=debug`.
    #[arg(long, env = "TEC_LOG", default_value = "info", global = true)]
    pub(crate) log: String,
    /// Form of the log lines.
    #[arg(long, env = "TEC_LOG_FORM", value_enum, default_value_t = LogForm::Text, global = true)]
    pub(crate) log_form: LogForm,
}

/// Form of what is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputForm {
    /// For people.
    Text,
    /// For programs.
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run registration, attestation-key registration and key broker in one process.
    Serve(Box<ServeArgs>),
    /// The registered machines.
    #[command(subcommand)]
    Machine(MachineCommand),
    /// The attestation keys.
    #[command(subcommand)]
    Ak(AkCommand),
    /// The approved images.
    #[command(subcommand)]
    Image(ImageCommand),
    /// PCR values: compute, combine, identify, compare.
    #[command(subcommand)]
    Pcr(PcrCommand),
    /// Event logs: show, replay, verify, compare.
    #[command(subcommand)]
    Eventlog(EventlogCommand),
    /// What the next boot of a node will measure.
    #[command(subcommand)]
    Node(NodeCommand),
    /// Ignition configs for installers and nodes.
    #[command(subcommand)]
    Ignition(IgnitionCommand),
    /// Configuration, policies and token signer of a Trustee.
    #[command(subcommand)]
    Trustee(TrusteeCommand),
    /// Attest to a key broker by hand, and show what it found, or fetch a resource.
    Attest(Box<AttestArgs>),
    /// Say why a machine got its key, or did not.
    Explain(ExplainArgs),
    /// The audit log.
    #[command(subcommand)]
    Audit(AuditCommand),
    /// Set a trust anchor up for a cluster that does not exist yet, and look at it as a node does.
    #[command(subcommand)]
    Bootstrap(BootstrapCommand),
    /// Make the first node of a cluster, once it has proved itself.
    Init(Box<InitArgs>),
    /// On a node: join the cluster whose join services the platform names.
    Join(JoinArgs),
    /// Open the disks of nodes that booted again, where their cluster cannot.
    Recover(Box<RecoverArgs>),
    /// Look at what a node proves, check by check.
    Verify(Box<VerifyArgs>),
    /// Back the trust of this anchor up, in one sealed file.
    #[command(subcommand)]
    Backup(BackupCommand),
    /// Restore a backup.
    Restore(RestoreArgs),
    /// Move the trust of an anchor to another one.
    #[command(subcommand)]
    Migrate(MigrateCommand),
    /// Servers, counts, and what needs a person.
    Status,
    /// A cluster on Kubernetes; the same as `kubectl tec`.
    Kube(KubeArgs),
    /// Print a completion script.
    Completion {
        /// For which shell.
        shell: clap_complete::Shell,
    },
    /// Print the reference of all commands, as Markdown.
    Reference,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Address of the registration server.
    #[arg(long, env = "TEC_REGISTER_ADDR", default_value = "0.0.0.0:8000")]
    pub(crate) register_addr: SocketAddr,
    /// Address of the attestation-key registration server.
    #[arg(long, env = "TEC_AK_ADDR", default_value = "0.0.0.0:8001")]
    pub(crate) ak_addr: SocketAddr,
    /// Address of the key broker.
    #[arg(long, env = "TEC_KBS_ADDR", default_value = "0.0.0.0:8080")]
    pub(crate) kbs_addr: SocketAddr,
    /// Name or address under which nodes reach this host; also goes into the certificate.
    #[arg(long, env = "TEC_PUBLIC_HOST", default_value = "localhost")]
    pub(crate) public_host: String,
    /// Further KBS servers that nodes try after this one, `URL` or `URL=CA-FILE`.
    #[arg(long, value_name = "URL[=CA-FILE]")]
    pub(crate) also_kbs: Vec<String>,
    /// Block device of the root volume on nodes.
    #[arg(
        long,
        env = "TEC_ROOT_DEVICE",
        default_value = "/dev/disk/by-partlabel/root"
    )]
    pub(crate) root_device: String,
    /// Certificate chain; without it a CA is made on first start.
    #[arg(long, env = "TEC_TLS_CERT", requires_all = ["tls_key", "tls_ca"])]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of the certificate.
    #[arg(long, env = "TEC_TLS_KEY", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// CA bundle that nodes shall pin.
    #[arg(long, env = "TEC_TLS_CA", requires = "tls_cert")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Serve plain HTTP. Everybody on the path can read the Ignition configs and drop requests.
    #[arg(long, conflicts_with = "tls_cert")]
    pub(crate) dangerous_plain_http: bool,
    /// When an attestation key is approved.
    #[arg(long, env = "TEC_AK_APPROVAL", value_enum, default_value_t = Approval::Tofu)]
    pub(crate) ak_approval: Approval,
    /// Endorsement keys that may vouch (fingerprints); with `--ak-approval ek`.
    #[arg(long, value_name = "FINGERPRINT")]
    pub(crate) allow_ek: Vec<Fingerprint>,
    /// CA certificates, PEM, that endorsement key certificates must chain to; with
    /// `--ak-approval ek`. Without it any endorsement key counts, and only names the TPM.
    #[arg(long, env = "TEC_EK_ROOTS")]
    pub(crate) ek_roots: Option<PathBuf>,
    /// File with the token that nodes must show to register.
    #[arg(long, env = "TEC_REGISTRATION_TOKEN_FILE")]
    pub(crate) registration_token_file: Option<PathBuf>,
    /// Registrations per second in all; one address gets a tenth, with bursts.
    #[arg(long, env = "TEC_REGISTER_RATE", default_value = "50")]
    pub(crate) register_rate: NonZeroU32,
    /// Requests to the key broker per second in all; an unlock takes three. One address gets a
    /// tenth, with bursts.
    #[arg(long, env = "TEC_KBS_RATE", default_value = "600")]
    pub(crate) kbs_rate: NonZeroU32,
    /// Most machines that may wait without an attestation key.
    #[arg(long, env = "TEC_MAX_UNCLAIMED", default_value_t = 10_000)]
    pub(crate) max_unclaimed: u64,
    /// Most machines that trust on first use may let in; further keys wait for an admin.
    #[arg(long, env = "TEC_MAX_CLAIMED", default_value_t = 10_000)]
    pub(crate) max_claimed: u64,
    /// Most of them from one network: one IPv4 address, or 64 bits of an IPv6 address.
    #[arg(long, env = "TEC_MAX_CLAIMED_PER_SOURCE", default_value_t = 1_000)]
    pub(crate) max_claimed_per_source: u64,
    /// Free space at the state directory, in MiB, below which registration is paused; what is left is
    /// for the audit lines of known nodes. 0 turns it off.
    #[arg(long, env = "TEC_RESERVE_MIB", default_value_t = 64)]
    pub(crate) reserve_mib: u64,
    /// Seconds after which a machine without an attestation key may be removed.
    /// An hour by default, a week where an admin approves keys.
    #[arg(long, env = "TEC_UNCLAIMED_SECONDS")]
    pub(crate) unclaimed_seconds: Option<u32>,
    /// Registers that must be those of approved images, together; separated by commas.
    #[arg(
        long,
        alias = "pin-pcr",
        env = "TEC_PCRS",
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = parse_pcr,
        default_value = "4"
    )]
    pub(crate) pcrs: Vec<PcrIndex>,
    #[command(flatten)]
    pub(crate) evidence: EvidenceArgs,
}

impl ServeArgs {
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

/// Default of `--unclaimed-seconds`.
const UNCLAIMED_SECONDS: u32 = 3600;
/// Default of `--unclaimed-seconds` with manual approval.
const UNCLAIMED_MANUAL_SECONDS: u32 = 7 * 24 * 3600;

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

/// For commands that write.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct DryRun {
    /// Say what would happen, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MachineCommand {
    /// List them.
    List,
    /// Show one, with its keys and last attempts.
    Show {
        /// Which.
        id: MachineId,
    },
    /// Register one by hand, and print its Ignition config.
    Add {
        /// Its id; a random one if not given.
        #[arg(long)]
        id: Option<MachineId>,
    },
    /// Let it attest no more; its disk key stays.
    Revoke {
        /// Which.
        id: MachineId,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Remove it with its keys. Its disk can then be opened by nobody but a recovery key.
    Remove {
        /// Which.
        id: MachineId,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Take its TPM's next quote as the first: after its TPM was set back on purpose, as by restoring a
    /// snapshot of a virtual machine. Whoever has another copy of that state may be the first, too.
    Readmit {
        /// Which.
        id: MachineId,
    },
    /// The recovery keys that it left, the latest first: sealed, or opened with the admin's key.
    RecoveryKey {
        /// Which.
        id: MachineId,
        /// The admin's private key, a JWK as `jose jwk gen -i '{"alg":"ECDH-ES+A256KW"}'` makes it;
        /// without it the sealed keys are printed, for `jose jwe dec -i- -k <file>`.
        #[arg(long, value_name = "FILE")]
        identity: Option<PathBuf>,
    },
    /// Remove those that registered long ago and never got an attestation key.
    Prune {
        /// How long ago, in seconds.
        #[arg(long, default_value_t = 3600)]
        older_than: i64,
        #[command(flatten)]
        dry_run: DryRun,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum AkCommand {
    /// List them.
    List {
        /// Only those of this machine.
        #[arg(long)]
        machine: Option<MachineId>,
    },
    /// Bind a key that waits to its machine.
    Approve {
        /// Which.
        key: Fingerprint,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Take a key back; the machine may then register another one.
    Revoke {
        /// Which.
        key: Fingerprint,
        #[command(flatten)]
        dry_run: DryRun,
    },
}

#[derive(Debug, Args)]
#[group(id = "origin", required = true, multiple = false)]
pub(crate) struct Origin {
    /// The image: directory, raw disk, FAT file system, tar stream, OCI layout or unified kernel
    /// image; - for the standard input.
    #[arg(group = "origin")]
    pub(crate) image: Option<PathBuf>,
    /// File with computed values, as in the label `org.coreos.pcrs`.
    #[arg(
        long,
        value_name = "FILE",
        group = "origin",
        conflicts_with_all = ["ChainArgs", "ImageChoice", "MachineArgs"]
    )]
    pub(crate) pcrs: Option<PathBuf>,
    /// Signed bundle of values, as `tec pcr bundle sign` writes it.
    #[arg(
        long,
        value_name = "FILE",
        group = "origin",
        requires_all = ["signature", "keys"],
        conflicts_with_all = ["ChainArgs", "ImageChoice", "MachineArgs"]
    )]
    pub(crate) bundle: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Approve an image: compute what its boot measures, and let such boots have keys.
    Approve {
        /// Name of the approval.
        name: ImageName,
        #[command(flatten)]
        origin: Origin,
        #[command(flatten)]
        proof: ProofArgs,
        /// Let the approval end after this many hours.
        #[arg(long, value_name = "HOURS")]
        for_hours: Option<u32>,
        #[command(flatten)]
        dry_run: DryRun,
        // Last, since their headings go on below them.
        #[command(flatten)]
        chain: Box<ChainArgs>,
        #[command(flatten)]
        machine: Box<MachineArgs>,
    },
    /// List them.
    List,
    /// Show one with all measurements.
    Show {
        /// Which.
        name: ImageName,
    },
    /// Take an approval back; with --dry-run, list the machines that last booted it.
    Revoke {
        /// Which.
        name: ImageName,
        #[command(flatten)]
        dry_run: DryRun,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum IgnitionCommand {
    /// The merge directive for the installer's config.
    Merge {
        /// Registration server, if not the one that runs on this state directory.
        #[arg(long, requires = "ca")]
        url: Option<BaseUrl>,
        /// CA bundle of that server.
        #[arg(long, requires = "url")]
        ca: Option<PathBuf>,
        /// File with the registration token.
        #[arg(long)]
        token_file: Option<PathBuf>,
    },
    /// The config of a machine, as the registration server would hand it out.
    Machine {
        /// Which.
        id: MachineId,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// Machine id or attempt id; without it, the last attempt of all.
    pub(crate) subject: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// List events, oldest first.
    List {
        /// Only events after this number.
        #[arg(long, default_value_t = 0)]
        after: u64,
        /// At most this many.
        #[arg(long, default_value_t = 1000)]
        limit: usize,
    },
    /// Check that no event was changed, removed or put in between.
    Verify,
}
