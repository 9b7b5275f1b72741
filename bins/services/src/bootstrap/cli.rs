//! The command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::Parser;
use tec_services::caller::Account;
use tec_services::vault::OPENSEARCH_USERS;
use tec_services::vault::snapshot::SnapshotFile;
use tec_support::program::LogArgs;

/// Sets up a vault from scratch, and serves the services that bootstrap from it.
#[derive(Clone, Debug, Parser)]
#[command(name = "services-bootstrap", version)]
pub struct Args {
    /// The log.
    #[command(flatten)]
    pub log: LogArgs,
    /// What to do.
    #[command(subcommand)]
    pub command: Action,
}

/// What to do.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Action {
    /// Run the controller beside the vault, in its pod
    Serve(Box<Serve>),
    /// Print the password of an OpenSearch user, for an admin who may exec into this container
    Password(Password),
    /// Restore an empty vault from a snapshot of a vault with the same namespace and StatefulSet
    Restore(Restore),
    /// List the snapshots of the vault, or copy their files out of this container or into it
    Snapshots {
        /// Directory of the snapshots
        #[arg(long, env = "TEC_SNAPSHOTS", default_value = "/vault/snapshots", global = true)]
        snapshots: PathBuf,
        /// What to do.
        #[command(subcommand)]
        command: Copy,
    },
    /// Run the vault, and empty its storage when the controller asks for it
    RunVault {
        /// Directory that the controller shares with the vault
        #[arg(long, env = "TEC_VOLUME")]
        volume: PathBuf,
        /// Directory of the vault's storage
        #[arg(long, env = "TEC_VAULT_STORAGE")]
        storage: PathBuf,
        /// File of the vault's certificate, which the vault reads again when it changes (default: none)
        #[arg(long, env = "TEC_VAULT_CERTIFICATE")]
        certificate: Option<PathBuf>,
        /// Program of the vault and its arguments
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
}

/// What to do with the files of snapshots; `kubectl exec` needs no other program in the container.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Copy {
    /// Print the names of the snapshots, the latest one last
    List,
    /// Print the digests of the snapshots and of their keys, in the format of sha256sum
    Sums,
    /// Write a file to standard output
    Get {
        /// Name of a snapshot, or of the wrapped key that belongs to it
        name: SnapshotFile,
    },
    /// Store standard input as a file, unless another one has its name. It must be whole
    Put {
        /// Name of a snapshot, or of the wrapped key that belongs to it
        name: SnapshotFile,
    },
}

/// Flags of the password command; the defaults match the controller's.
#[derive(Clone, Debug, clap::Args)]
pub struct Password {
    /// Name of the user
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(OPENSEARCH_USERS))]
    pub user: String,
    /// Socket of the vault
    #[arg(long, env = "TEC_VAULT_SOCKET", default_value = "/run/vault/vault.sock")]
    pub vault_socket: PathBuf,
    /// Token for the vault, with the audience of this platform
    #[arg(long, env = "TEC_TOKEN", default_value = "/var/run/secrets/tec/token")]
    pub token: PathBuf,
}

/// Flags of the restore command; the defaults match the controller's.
#[derive(Clone, Debug, clap::Args)]
pub struct Restore {
    /// File of the snapshot
    #[arg(long)]
    pub snapshot: PathBuf,
    /// File of the wrapped key (default: the file next to the snapshot, with the ending .key)
    #[arg(long)]
    pub wrapped_key: Option<PathBuf>,
    /// The vault and its cluster.
    #[command(flatten)]
    pub place: Place,
}

