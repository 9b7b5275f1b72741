//! From an empty directory to a component that publishes: every part a process of its own, as in pods.

mod telemetry;

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::kube::{Guarded, eventually, program};
use crate::packages::tool;
use anyhow::Context as _;
use tec_core::service::caller::Account;
use tec_k8s::service::broker::broker_client::BrokerClient;
use tec_k8s::service::broker::{PublishRequest, SubscribeRequest};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

use crate::services::bao::Seal;
use crate::services::cluster::Cluster;
use crate::services::nats::Nats;
use crate::services::opensearch::Place;
use crate::services::platform::Platform;
use crate::services::rotation;
use crate::services::rotation::Load;
use crate::services::stage::Stage;
use tec_support::testing::free_address;

/// It takes no longer, with OpenSearch or without.
const LIMITS: (Duration, Duration) = (Duration::from_mins(5), Duration::from_mins(1));

/// Whether OpenSearch and telemetry are played, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "they are or they are not")]
pub enum Extent {
    /// To a component that publishes.
    Messages,
    /// To a log line that is found, too.
    Telemetry,
}

/// Tells what happens, and when.
struct Story<'a> {
    begin: Instant,
    out: &'a mut (dyn Write + Send),
}

impl Story<'_> {
    fn say(&mut self, line: &str) -> anyhow::Result<()> {
        let seconds = self.begin.elapsed().as_secs_f32();
        Ok(writeln!(self.out, "{seconds:>6.1} s  {line}")?)
    }
}

/// Plays it.
///
/// # Errors
/// A part does not come up, which has its log, or it took longer than it may.
pub async fn play(extent: Extent, out: &mut (dyn Write + Send)) -> anyhow::Result<()> {
    // Another provider that somebody installed before is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut story = Story { begin: Instant::now(), out };
    let cluster = Cluster::alone().await?;
    story.say("Kubernetes: an API server with service accounts, and nothing else")?;
    let stage = Stage::prepare(cluster, &Seal::Shamir)?;
    let _vault = vault(&stage).await?;
    let place = Place::on(&stage)?;
    let (_controller, address) = controller(&stage, &place).await?;
    story
        .say("controller: the vault is initialized, unsealed and set up; no root token is left")?;
    let (_nats, url) = nats(&stage, address).await?;
    story.say("NATS: services-init wrote its configuration, and it takes it")?;
    let account = stage.cluster.component("comp-a").await?;
    let collector = free_address()?;
    let (_broker, face) = broker(&stage, &account, address, &url, collector).await?;
    story.say("broker: connected with a JWT for its own key, and serves its runtime")?;
    let said = speak(&stage, &account, face).await?;
    story.say(&format!("runtime: published on NATS and read it again: {said:?}"))?;
    let limit = match extent {
        Extent::Messages => LIMITS.1,
        Extent::Telemetry => {
            telemetry::play(&stage, place, (address, collector), &mut story).await?;
            LIMITS.0
        }
    };
    anyhow::ensure!(story.begin.elapsed() < limit, "it took longer than {limit:?}");
    Ok(())
}

async fn vault(stage: &Stage) -> anyhow::Result<Guarded> {
    let mut arguments = vec!["run-vault".into(), "--volume".into()];
    arguments.extend([stage.path("volume").into(), "--storage".into()]);
    arguments.extend([stage.bao.storage().into_os_string(), "--".into()]);
    // SIGKILL of the guard, which is how it ends here, would leave the vault behind.
    arguments.extend(["setpriv", "--pdeathsig", "KILL"].map(Into::into));
    arguments.extend(stage.bao.command()?);
    let program = program("services-bootstrap")?;
    let process = Guarded::start("run-vault", &program, arguments, &[], &stage.logs)?;
    stage.bao.wait().await?;
    Ok(process)
}

async fn controller(stage: &Stage, opensearch: &Place) -> anyhow::Result<(Guarded, SocketAddr)> {
    let address = free_address()?;
    let listen = address.to_string();
    let flags = ["--listen", &listen, "--opensearch-address", &opensearch.address];
    let flags = stage.flags(&flags).await?;
    let arguments = std::iter::once("serve".to_owned()).chain(flags);
    let program = program("services-bootstrap")?;
    let process = Guarded::start("controller", &program, arguments, &[], &stage.logs)?;
    let up = eventually("a controller that published its certificate", async || {
        Ok(stage.authorities().await.is_ok())
    });
    let up = up.await;
    let log = process.log()?;
    up.context(log)?;
    Ok((process, address))
}

