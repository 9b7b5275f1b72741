//! A log line, from who sends it to who reads it: every hop with certificates and passwords of the
//! platform.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use crate::kube::{Guarded, eventually};
use crate::packages::tool;
use anyhow::Context as _;
use http::Method;
use serde_json::json;
use tec_core::secret::SecretBytes;
use tec_k8s::service::Http;

use super::{Story, init};
use crate::services::opensearch::{OpenSearch, Place, ask};
use crate::services::stage::Stage;
use tec_support::testing::free_address;

/// What a broker says when it has come up.
const LINE: &str = "connected to NATS";
/// Where a collector writes logs (OpenTelemetry collector, exporter opensearch, its default).
const INDEX: &str = "/ss4o_logs-default-namespace";

/// Plays it on a platform that is up.
pub(super) async fn play(
    stage: &Stage,
    place: Place,
    (controller, listen): (SocketAddr, SocketAddr),
    story: &mut Story<'_>,
) -> anyhow::Result<()> {
    let flags = place.flags(stage)?;
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    init(stage, "opensearch", controller, &flags).await?;
    story.say("OpenSearch: services-init wrote certificates, users as hashes, and roles")?;
    let authorities = stage.authorities().await?;
    let node = OpenSearch::start(stage, place, &authorities).await?;
    let api = node.client(&authorities, &Arc::default())?;
    story.say("OpenSearch: its security plugin took all ten files")?;

    let url = format!("https://{}", node.address());
    let (grpc, http) = (free_address()?.to_string(), listen.to_string());
    let flags = ["collector", "--opensearch", &url, "--listen", &grpc, "--listen-http", &http];
    let collector = init(stage, "collector", controller, &flags).await?;
    let config = format!("--config={}", collector.join("collector.yaml").display());
    let program = tool("bin/otelcol")?;
    let _process = Guarded::start("otelcol", &program, [config], &[], &stage.logs)?;
    may_not_read(&api, &password(&collector)?).await?;
    story.say("OpenTelemetry Collector: started with the configuration of services-init")?;

    let viewer = init(stage, "dashboards", controller, &["viewer"]).await?;
    let viewer = password(&viewer)?;
    let has_line = async || is_there(&api, &viewer).await;
    eventually("the broker's line in OpenSearch", has_line).await?;
    may_not_write(&api, &viewer).await?;
    story.say("viewer: found the log line, and was refused when it tried to write one")
}

async fn may_not_read(api: &Http, password: &SecretBytes) -> anyhow::Result<()> {
    let path = format!("{INDEX}/_search");
    let look = ask(api, Method::GET, &path, Some(("telemetry", password)), None).await?;
    anyhow::ensure!(look.status == 403, "the collector may read: {}", look.body);
    Ok(())
}

/// What a person does.
async fn is_there(api: &Http, password: &SecretBytes) -> anyhow::Result<bool> {
    let path = format!("{INDEX}/_search?q=body:NATS");
    let found = ask(api, Method::GET, &path, Some(("viewer", password)), None).await?;
    let hits = found.body["hits"]["hits"].as_array();
    Ok(hits.is_some_and(|hits| hits.iter().any(|hit| hit["_source"]["body"] == LINE)))
}

async fn may_not_write(api: &Http, password: &SecretBytes) -> anyhow::Result<()> {
    let path = format!("{INDEX}/_doc");
    let body = json!({"body": "forged"}).to_string();
    let refused = ask(api, Method::POST, &path, Some(("viewer", password)), Some(&body)).await?;
    anyhow::ensure!(refused.status == 403, "the viewer may write: {}", refused.body);
    Ok(())
}

fn password(volume: &Path) -> anyhow::Result<SecretBytes> {
    let path = volume.join("password");
    let bytes = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    Ok(SecretBytes::new(bytes))
}