/// The vault and its cluster, shared by the controller and a restore.
#[derive(Clone, Debug, clap::Args)]
pub struct Place {
    /// Namespace of the vault
    #[arg(long, env = "POD_NAMESPACE")]
    pub namespace: String,
    /// StatefulSet of the vault
    #[arg(long, env = "TEC_STATEFUL_SET", default_value = "vault")]
    pub stateful_set: String,
    /// Socket of the vault
    #[arg(long, env = "TEC_VAULT_SOCKET", default_value = "/run/vault/vault.sock")]
    pub vault_socket: PathBuf,
    /// Directory of the wrapped key, on the vault's volume
    #[arg(long, env = "TEC_VOLUME", default_value = "/vault/controller")]
    pub volume: PathBuf,
    /// Host and port of the API server
    #[arg(long, env = "TEC_KUBERNETES", default_value = "kubernetes.default.svc:443")]
    pub kubernetes: String,
    /// CA of the API server, PEM
    #[arg(
        long,
        env = "TEC_KUBERNETES_CA",
        default_value = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
    )]
    pub kubernetes_ca: PathBuf,
    /// Token for the API server
    #[arg(
        long,
        env = "TEC_KUBERNETES_TOKEN",
        default_value = "/var/run/secrets/kubernetes.io/serviceaccount/token"
    )]
    pub kubernetes_token: PathBuf,
    /// Name of the Secret with the wrapping key
    #[arg(long, env = "TEC_KEY_SECRET", default_value = "vault-aes")]
    pub key_secret: String,
}

