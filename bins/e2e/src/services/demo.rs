//! From an empty cluster to a component that publishes and a log line that the viewer finds: the chart and
//! the example on a node with real pods, installed as an administrator would.

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use tec_core::secret::SecretBytes;
use tec_support::certificate::Certificate;

use crate::packages;
use crate::pods::{APPS, PLATFORM, Platform, until};

/// Longest time for a platform to start from nothing, on a node that has the images.
pub const UP: Duration = Duration::from_secs(90);
const SOON: Duration = Duration::from_mins(2);
/// Deadline for an answer of OpenSearch.
const DEADLINE: Duration = Duration::from_secs(30);
/// The line that a broker logs once it is connected.
const LINE: &str = "connected to NATS";
/// OpenSearch, as its certificate names it.
const HOST: &str = "opensearch.platform.svc";
const PORT: u16 = 9200;
/// Where a collector writes logs (OpenTelemetry collector, exporter opensearch, its default).
const INDEX: &str = "/ss4o_logs-default-namespace";
/// All parts of the chart with telemetry.
const SETS: [&str; 4] =
    ["statefulset/vault", "statefulset/nats", "deployment/collector", "statefulset/opensearch"];
const VALUES: [&str; 2] = ["telemetry.enabled=true", "telemetry.heap=512"];

/// Prints what happens, and when.
struct Story<'a> {
    begin: Instant,
    out: &'a mut dyn Write,
}

impl Story<'_> {
    fn say(&mut self, line: &str) -> anyhow::Result<()> {
        let seconds = self.begin.elapsed().as_secs_f32();
        Ok(writeln!(self.out, "{seconds:>6.1} s  {line}")?)
    }
}

/// Plays the demo; returns the platform, which keeps running. The calling thread is in its network from then
/// on.
pub fn play(out: &mut dyn Write) -> anyhow::Result<Platform> {
    let platform = Platform::begin()?;
    platform.load_telemetry()?;
    let mut story = Story { begin: Instant::now(), out };
    story.say("Kubernetes: a node with real pods, all images, and nothing else")?;
    platform.install(&VALUES)?;
    SETS.iter().try_for_each(|set| platform.ready(PLATFORM, set, UP))?;
    let took = story.begin.elapsed();
    anyhow::ensure!(took < UP, "the pods were ready after {took:?}");
    story.say("chart: vault, NATS, OpenSearch and collector are ready")?;
    platform.share_authorities()?;
    platform.apply(APPS, &component(platform.files())?)?;
    platform.ready(APPS, "deployment/hello", SOON)?;
    let heard = heard(&platform)?;
    story.say(&format!("component: published on NATS and read it again: {heard:?}"))?;
    let viewer = password(&platform, "viewer")?;
    story.say("viewer: an admin was shown the password")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(find(&platform, &viewer))?;
    story.say("viewer: found the broker's log line, and was refused when it tried to write one")?;
    Ok(platform)
}

/// The example, whose broker sends its log to the collector, too.
fn component(files: &Path) -> anyhow::Result<PathBuf> {
    let text = packages::component()?;
    let flag = "            - --stored-events\n";
    let with = format!("{flag}            - --otlp=collector.{PLATFORM}.svc:4318\n");
    anyhow::ensure!(text.contains(flag), "the example has no such line: {flag}");
    let file = files.join("component.yaml");
    std::fs::write(&file, text.replace(flag, &with))?;
    Ok(file)
}

/// The first line that the current component printed.
fn heard(platform: &Platform) -> anyhow::Result<String> {
    let log = ["--namespace", APPS, "logs", "deployment/hello", "--container=component"];
    let said = || platform.kubectl(&log).unwrap_or_default();
    until("a message comes back", SOON, || !said().is_empty())?;
    said().lines().next().map(str::to_owned).context("the component printed nothing")
}

/// The password of an OpenSearch user, as requested by an admin.
fn password(platform: &Platform, user: &str) -> anyhow::Result<SecretBytes> {
    let exec = ["--namespace", PLATFORM, "exec", "vault-0", "--container=controller", "--"];
    let shown =
        platform.kubectl(&[&exec[..], &["services-bootstrap", "password", user]].concat())?;
    Ok(SecretBytes::new(shown.trim_end().as_bytes().to_vec()))
}

async fn find(platform: &Platform, password: &SecretBytes) -> anyhow::Result<()> {
    let api = opensearch(platform)?;
    let password = std::str::from_utf8(password.expose("the viewer logs in"))?;
    let ask = |method: Method, path: &str| {
        api.request(method, format!("https://{HOST}:{PORT}{INDEX}{path}"))
            .basic_auth("viewer", Some(password))
    };
    let end = Instant::now() + SOON;
    loop {
        let found = ask(Method::GET, "/_search?q=body:NATS").send().await?.text().await?;
        let found: Value = serde_json::from_str(&found).unwrap_or_default();
        let hits = found["hits"]["hits"].as_array();
        if hits.is_some_and(|hits| hits.iter().any(|hit| hit["_source"]["body"] == LINE)) {
            break;
        }
        anyhow::ensure!(Instant::now() < end, "the line is not found: {found}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let forged = json!({"body": "forged"}).to_string();
    let write = ask(Method::POST, "/_doc").header("content-type", "application/json").body(forged);
    let refused = write.send().await?.status();
    anyhow::ensure!(refused == StatusCode::FORBIDDEN, "the viewer may write: {refused}");
    Ok(())
}

/// A client that finds the name of OpenSearch without the DNS of the cluster.
fn opensearch(platform: &Platform) -> anyhow::Result<Client> {
    let get = ["--namespace", PLATFORM, "get", "service", "opensearch"];
    let address =
        platform.kubectl(&[&get[..], &["--output=jsonpath={.spec.clusterIP}"]].concat())?;
    let nobody = Arc::new(Certificate::default());
    let config = nobody.client_config(platform.authorities()?.as_bytes())?;
    let builder = Client::builder().no_proxy().tls_backend_preconfigured(config).timeout(DEADLINE);
    Ok(builder.resolve(HOST, SocketAddr::new(address.parse()?, PORT)).build()?)
}
