//! Sends the controller's log to a collector, with the certificate that the vault issued.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tec_core::service::telemetry::Line;
use tec_k8s::service::{Export, Http, Target};
use tokio::sync::mpsc::Receiver;

use crate::bootstrap::controller::Controller;

/// Name of the program, for collectors.
const SERVICE: &str = "services-bootstrap";
/// Deadline for a collector to accept lines.
const DEADLINE: Duration = Duration::from_secs(10);
/// Interval between checks for usable authorities.
const LOOK: Duration = Duration::from_secs(10);

/// Sends lines until there are no more. They wait until the vault is up, since there is no certificate before
/// that. A failure to send the log never ends the program.
///
/// # Cancel safety
/// Can be dropped at any await; waiting lines are not sent, but are still on stderr.
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
        .with_context(|| format!("invalid address of the collector {collector:?}"))
}

async fn authorities(controller: &Controller) -> String {
    loop {
        // Authorities published by an earlier controller are the same.
        if let Ok(Some(authorities)) = controller.cluster.authorities().await {
            return authorities;
        }
        tokio::time::sleep(LOOK).await;
    }
}
