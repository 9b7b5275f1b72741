//! Sends a program's own log lines to a collector.

use std::time::Duration;

use parking_lot::RwLock;
use reqwest::Method;

use crate::telemetry;
use crate::telemetry::Line;
use tec_core::secret::SecretBytes;
use tokio::sync::mpsc::Receiver;
use tokio::time::Instant;

use super::Http;

/// Maximum number of lines per call.
const MOST: usize = 256;
/// Maximum time that a line waits for others.
const TOGETHER: Duration = Duration::from_secs(1);
/// Wait after a failure. Lines that arrive in the meantime wait in the bounded queue.
const PAUSE: Duration = Duration::from_secs(2);

/// The connection to a collector.
#[derive(Debug)]
pub struct Export {
    collector: RwLock<Http>,
    service: &'static str,
}

/// Lines were not accepted.
struct Unsent {
    error: String,
    is_final: bool,
}

impl Export {
    /// Sends to this collector, with the name of this program.
    pub fn new(collector: Http, service: &'static str) -> Self {
        Self { collector: RwLock::new(collector), service }
    }

    /// Sends over this connection from now on: it trusts other CAs.
    pub fn replace(&self, collector: Http) {
        *self.collector.write() = collector;
    }

    /// Sends until the source of lines is closed. A failed call is repeated, unless the collector reports
    /// that the failure is permanent.
    ///
    /// # Cancel safety
    /// When dropped, lines that the collector has not accepted are lost.
    pub async fn run(&self, mut lines: Receiver<Line>) {
        let mut is_down = false;
        let mut batch = Vec::new();
        while let Some(line) = lines.recv().await {
            batch.push(line);
            gather(&mut lines, &mut batch).await;
            while let Err(Unsent { error, is_final }) = self.send(&batch).await {
                if is_final {
                    // The same call would be refused forever, and every later line with it.
                    let lost = batch.len();
                    tracing::warn!(
                        error,
                        lost,
                        "the collector refuses these lines: they are dropped"
                    );
                    break;
                }
                // Reported once: the report is a line too.
                if !std::mem::replace(&mut is_down, true) {
                    tracing::warn!(error, "the collector takes no lines now");
                }
                tokio::time::sleep(PAUSE).await;
            }
            is_down = false;
            batch.clear();
        }
    }

    async fn send(&self, lines: &[Line]) -> Result<(), Unsent> {
        let body = telemetry::logs(self.service, lines).to_string();
        let body = SecretBytes::new(body.into_bytes());
        let post = Method::POST;
        let collector = self.collector.read().clone();
        let sent = collector.call(post, telemetry::LOGS, &[], Some(&body));
        match sent.await {
            Ok(reply) if reply.status == 200 => Ok(()),
            Ok(reply) => Err(Unsent {
                error: format!("it answered {}", reply.status),
                // OTLP 1.9, "Failures": these may be sent again, and no others.
                is_final: !matches!(reply.status, 429 | 502 | 503 | 504),
            }),
            Err(error) => Err(Unsent { error: tec_core::port::chain(&error), is_final: false }),
        }
    }
}

async fn gather(lines: &mut Receiver<Line>, batch: &mut Vec<Line>) {
    let end = Instant::now() + TOGETHER;
    while batch.len() < MOST {
        match tokio::time::timeout_at(end, lines.recv()).await {
            Ok(Some(line)) => batch.push(line),
            Ok(None) | Err(_) => return,
        }
    }
}
