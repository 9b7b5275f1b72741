//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use tec_support::program::LogArgs;

/// Writes the files that a service needs to start, and exits.
#[derive(Clone, Debug, Parser)]
#[command(name = "services-init", version)]
pub struct Args {
    /// Connection to the controller.
    #[command(flatten)]
    pub way: Way,
    /// Directory that the service reads
    #[arg(long, env = "TEC_OUT", global = true, default_value = "/shared")]
    pub out: PathBuf,
    /// Keep running, and renew the certificate and the password before they expire; for a sidecar,
    /// after the init container
    #[arg(long, env = "TEC_KEEP", global = true)]
    pub keep: bool,
    /// File with the process ID of the service, which gets SIGHUP after each renewal
    #[arg(long, env = "TEC_RELOAD", global = true, requires = "keep")]
    pub reload: Option<PathBuf>,
    /// The log.
    #[command(flatten)]
    pub log: LogArgs,
    /// The service.
    #[command(subcommand)]
    pub service: Service,
}

/// Connection to the controller, shared by its clients.
#[derive(Clone, Debug, clap::Args)]
pub struct Way {
    /// Host and port of the controller, as in its certificate: `services-bootstrap.<namespace>.svc:8443`.
    /// Required
    // clap does not allow a global flag to be required.
    #[arg(long, env = "TEC_CONTROLLER_ADDRESS", global = true)]
    pub controller: Option<String>,
    /// Name in the controller's certificate (default: the host of its address)
    #[arg(long, env = "TEC_CONTROLLER_NAME", global = true)]
    pub controller_name: Option<String>,
    /// File with the authorities, mounted from the Secret that the controller publishes
    #[arg(long, env = "TEC_CA", global = true, default_value = "/etc/tec/ca.crt")]
    pub ca: PathBuf,
    /// File with the pod's token for the controller; read again at each try
    #[arg(long, env = "TEC_TOKEN", global = true, default_value = "/var/run/secrets/tec/token")]
    pub token: PathBuf,
    /// Time limit for all attempts, in seconds
    #[arg(long, env = "TEC_DEADLINE_SECONDS", global = true, default_value = "300")]
    pub deadline_seconds: u32,
}

/// The service.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Service {
    /// A NATS server: certificate and nats.conf
    Nats {
        /// Address that clients connect to
        #[arg(long, env = "TEC_NATS_LISTEN", default_value = "0.0.0.0:4222")]
        listen: SocketAddr,
        /// Address of the monitor. With --keep, --storage and --reload, a server that could not store events
        /// because its disk was full is ended once there is space again
        #[arg(long, env = "TEC_NATS_MONITOR")]
        monitor: Option<SocketAddr>,
        /// Directory where the server keeps accounts that are pushed to it while it runs (default: accounts
        /// change only with a restart)
        #[arg(long, env = "TEC_NATS_ACCOUNTS")]
        accounts: Option<String>,
        /// Directory where the server stores events (default: store no events)
        #[arg(long, env = "TEC_NATS_STORAGE")]
        storage: Option<String>,
        /// Name of the server among those that store events
        #[arg(long, env = "TEC_NATS_NAME", default_value = "nats-0")]
        name: String,
        /// Address that the other servers connect to
        #[arg(long, env = "TEC_NATS_CLUSTER_LISTEN", default_value = "0.0.0.0:6222")]
        cluster_listen: SocketAddr,
        /// Host and port of every server that stores events together with this one, separated by commas
        /// (default: none)
        #[arg(long, env = "TEC_NATS_ROUTES", value_delimiter = ',', requires = "storage")]
        routes: Vec<String>,
    },
    /// An OpenSearch node: certificates and the files of the security plugin
    Opensearch {
        /// Name of the cluster
        #[arg(long, env = "TEC_OPENSEARCH_CLUSTER", default_value = "tec")]
        cluster: String,
        /// Address that clients connect to
        #[arg(long, env = "TEC_OPENSEARCH_LISTEN", default_value = "0.0.0.0:9200")]
        listen: SocketAddr,
        /// Address that other nodes connect to
        #[arg(long, env = "TEC_OPENSEARCH_TRANSPORT", default_value = "0.0.0.0:9300")]
        transport: SocketAddr,
        /// Heap of the JVM, in mebibytes; about half of the container's memory
        #[arg(long, env = "TEC_OPENSEARCH_HEAP", default_value = "1024")]
        heap: u32,
        /// Directory of data
        #[arg(long, env = "TEC_OPENSEARCH_DATA", default_value = "/usr/share/opensearch/data")]
        data: String,
        /// Directory of logs
        #[arg(long, env = "TEC_OPENSEARCH_LOGS", default_value = "/usr/share/opensearch/logs")]
        logs: String,
        /// Name in the node's own certificate: name.namespace.svc of its service account
        #[arg(long, env = "TEC_OPENSEARCH_NODE_NAME")]
        node_name: String,
    },
    /// A telemetry collector: certificate, password, configuration
    Collector {
        /// Address that tracers connect to, over gRPC
        #[arg(long, env = "TEC_COLLECTOR_LISTEN", default_value = "0.0.0.0:4317")]
        listen: SocketAddr,
        /// Address that log forwarders connect to, over HTTP
        #[arg(long, env = "TEC_COLLECTOR_HTTP", default_value = "0.0.0.0:4318")]
        listen_http: SocketAddr,
        /// URL of OpenSearch, https
        #[arg(long, env = "TEC_OPENSEARCH_URL")]
        opensearch: String,
    },
    /// A telemetry sender: certificate, and the environment of a tracer
    Sender {
        /// Host of the collector
        #[arg(long, env = "TEC_COLLECTOR_HOST")]
        host: String,
        /// Port of the collector for tracers
        #[arg(long, env = "TEC_COLLECTOR_GRPC", default_value = "4317")]
        grpc_port: u16,
    },
    /// A telemetry viewer: password of the user `viewer`
    Viewer,
}