async fn nats(stage: &Stage, controller: SocketAddr) -> anyhow::Result<(Guarded, String)> {
    let listen = free_address()?;
    let flags = ["nats", "--listen", &listen.to_string()];
    let shared = init(stage, "nats", controller, &flags).await?;
    let config = shared.join("nats.conf");
    let arguments = ["-c".as_ref(), config.as_os_str()];
    let server = tool("bin/nats-server")?;
    let process = Guarded::start("nats-server", &server, arguments, &[], &stage.logs)?;
    listens(&process, listen).await?;
    Ok((process, format!("tls://localhost:{}", listen.port())))
}

/// The init container of an account's pod; returns the volume that it wrote.
async fn init(
    stage: &Stage,
    account: &str,
    controller: SocketAddr,
    flags: &[&str],
) -> anyhow::Result<PathBuf> {
    let account = stage.cluster.account(account)?;
    let mut init = Command::new(program("services-init")?);
    init.args(flags).args(stage.mount(&account, &controller.to_string()).await?);
    stage.logs.must(&mut init)?;
    Ok(stage.shared(&account))
}

async fn broker(
    stage: &Stage,
    account: &Account,
    controller: SocketAddr,
    nats: &str,
    collector: SocketAddr,
) -> anyhow::Result<(Guarded, SocketAddr)> {
    let listen = free_address()?;
    let mut arguments = stage.mount(account, &controller.to_string()).await?;
    let address = listen.to_string();
    arguments.extend(["--nats", nats, "--listen", &address].map(str::to_owned));
    // It comes up later, or never; a broker works without it.
    let otlp = format!("localhost:{}", collector.port());
    arguments.extend(["--otlp".to_owned(), otlp]);
    let program = program("services-broker")?;
    let process = Guarded::start("broker", &program, arguments, &[], &stage.logs)?;
    listens(&process, listen).await?;
    Ok((process, listen))
}

async fn listens(process: &Guarded, address: SocketAddr) -> anyhow::Result<()> {
    let up = eventually("a process that listens", async || {
        Ok(tokio::net::TcpStream::connect(address).await.is_ok())
    });
    let up = up.await;
    let log = process.log()?;
    up.context(log)
}

/// What a runtime does: it has the authorities from the shared volume, and no key at all.
async fn speak(stage: &Stage, account: &Account, broker: SocketAddr) -> anyhow::Result<String> {
    let mut client = runtime(&stage.shared(account), broker).await?;
    let subject = format!("evt.{}.{}.demo", account.namespace(), account.name());
    let request = SubscribeRequest { subject: subject.clone() };
    let mut messages = client.subscribe(request).await?.into_inner();
    let payload = b"hello".to_vec();
    client.publish(PublishRequest { subject, payload }).await?;
    let message = messages.message().await?.context("the broker ended the stream")?;
    Ok(String::from_utf8(message.payload)?)
}

async fn runtime(shared: &Path, broker: SocketAddr) -> anyhow::Result<BrokerClient<Channel>> {
    let authorities = std::fs::read(shared.join("ca.crt"))?;
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(authorities))
        .domain_name("localhost");
    let endpoint = Endpoint::from_shared(format!("https://{broker}"))?.tls_config(tls)?;
    Ok(BrokerClient::new(endpoint.connect().await?))
}

/// Twenty components that publish for two minutes with JWTs and certificates of twenty seconds.
///
/// # Errors
/// A part does not come up, or a message was lost, doubled or refused.
pub async fn rotate(out: &mut (dyn Write + Send)) -> anyhow::Result<()> {
    let load =
        Load { components: 20, each: Duration::from_millis(100), lasts: Duration::from_mins(2) };
    let flags = ["--user-seconds", "20", "--certificate-seconds", "20"];
    let mut platform = Platform::new(&flags).await?;
    platform.keep()?;
    let nats = Nats::start(&platform, "nats-server").await?;
    let outcome = rotation::run(&platform, &nats, load).await?;
    writeln!(out, "rotation  {outcome}")?;
    let bad = outcome.lost + outcome.doubled + outcome.refused;
    anyhow::ensure!(bad == 0, "renewals are not free of loss");
    Ok(())
}
