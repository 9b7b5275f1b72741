//! A log line, from who sends it to who reads it: every hop with certificates and passwords of the
//! platform.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use crate::kube::eventually;
use anyhow::Context as _;
use http::Method;
use serde_json::json;
use tec_core::secret::SecretBytes;
use tec_k8s::service::Http;
use tec_k8s::service::client::TlsMaterial;

use super::{Story, init};
use crate::services::opensearch::{OpenSearch, Place, ask};
use crate::services::sink::Sink;
use crate::services::stage::Stage;

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
    let flags = ["collector", "--opensearch", &url];
    let collector = init(stage, "collector", controller, &flags).await?;
    let sink = Sink::start_at(listen, &mounted(&collector)?)?;
    let has_line = async || Ok(sink.received().iter().any(|line| line == LINE));
    eventually("a log line of the broker", has_line).await?;
    forward(&api, &password(&collector)?, &sink.received()).await?;
    story.say("collector: took the broker's log over OTLP with mutual TLS, and wrote it")?;

    let viewer = init(stage, "dashboards", controller, &["viewer"]).await?;
    read(&api, &password(&viewer)?).await?;
    story.say("viewer: found the log line, and was refused when it tried to write one")
}

/// What a collector's exporter does.
async fn forward(api: &Http, password: &SecretBytes, lines: &[String]) -> anyhow::Result<()> {
    let path = format!("{INDEX}/_doc?refresh=true");
    let user = Some(("telemetry", password));
    for line in lines {
        let body = json!({"body": line}).to_string();
        let written = ask(api, Method::POST, &path, user, Some(&body)).await?;
        anyhow::ensure!(written.status == 201, "{}: {}", written.status, written.body);
    }
    let path = format!("{INDEX}/_search");
    let look = ask(api, Method::GET, &path, user, None).await?;
    anyhow::ensure!(look.status == 403, "the collector may read: {}", look.body);
    Ok(())
}

/// What a person does.
async fn read(api: &Http, password: &SecretBytes) -> anyhow::Result<()> {
    let user = Some(("viewer", password));
    let path = format!("{INDEX}/_search?q=NATS");
    let found = ask(api, Method::GET, &path, user, None).await?;
    let hits = found.body["hits"]["hits"].as_array();
    let is_there = hits.is_some_and(|hits| hits.iter().any(|hit| hit["_source"]["body"] == LINE));
    anyhow::ensure!(is_there, "{}: {}", found.status, found.body);
    let path = format!("{INDEX}/_doc");
    let body = json!({"body": "forged"}).to_string();
    let refused = ask(api, Method::POST, &path, user, Some(&body)).await?;
    anyhow::ensure!(refused.status == 403, "the viewer may write: {}", refused.body);
    Ok(())
}

fn password(volume: &Path) -> anyhow::Result<SecretBytes> {
    let path = volume.join("password");
    let bytes = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    Ok(SecretBytes::new(bytes))
}

/// The certificate that an init container left.
fn mounted(volume: &Path) -> anyhow::Result<TlsMaterial> {
    let text = |name: &str| {
        let path = volume.join(name);
        std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    };
    Ok(TlsMaterial {
        certificate_chain: text("tls.crt")?,
        private_key: text("tls.key")?.into_bytes(),
        authorities: text("ca.crt")?,
        ..TlsMaterial::default()
    })
}
