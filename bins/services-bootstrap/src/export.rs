//! The controller's log for a collector, with the certificate that the vault gave it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tec_core::service::telemetry::Line;
use tec_k8s::service::Export;
use tec_k8s::service::Http;
use tec_k8s::service::Target;
use tokio::sync::mpsc::Receiver;

use crate::controller::Controller;

/// Name of the program, for collectors.
const SERVICE: &str = "services-bootstrap";
/// A collector takes lines by then.
const DEADLINE: Duration = Duration::from_secs(10);
/// How often is looked whether the authorities are published.
const LOOK: Duration = Duration::from_secs(2);

/// Sends lines until there are no more. They wait until the vault is up: who brings it up has no
/// certificate yet.
///
/// # Errors
/// The collector's address, or the published authorities, cannot be used.
///
/// # Cancel safety
/// May be dropped at any await; lines that wait are lost, and stand on stderr.
pub async fn run(
    controller: &Controller,
    collector: &str,
    lines: Receiver<Line>,
) -> anyhow::Result<()> {
    let authorities = authorities(controller).await;
    let config = controller
        .certificate
        .client_config(authorities.as_bytes())?;
    let target = Target::tls(collector, Arc::new(config))
        .with_context(|| format!("{collector:?} is no collector"))?;
    let export = Export::new(Http::new(target, DEADLINE), SERVICE);
    export.run(lines).await;
    Ok(())
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
