//! Requests and writes what each service needs.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use tec_core::port::Clock;
use tec_core::secret::SecretBytes;
use tec_services::shell::client::{
    NatsBootstrapRequest, OpenSearchBootstrapRequest, TelemetryBootstrapRequest,
    TelemetryBootstrapResponse, TelemetryKind,
};
use tec_services::telemetry::{Endpoint, Listen, TlsFiles};
use tec_services::{nats, opensearch, pace, telemetry};
use tec_support::SystemEntropy;

use crate::init::cli::{Args, Service};
use crate::init::output::Output;
use crate::init::own_key::OwnKey;
use crate::init::{connect, output};

/// Shortest interval between renewals.
const SHORTEST: Duration = Duration::from_secs(1);

/// Asks the controller, and writes the files.
/// Errors: the controller refused permanently, or a file cannot be written.
pub async fn run(args: &Args) -> anyhow::Result<()> {
    ask(args).await?.write(&args.out)
}

/// Renews the certificate and the password forever, beside the service: the certificate at two thirds of its
/// life, the password every five minutes. The service gets SIGHUP by the process ID in the file `reload`; a
/// service that reloads its certificate by itself needs none.
/// Errors: the controller refused permanently, a file cannot be written, or the service cannot be signaled.
pub async fn keep(args: &Args, reload: Option<&Path>, clock: &dyn Clock) -> anyhow::Result<()> {
    loop {
        let output = ask(args).await?;
        output.renew(&args.out)?;
        if let Some(file) = reload {
            signal(file, Signal::HUP)?;
        }
        let next = pace::renewal(output.next(clock.now()), &SystemEntropy).max(SHORTEST);
        tracing::info!(next_seconds = next.as_secs(), "renewed");
        tokio::time::sleep(next).await;
    }
}

/// Signals the process with the ID in this file. A service that is not running reads the new files when it
/// starts.
pub(crate) fn signal(file: &Path, signal: Signal) -> anyhow::Result<()> {
    let text = match std::fs::read_to_string(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        read => read.with_context(|| format!("cannot read {}", file.display()))?,
    };
    let pid = text.trim().parse().ok().and_then(Pid::from_raw);
    let pid = pid.with_context(|| format!("{} contains no process ID", file.display()))?;
    match kill_process(pid, signal) {
        Err(Errno::SRCH) => Ok(()),
        told => told.with_context(|| format!("cannot signal process {text}")),
    }
}

async fn ask(args: &Args) -> anyhow::Result<Output> {
    Ok(match &args.service {
        Service::Nats { .. } => nats(args).await?,
        Service::Opensearch { .. } => opensearch(args).await?,
        Service::Collector { listen, listen_http, opensearch: url } => {
            let own = OwnKey::generate()?;
            let answer = telemetry(args, TelemetryKind::Collector, Some(&own)).await?;
            let mut output = Output::default();
            output.tls("", own.complete(answer.tls)?);
            let password = SecretBytes::new(answer.opensearch_password.clone());
            output.login(&opensearch::credentials("telemetry", &password));
            output.password(answer.opensearch_password);
            let login = path(args, output::LOGIN);
            let listen = Listen { grpc: *listen, http: *listen_http };
            let text = telemetry::collector(&listen, &tls_files(args), url, &login);
            output.file("collector.yaml", text);
            output
        }
        Service::Sender { host, grpc_port } => {
            let own = OwnKey::generate()?;
            let answer = telemetry(args, TelemetryKind::Sender, Some(&own)).await?;
            let mut output = Output::default();
            output.tls("", own.complete(answer.tls)?);
            let endpoint = Endpoint { host: host.clone(), port: *grpc_port };
            let variables = telemetry::tracer(&endpoint, &tls_files(args));
            let lines = variables.iter().map(|(name, value)| format!("{name}={value}\n"));
            output.file("tracer.env", lines.collect::<String>());
            output
        }
        Service::Viewer => {
            let answer = telemetry(args, TelemetryKind::Viewer, None).await?;
            let mut output = Output::default();
            output.password(answer.opensearch_password);
            let mounted = &args.way.ca;
            let authorities = std::fs::read(mounted)
                .with_context(|| format!("cannot read {}", mounted.display()))?;
            output.public("ca.crt", authorities);
            output
        }
    })
}

fn path(args: &Args, name: &str) -> String {
    args.out.join(name).display().to_string()
}

