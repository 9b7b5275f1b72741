//! The controller's log for a collector, with the certificate that the vault gave it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tec_core::service::telemetry::Line;
use tec_k8s::service::{Export, Http, Target};
use tokio::sync::mpsc::Receiver;

use crate::bootstrap::controller::Controller;

/// Name of the program, for collectors.
const SERVICE: &str = "services-bootstrap";
/// A collector takes lines by then.
const DEADLINE: Duration = Duration::from_secs(10);
/// How often is looked whether there are authorities that can be used.
const LOOK: Duration = Duration::from_secs(10);

/// Sends lines until there are no more. They wait until the vault is up: who brings it up has no
/// certificate yet. A log that cannot be sent is no reason to end.
///
/// # Cancel safety
/// May be dropped at any await; lines that wait are lost, and stand on stderr.
pub async fn run(controller: &Controller, collector: &str, lines: Receiver<Line>) {
    let target = loop {
        match target(controller, collector).await {
            Ok(target) => break target,
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(error, "the log is not sent to the collector");
                tokio::time::sleep(LOOK).await;
            }
        }
    };
    Export::new(Http::new(target, DEADLINE), SERVICE).run(lines).await;
}

async fn target(controller: &Controller, collector: &str) -> anyhow::Result<Target> {
    let authorities = authorities(controller).await;
    let config = controller.certificate.client_config(authorities.as_bytes())?;
    Target::tls(collector, Arc::new(config))
        .with_context(|| format!("{collector:?} is no collector"))
}

async fn authorities(controller: &Controller) -> String {
    loop {
        // Published by a controller before this one, they are the same.
        if let Ok(Some(authorities)) = controller.cluster.authorities().await {
            return authorities;
        }
        tokio::time::sleep(LOOK).await;
    }
}
