//! The command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::Parser;
use tec_core::service::caller::Account;
use tec_core::service::vault::OPENSEARCH_USERS;
use tec_support::program::LogArgs;

/// Brings a vault up from nothing, and serves those who bootstrap from it.
#[derive(Clone, Debug, Parser)]
#[command(name = "services-bootstrap", version)]
#[expect(clippy::exhaustive_structs, reason = "a command line, built field by field")]
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
#[expect(clippy::exhaustive_enums, reason = "a command line")]
pub enum Action {
    /// The controller: beside the vault, in its pod
    Serve(Box<Serve>),
    /// Print the password of a user of OpenSearch, for an admin who may exec into this container
    Password(Password),
    /// Run the vault, and empty its storage when the controller asks for it
    RunVault {
        /// Directory that the controller shares with the vault.
        #[arg(long, env = "TEC_VOLUME")]
        volume: PathBuf,
        /// Directory of the vault's storage.
        #[arg(long, env = "TEC_VAULT_STORAGE")]
        storage: PathBuf,
        /// The vault's program and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
}

/// Flags of the password's reader; defaults are those of the controller.
#[derive(Clone, Debug, clap::Args)]
#[expect(clippy::exhaustive_structs, reason = "a command line, built field by field")]
pub struct Password {
    /// Name of the user.
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(OPENSEARCH_USERS))]
    pub user: String,
    /// Socket of the vault.
    #[arg(long, env = "TEC_VAULT_SOCKET", default_value = "/run/vault/vault.sock")]
    pub vault_socket: PathBuf,
    /// Token for the vault, with the audience of this platform.
    #[arg(long, env = "TEC_TOKEN", default_value = "/var/run/secrets/tec/token")]
    pub token: PathBuf,
}