/// Flags of the controller.
#[derive(Clone, Debug, clap::Args)]
pub struct Serve {
    /// Name of this pod; its ordinal decides who initializes the vault
    #[arg(long, env = "POD_NAME")]
    pub pod: String,
    /// UID of this pod, so that its events are shown with it
    #[arg(long, env = "POD_UID")]
    pub pod_uid: Option<String>,
    /// The vault and its cluster.
    #[command(flatten)]
    pub place: Place,
    /// Token for the vault, with the audience of this platform
    #[arg(long, env = "TEC_TOKEN", default_value = "/var/run/secrets/tec/token")]
    pub token: PathBuf,
    /// Required audience of callers' tokens
    #[arg(long, env = "TEC_AUDIENCE", default_value = "tec-services")]
    pub audience: String,
    /// Address that callers connect to
    #[arg(long, env = "TEC_LISTEN", default_value = "0.0.0.0:8443")]
    pub listen: SocketAddr,
    /// Address of the probes (/livez, /readyz), plain HTTP because a kubelet does not have this CA
    #[arg(long, env = "TEC_HEALTH_LISTEN")]
    pub health_listen: Option<SocketAddr>,
    /// Service account of this controller, namespace/name
    #[arg(long, env = "TEC_CONTROLLER")]
    pub controller: Account,
    /// Service accounts of NATS servers, namespace/name, separated by commas
    #[arg(long, env = "TEC_NATS", value_delimiter = ',', required = true)]
    pub nats: Vec<Account>,
    /// Service accounts of OpenSearch nodes, in the same form
    #[arg(long, env = "TEC_OPENSEARCH", value_delimiter = ',', required = true)]
    pub opensearch: Vec<Account>,
    /// Service accounts of collectors, in the same form
    #[arg(long, env = "TEC_COLLECTORS", value_delimiter = ',', required = true)]
    pub collectors: Vec<Account>,
    /// Service accounts of telemetry senders, in the same form
    #[arg(long, env = "TEC_TRACERS", value_delimiter = ',', required = true)]
    pub tracers: Vec<Account>,
    /// Service accounts of telemetry viewers, in the same form
    #[arg(long, env = "TEC_VIEWERS", value_delimiter = ',', required = true)]
    pub viewers: Vec<Account>,
    /// Namespaces whose service accounts are components
    #[arg(long, env = "TEC_COMPONENT_NAMESPACES", value_delimiter = ',', required = true)]
    pub component_namespaces: Vec<String>,
    /// Lifetime of certificates, in seconds
    #[arg(long, env = "TEC_CERTIFICATE_SECONDS", default_value = "86400")]
    pub certificate_seconds: u32,
    /// Lifetime of the JWTs of components, in seconds
    #[arg(long, env = "TEC_USER_SECONDS", default_value = "3600")]
    pub user_seconds: u32,
    /// Maximum number of concurrent calls
    #[arg(long, env = "TEC_CONCURRENCY", default_value = "32")]
    pub concurrency: usize,
    /// Maximum calls per minute of one service account; they may all come at the same time
    #[arg(long, env = "TEC_CALLS_PER_MINUTE", default_value = "120")]
    pub calls_per_minute: NonZeroU32,
    /// Name of the Secret with the certificate and the authorities
    #[arg(long, env = "TEC_TLS_SECRET", default_value = "services-bootstrap-tls")]
    pub tls_secret: String,
    /// Name of the ConfigMap with the authorities only
    #[arg(long, env = "TEC_CA_CONFIG_MAP", default_value = "services-bootstrap-ca")]
    pub ca_config_map: String,
    /// Controllers of the vault's other pods, host and port, if they share its storage: empty storage is then
    /// never initialized a second time
    #[arg(long, env = "TEC_PEERS", value_delimiter = ',')]
    pub peers: Vec<String>,
    /// Protection of the vault's root key, as in its configuration
    #[arg(long, env = "TEC_SEAL", value_enum, default_value_t = Seal::Shamir)]
    pub seal: Seal,
    /// When to unseal a sealed vault
    #[arg(long, env = "TEC_UNSEAL", value_enum, default_value_t = Unseal::Start)]
    pub unseal: Unseal,
    /// Name of the ConfigMap with the locked-out NATS users
    #[arg(long, env = "TEC_NATS_REVOCATIONS", default_value = "nats-revocations")]
    pub nats_revocations: String,
    /// URL of NATS (tls://), to push accounts to when users are locked out (default: servers read
    /// the list only when they start)
    #[arg(long, env = "TEC_NATS_URL")]
    pub nats_url: Option<String>,
    /// Replicas of the events that NATS stores, 1 to 5 (default: store no events)
    #[arg(
        long,
        env = "TEC_EVENT_REPLICAS",
        requires = "nats_url",
        value_parser = clap::value_parser!(u32).range(1..=5)
    )]
    pub event_replicas: Option<u32>,
    /// Host and port of OpenSearch, whose users get the passwords in the vault (default: keep the passwords
    /// of its first start forever)
    #[arg(long, env = "TEC_OPENSEARCH_ADDRESS")]
    pub opensearch_address: Option<String>,
    /// Host and port of a collector (OTLP over HTTP) that also receives the log
    #[arg(long, env = "TEC_OTLP")]
    pub otlp: Option<String>,
    /// Lifetime of the passwords of OpenSearch users, in seconds
    #[arg(
        long,
        env = "TEC_PASSWORD_SECONDS",
        default_value = "7776000",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub password_seconds: u32,
    /// Directory for snapshots of the vault (default: take none)
    #[arg(long, env = "TEC_SNAPSHOTS")]
    pub snapshots: Option<PathBuf>,
    /// Interval between snapshots, in hours
    #[arg(
        long,
        env = "TEC_SNAPSHOT_HOURS",
        default_value = "24",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub snapshot_hours: u32,
    /// Number of snapshots that are kept
    #[arg(
        long,
        env = "TEC_SNAPSHOT_KEEP",
        default_value = "7",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub snapshot_keep: u32,
    /// URL of the API server as the vault reaches it, for a vault outside a pod
    #[arg(long, env = "TEC_VAULT_KUBERNETES", requires = "vault_kubernetes_ca")]
    pub vault_kubernetes: Option<String>,
    /// CA of that URL, PEM. The vault then uses no token of its own to review callers' tokens
    #[arg(long, env = "TEC_VAULT_KUBERNETES_CA", requires = "vault_kubernetes")]
    pub vault_kubernetes_ca: Option<PathBuf>,
}

/// When to unseal a sealed vault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Unseal {
    /// Once after each start of this program or of the vault; a vault that is sealed later stays sealed
    Start,
    /// Whenever it is sealed
    Always,
}

/// Protection of the vault's root key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Seal {
    /// A key that this program keeps wrapped, and supplies at each start
    Shamir,
    /// A key that the vault reads itself (OpenBao); the wrapped key is then the recovery key
    Static,
}