fn tls_files(args: &Args) -> TlsFiles {
    TlsFiles { cert: path(args, "tls.crt"), key: path(args, "tls.key"), ca: path(args, "ca.crt") }
}

/// Identifies a try in the controller's audit log.
fn request_id(args: &Args) -> String {
    let service = match args.service {
        Service::Nats { .. } => "nats",
        Service::Opensearch { .. } => "opensearch",
        Service::Collector { .. } => "collector",
        Service::Sender { .. } => "sender",
        Service::Viewer => "viewer",
    };
    format!("init-{service}-{}", std::process::id())
}

async fn nats(args: &Args) -> anyhow::Result<Output> {
    let Service::Nats { listen, monitor, accounts: dir, storage, name, cluster_listen, routes } =
        &args.service
    else {
        anyhow::bail!("internal error: the service is not NATS");
    };
    let own = OwnKey::generate()?;
    let answer = connect::persist(&args.way, |mut client, token| {
        let request = NatsBootstrapRequest {
            service_account_token: token,
            request_id: request_id(args),
            certificate_request: own.request(),
        };
        async move { client.bootstrap_nats(request).await }
    });
    let answer = answer.await?.into_inner();
    let accounts = answer.accounts.iter().map(|(key, jwt)| Ok((key.parse()?, jwt.clone())));
    let tls = tls_files(args);
    let config = nats::ServerConfig {
        listen: *listen,
        monitor: *monitor,
        operator: answer.operator_jwt.clone(),
        system_account: answer
            .system_account
            .parse()
            .context("invalid key of the system account")?,
        accounts: accounts
            .collect::<Result<_, nats::PublicKeyError>>()
            .context("invalid key of an account")?,
        resolver: match dir.clone() {
            Some(dir) => nats::Resolver::Full { dir },
            None => nats::Resolver::Memory,
        },
        storage: storage.clone().map(|dir| nats::Storage {
            name: name.clone(),
            dir,
            cluster: *cluster_listen,
            routes: routes.clone(),
        }),
        pid_file: path(args, "nats.pid"),
        cert_file: tls.cert,
        key_file: tls.key,
        ca_file: tls.ca,
    };
    let mut output = Output::default();
    output.file("nats.conf", config.render().context("cannot render nats.conf")?);
    output.tls("", own.complete(answer.tls)?);
    Ok(output)
}

async fn opensearch(args: &Args) -> anyhow::Result<Output> {
    let Service::Opensearch { cluster, listen, transport, heap, data, logs, node_name } =
        &args.service
    else {
        anyhow::bail!("internal error: the service is not OpenSearch");
    };
    let answer = connect::persist(&args.way, |mut client, token| {
        let request = OpenSearchBootstrapRequest {
            service_account_token: token,
            request_id: request_id(args),
        };
        async move { client.bootstrap_open_search(request).await }
    });
    let mut answer = answer.await?.into_inner();
    let mut hash = |user: &str| {
        let hash = answer.password_hashes.remove(user);
        hash.with_context(|| format!("the controller sent no password hash for {user}"))
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
        listen: *listen,
        transport: *transport,
        heap: *heap,
        nodes_dn: vec![format!("CN={node_name}")],
    };
    let mut output = Output::default();
    for (path, text) in opensearch::files(&node, &hashes) {
        output.file(path, text);
    }
    // The admin certificate stays off the node's volume.
    let tls = answer.node_tls.context("the controller sent no certificate")?;
    output.tls("certs/", tls);
    Ok(output)
}

async fn telemetry(
    args: &Args,
    kind: TelemetryKind,
    own: Option<&OwnKey>,
) -> anyhow::Result<TelemetryBootstrapResponse> {
    let answer = connect::persist(&args.way, |mut client, token| {
        let request = TelemetryBootstrapRequest {
            service_account_token: token,
            request_id: request_id(args),
            kind: kind.into(),
            certificate_request: own.map_or_else(String::new, OwnKey::request),
        };
        async move { client.bootstrap_telemetry(request).await }
    });
    Ok(answer.await?.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_that_does_not_run_yet_or_ended_needs_not_be_told() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("nats.pid");
        signal(&file, Signal::HUP).unwrap();
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        std::fs::write(&file, ended.id().to_string()).unwrap();
        signal(&file, Signal::HUP).unwrap();
        std::fs::write(&file, "none").unwrap();
        signal(&file, Signal::HUP).unwrap_err();
    }
}
