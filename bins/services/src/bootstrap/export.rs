//! Sends the controller's log to a collector, with the certificate that the vault issued.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tec_services::shell::{Export, Http, Target};
use tec_services::telemetry::Line;
use tokio::sync::mpsc::Receiver;

use crate::bootstrap::controller::Controller;

/// Name of the program, for collectors.
const SERVICE: &str = "services-bootstrap";
/// Deadline for a collector to accept lines.
const DEADLINE: Duration = Duration::from_secs(10);
/// Interval between checks for usable authorities, and for other ones.
const LOOK: Duration = Duration::from_secs(10);

/// Sends lines until there are no more. They wait until the vault is up, since there is no certificate before
/// that. A failure to send the log never ends the program.
///
/// # Cancel safety
/// Can be dropped at any await; waiting lines are not sent, but are still on stderr.
pub async fn run(controller: &Controller, collector: &str, lines: Receiver<Line>) {
    let (export, mut trusted) = loop {
        let trusted = authorities(controller).await;
        match connection(controller, collector, &trusted) {
            Ok(http) => break (Export::new(http, SERVICE), trusted),
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(error, "the log is not sent to the collector");
                tokio::time::sleep(LOOK).await;
            }
        }
    };
    let follow = async {
        loop {
            tokio::time::sleep(LOOK).await;
            let Ok(current) = controller.standing.authorities() else { continue };
            if *current == *trusted {
                continue;
            }
            match connection(controller, collector, &current) {
                Ok(http) => {
                    export.replace(http);
                    trusted = current;
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::warn!(error, "the log is sent with the old authorities");
                }
            }
        }
    };
    tokio::select! {
        () = export.run(lines) => {}
        () = follow => {}
    }
}

fn connection(controller: &Controller, collector: &str, authorities: &str) -> anyhow::Result<Http> {
    let config = controller.certificate.client_config(authorities.as_bytes())?;
    let target = Target::tls(collector, Arc::new(config))
        .with_context(|| format!("invalid address of the collector {collector:?}"))?;
    Ok(Http::new(target, DEADLINE))
}

/// Those of the first round.
async fn authorities(controller: &Controller) -> Arc<str> {
    loop {
        if let Ok(authorities) = controller.standing.authorities() {
            return authorities;
        }
        tokio::time::sleep(LOOK).await;
    }
}
