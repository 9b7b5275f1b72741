//! Restarts a NATS server whose store failed because its disk was full, once there is space again.
//!
//! A stream that could not be written refuses every later event until the server starts again, even when
//! there is space. The server itself reports that it is not healthy; nothing else in its pod can tell.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::Signal;
use tec_services::shell::{Http, Target};

use crate::init::cli::{Args, Service};
use crate::init::run;

/// Interval between checks.
const LOOK: Duration = Duration::from_secs(5);
/// Wait after a restart, which takes a while with many events.
const REST: Duration = Duration::from_mins(1);
/// Deadline of an answer from the same pod.
const DEADLINE: Duration = Duration::from_secs(5);
/// Free space that makes a restart worthwhile, in bytes.
const SPACE: u64 = 16 << 20;
/// Path of the server's report about itself.
const HEALTH: &str = "/healthz";
/// Part of the report about a stream that could not be written.
const FAILED: &str = "write error";

/// A NATS server, as seen from its own pod.
#[derive(Debug)]
pub struct Store {
    /// Loopback address of its monitor.
    pub monitor: SocketAddr,
    /// Directory of its events.
    pub storage: PathBuf,
    /// File with its process ID.
    pub pid: PathBuf,
}

/// What a check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Found {
    /// The server is healthy, or does not run.
    Fine,
    /// It cannot write, and there is no space.
    Full,
    /// It could not write, and was told to end, since there is space again.
    Ended,
}

impl Store {
    /// The store of the server that these flags describe; `None` unless they name monitor, storage and
    /// process ID.
    pub fn of(args: &Args) -> Option<Self> {
        let Service::Nats { monitor, storage, .. } = &args.service else {
            return None;
        };
        let storage = PathBuf::from(storage.as_ref()?);
        Some(Self { monitor: (*monitor)?, storage, pid: args.reload.clone()? })
    }

    /// Checks forever.
    pub async fn keep(&self) {
        let mut last = Found::Fine;
        loop {
            let found = match self.check().await {
                Ok(found) => found,
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::warn!(error, "cannot check whether NATS can store events");
                    Found::Fine
                }
            };
            let storage = self.storage.display();
            match found {
                Found::Full if last != Found::Full => {
                    tracing::error!(%storage, "NATS cannot store events: its disk is full");
                }
                Found::Ended => {
                    tracing::warn!(%storage, "NATS is restarted, since its disk has space again");
                }
                Found::Full | Found::Fine => {}
            }
            tokio::time::sleep(if found == Found::Ended { REST } else { LOOK }).await;
            last = found;
        }
    }

    /// Ends a server that failed to write, if there is space now. The kubelet starts it again.
    ///
    /// # Cancel safety
    /// Can be dropped at any await.
    pub async fn check(&self) -> anyhow::Result<Found> {
        if !self.has_failed().await {
            return Ok(Found::Fine);
        }
        if free(&self.storage)? < SPACE {
            return Ok(Found::Full);
        }
        run::signal(&self.pid, Signal::TERM)?;
        Ok(Found::Ended)
    }

    async fn has_failed(&self) -> bool {
        let address = self.monitor.to_string();
        // Created each time: a connection would not outlive the server.
        let http = Http::new(Target::DangerousPlain { address }, DEADLINE);
        let reply = http.call(http::Method::GET, HEALTH, &[], None).await;
        reply.is_ok_and(|reply| {
            reply.status != 200 && String::from_utf8_lossy(&reply.body).contains(FAILED)
        })
    }
}

fn free(directory: &Path) -> anyhow::Result<u64> {
    let space = rustix::fs::statvfs(directory);
    let space =
        space.with_context(|| format!("cannot read the free space of {}", directory.display()))?;
    Ok(space.f_bavail.saturating_mul(space.f_frsize))
}
