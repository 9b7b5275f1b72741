//! What each service needs.

use anyhow::Context as _;
use tec_core::service::nats;
use tec_core::service::opensearch;
use tec_core::service::telemetry;
use tec_core::service::telemetry::TlsFiles;
use tec_k8s::service::client::NatsBootstrapRequest;
use tec_k8s::service::client::OpenSearchBootstrapRequest;
use tec_k8s::service::client::TelemetryBootstrapRequest;
use tec_k8s::service::client::TelemetryBootstrapResponse;
use tec_k8s::service::client::TelemetryKind;
use tec_k8s::service::client::bootstrap_client::BootstrapClient;
use tonic::transport::Channel;

use crate::cli::Args;
use crate::cli::Service;
use crate::connect;
use crate::output::Output;

type Client = BootstrapClient<Channel>;

/// Asks, and writes.
///
/// # Errors
/// The controller refused for good, or a file cannot be written.
pub async fn run(args: &Args, authorities: &str) -> anyhow::Result<()> {
    let client = connect::client(&args.way, authorities)?;
    let output = match &args.service {
        Service::Nats { .. } => nats(args, client).await?,
        Service::Opensearch { .. } => opensearch(args, client).await?,
        Service::Collector { listen, opensearch } => {
            let answer = telemetry(args, client, TelemetryKind::Collector).await?;
            let mut output = Output::default();
            output.tls("", answer.tls)?;
            output.file("password", answer.opensearch_password);
            let password = path(args, "password");
            let text = telemetry::collector(*listen, &tls_files(args), opensearch, &password);
            output.file("collector.yaml", text);
            output
        }
        Service::Sender { host, port } => {
            let answer = telemetry(args, client, TelemetryKind::Sender).await?;
            let mut output = Output::default();
            output.tls("", answer.tls)?;
            let text = telemetry::fluent_bit(host, *port, &tls_files(args))?;
            output.file("fluent-bit-output.conf", text);
            output
        }
    };
    output.write(&args.out)
}

fn path(args: &Args, name: &str) -> String {
    args.out.join(name).display().to_string()
}

fn tls_files(args: &Args) -> TlsFiles {
    TlsFiles {
        cert: path(args, "tls.crt"),
        key: path(args, "tls.key"),
        ca: path(args, "ca.crt"),
    }
}

/// So that a try can be found in the controller's audit.
fn request_id(args: &Args) -> String {
    let service = match args.service {
        Service::Nats { .. } => "nats",
        Service::Opensearch { .. } => "opensearch",
        Service::Collector { .. } => "collector",
        Service::Sender { .. } => "sender",
    };
    format!("init-{service}-{}", std::process::id())
}

async fn nats(args: &Args, client: Client) -> anyhow::Result<Output> {
    let Service::Nats {
        listen,
        monitor,
        accounts: dir,
    } = &args.service
    else {
        anyhow::bail!("this is for NATS");
    };
    let answer = connect::persist(&args.way, |token| {
        let request = NatsBootstrapRequest {
            service_account_token: token,
            request_id: request_id(args),
        };
        let mut client = client.clone();
        async move { client.bootstrap_nats(request).await }
    });
    let answer = answer.await?.into_inner();
    let accounts = answer
        .accounts
        .iter()
        .map(|(key, jwt)| Ok((key.parse()?, jwt.clone())));
    let tls = tls_files(args);
    let config = nats::ServerConfig {
        listen: *listen,
        monitor: *monitor,
        operator: answer.operator_jwt.clone(),
        system_account: answer
            .system_account
            .parse()
            .context("the system account")?,
        accounts: accounts
            .collect::<Result<_, nats::PublicKeyError>>()
            .context("the key of an account")?,
        resolver: match dir.clone() {
            Some(dir) => nats::Resolver::Full { dir },
            None => nats::Resolver::Memory,
        },
        cert_file: tls.cert,
        key_file: tls.key,
        ca_file: tls.ca,
    };
    let mut output = Output::default();
    output.file("nats.conf", config.render().context("render nats.conf")?);
    output.tls("", answer.tls)?;
    Ok(output)
}

async fn opensearch(args: &Args, client: Client) -> anyhow::Result<Output> {
    let Service::Opensearch {
        cluster,
        host,
        data,
        logs,
        node_name,
    } = &args.service
    else {
        anyhow::bail!("this is for OpenSearch");
    };
    let answer = connect::persist(&args.way, |token| {
        let request = OpenSearchBootstrapRequest {
            service_account_token: token,
            request_id: request_id(args),
        };
        let mut client = client.clone();
        async move { client.bootstrap_open_search(request).await }
    });
    let mut answer = answer.await?.into_inner();
    let mut hash = |user: &str| {
        let hash = answer.password_hashes.remove(user);
        hash.with_context(|| format!("the controller sent no hash of {user}"))
    };
    let hashes = opensearch::Hashes {
        admin: hash("admin")?,
        telemetry: hash("telemetry")?,
        viewer: hash("viewer")?,
    };
    let node = opensearch::Node {
        cluster: cluster.clone(),
        data: data.clone(),
        logs: logs.clone(),
        host: host.clone(),
        // The ports that OpenSearch is known by.
        http_port: 9200,
        transport_port: 9300,
        nodes_dn: vec![format!("CN={node_name}")],
    };
    let mut output = Output::default();
    for (path, text) in opensearch::files(&node, &hashes) {
        output.file(path, text);
    }
    // The certificate that may do everything stays out of the node's volume.
    output.tls("certs/", answer.node_tls)?;
    Ok(output)
}

async fn telemetry(
    args: &Args,
    client: Client,
    kind: TelemetryKind,
) -> anyhow::Result<TelemetryBootstrapResponse> {
    let answer = connect::persist(&args.way, |token| {
        let request = TelemetryBootstrapRequest {
            service_account_token: token,
            request_id: request_id(args),
            kind: kind.into(),
        };
        let mut client = client.clone();
        async move { client.bootstrap_telemetry(request).await }
    });
    Ok(answer.await?.into_inner())
}