/// Flags of the controller.
#[derive(Clone, Debug, clap::Args)]
#[expect(clippy::exhaustive_structs, reason = "a command line, built field by field")]
pub struct Serve {
    /// Name of this pod; its number decides who initializes.
    #[arg(long, env = "POD_NAME")]
    pub pod: String,
    /// Identity of this pod, so that its events are shown beside it.
    #[arg(long, env = "POD_UID")]
    pub pod_uid: Option<String>,
    /// Namespace of this pod.
    #[arg(long, env = "POD_NAMESPACE")]
    pub namespace: String,
    /// StatefulSet of the vault.
    #[arg(long, env = "TEC_STATEFUL_SET", default_value = "vault")]
    pub stateful_set: String,
    /// Socket of the vault.
    #[arg(long, env = "TEC_VAULT_SOCKET", default_value = "/run/vault/vault.sock")]
    pub vault_socket: PathBuf,
    /// Directory of the wrapped key, on the vault's volume.
    #[arg(long, env = "TEC_VOLUME", default_value = "/vault/controller")]
    pub volume: PathBuf,
    /// Host and port of the API server.
    #[arg(long, env = "TEC_KUBERNETES", default_value = "kubernetes.default.svc:443")]
    pub kubernetes: String,
    /// Authority of the API server, in PEM.
    #[arg(
        long,
        env = "TEC_KUBERNETES_CA",
        default_value = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
    )]
    pub kubernetes_ca: PathBuf,
    /// Token for the API server.
    #[arg(
        long,
        env = "TEC_KUBERNETES_TOKEN",
        default_value = "/var/run/secrets/kubernetes.io/serviceaccount/token"
    )]
    pub kubernetes_token: PathBuf,
    /// Token for the vault, with the audience of this platform.
    #[arg(long, env = "TEC_TOKEN", default_value = "/var/run/secrets/tec/token")]
    pub token: PathBuf,
    /// Audience of the tokens that callers show.
    #[arg(long, env = "TEC_AUDIENCE", default_value = "tec-services")]
    pub audience: String,
    /// Where callers connect.
    #[arg(long, env = "TEC_LISTEN", default_value = "0.0.0.0:8443")]
    pub listen: SocketAddr,
    /// Where probes (/livez, /readyz) are served, in plain HTTP: a kubelet has no authority of ours.
    #[arg(long, env = "TEC_HEALTH_LISTEN")]
    pub health_listen: Option<SocketAddr>,
    /// Service account of this controller, namespace/name.
    #[arg(long, env = "TEC_CONTROLLER")]
    pub controller: Account,
    /// Service accounts of NATS servers.
    #[arg(long, env = "TEC_NATS", value_delimiter = ',', required = true)]
    pub nats: Vec<Account>,
    /// Service accounts of OpenSearch nodes.
    #[arg(long, env = "TEC_OPENSEARCH", value_delimiter = ',', required = true)]
    pub opensearch: Vec<Account>,
    /// Service accounts of collectors.
    #[arg(long, env = "TEC_COLLECTORS", value_delimiter = ',', required = true)]
    pub collectors: Vec<Account>,
    /// Service accounts of senders of telemetry.
    #[arg(long, env = "TEC_TRACERS", value_delimiter = ',', required = true)]
    pub tracers: Vec<Account>,
    /// Service accounts of viewers of telemetry.
    #[arg(long, env = "TEC_VIEWERS", value_delimiter = ',', required = true)]
    pub viewers: Vec<Account>,
    /// Namespaces whose service accounts are components.
    #[arg(long, env = "TEC_COMPONENT_NAMESPACES", value_delimiter = ',', required = true)]
    pub component_namespaces: Vec<String>,
    /// Life of certificates, in seconds.
    #[arg(long, env = "TEC_CERTIFICATE_SECONDS", default_value = "86400")]
    pub certificate_seconds: u32,
    /// Life of the JWTs of components, in seconds.
    #[arg(long, env = "TEC_USER_SECONDS", default_value = "3600")]
    pub user_seconds: u32,
    /// Calls that are served at the same time.
    #[arg(long, env = "TEC_CONCURRENCY", default_value = "32")]
    pub concurrency: usize,
    /// Calls of one service account in a minute, also all at once.
    #[arg(long, env = "TEC_CALLS_PER_MINUTE", default_value = "120")]
    pub calls_per_minute: NonZeroU32,
    /// Secret of the wrapping key.
    #[arg(long, env = "TEC_KEY_SECRET", default_value = "vault-aes")]
    pub key_secret: String,
    /// Secret of certificate and authorities.
    #[arg(long, env = "TEC_TLS_SECRET", default_value = "services-bootstrap-tls")]
    pub tls_secret: String,
    /// ConfigMap of the authorities alone.
    #[arg(long, env = "TEC_CA_CONFIG_MAP", default_value = "services-bootstrap-ca")]
    pub ca_config_map: String,
    /// Controllers of the vault's other pods, host and port, if its storage is shared with them: storage
    /// that is empty is then never initialized a second time.
    #[arg(long, env = "TEC_PEERS", value_delimiter = ',')]
    pub peers: Vec<String>,
    /// What protects the vault's root key, as its configuration says.
    #[arg(long, env = "TEC_SEAL", value_enum, default_value_t = Seal::Shamir)]
    pub seal: Seal,
    /// When a sealed vault is unsealed.
    #[arg(long, env = "TEC_UNSEAL", value_enum, default_value_t = Unseal::Start)]
    pub unseal: Unseal,
    /// ConfigMap of users of NATS that are shut out.
    #[arg(long, env = "TEC_NATS_REVOCATIONS", default_value = "nats-revocations")]
    pub nats_revocations: String,
    /// NATS, as tls URL, to push accounts to when users are shut out; without it a server learns of
    /// them when it starts.
    #[arg(long, env = "TEC_NATS_URL")]
    pub nats_url: Option<String>,
    /// Copies of the events that NATS stores, 1 to 5; without it, none are stored.
    #[arg(
        long,
        env = "TEC_EVENT_REPLICAS",
        requires = "nats_url",
        value_parser = clap::value_parser!(u32).range(1..=5)
    )]
    pub event_replicas: Option<u32>,
    /// OpenSearch, host and port, whose users get the passwords that the vault has; without it they are
    /// those of its first start for ever.
    #[arg(long, env = "TEC_OPENSEARCH_ADDRESS")]
    pub opensearch_address: Option<String>,
    /// Collector, host and port of OTLP over HTTP, that gets the log, too.
    #[arg(long, env = "TEC_OTLP")]
    pub otlp: Option<String>,
    /// Life of the passwords of OpenSearch's users, in seconds; a quarter of a year if it is left out.
    #[arg(
        long,
        env = "TEC_PASSWORD_SECONDS",
        default_value = "7776000",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub password_seconds: u32,
    /// Address of the API server as the vault reaches it, as URL, for a vault outside of a pod.
    #[arg(long, env = "TEC_VAULT_KUBERNETES", requires = "vault_kubernetes_ca")]
    pub vault_kubernetes: Option<String>,
    /// Authority of that address, in PEM. Whoever asks there needs no token of the vault's own.
    #[arg(long, env = "TEC_VAULT_KUBERNETES_CA", requires = "vault_kubernetes")]
    pub vault_kubernetes_ca: Option<PathBuf>,
}

/// When a sealed vault is unsealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[expect(clippy::exhaustive_enums, reason = "a command line")]
pub enum Unseal {
    /// Once after each start of this program or of the vault: who seals it meanwhile wants that.
    Start,
    /// Whenever it is found sealed.
    Always,
}

/// What protects the vault's root key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[expect(clippy::exhaustive_enums, reason = "a command line")]
pub enum Seal {
    /// A key that this program keeps wrapped, and gives at each start.
    Shamir,
    /// A key that the vault reads itself (OpenBao); what is kept wrapped is the recovery key.
    Static,
}
