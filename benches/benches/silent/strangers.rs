//! Strangers that send what they may: sessions, questions for the server's health, and refused evidence with
//! the largest event log, each network as fast as its rate limit allows.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::ensure;
use tec_core::digest::Sha256Digest;
use tec_core::endpoint::Endpoint;
use tec_core::pcr::PcrIndex;
use tec_e2e::anchor::Anchor;
use tec_e2e::fleet::SoftNode;
use tec_e2e::{load, wire};
use tec_tpm::event_log::{EventKind, EventLogBuilder};
use tec_tpm::testing::SoftTpm;
use tokio::runtime::Runtime;

/// The server's disk.
const DISK: &str = "size=256m";
/// Events of the log that strangers send, with data of this length each: as large a log as is taken, of a boot
/// that nobody approved.
const EVENTS: usize = 8_000;
const DATA: usize = 14;
/// Pause of a network that is told to slow down.
const REFUSED: Duration = Duration::from_secs(1);

/// A file system of a fixed size; mounting it requires root.
pub(crate) struct SmallDisk(PathBuf);

impl SmallDisk {
    pub(crate) fn mount(at: PathBuf) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&at)?;
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", DISK, "strangers"]).arg(&at).output()?;
        ensure!(mounted.status.success(), "{}", String::from_utf8_lossy(&mounted.stderr).trim());
        Ok(Self(at))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// One network each. They run at the lowest priority, since strangers have processors of their own.
pub(crate) struct Strangers {
    sent: Arc<AtomicU64>,
    runtime: Option<Runtime>,
}

#[derive(Clone)]
struct Stranger {
    node: Arc<SoftNode>,
    client: reqwest::Client,
    kbs: Endpoint,
    sent: Arc<AtomicU64>,
}

impl Strangers {
    /// Registers a machine in each of so many networks, and lets them begin.
    pub(crate) async fn begin(anchor: &Anchor, networks: u8) -> anyhow::Result<Self> {
        let (sent, kbs) = (Arc::new(AtomicU64::new(0)), anchor.kbs()?);
        let mut strangers = Vec::new();
        for number in 0..networks {
            let node =
                load::register(anchor, 1_000 * u64::from(networks) + u64::from(number)).await?;
            boot(&node.tpm);
            let address = IpAddr::V4(Ipv4Addr::new(127, 0, 8, number + 1));
            let client = super::client(&kbs, address)?;
            let (kbs, sent) = (kbs.clone(), Arc::clone(&sent));
            let stranger = Stranger { node: Arc::new(node), client, kbs, sent };
            // As many at once as one machine with a few programs.
            strangers.extend(std::iter::repeat_n(stranger, 4));
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .on_thread_start(|| {
                // The calling thread alone, see setpriority(2), "C library/kernel differences".
                let _ = rustix::process::setpriority_process(None, 19);
            })
            .enable_all()
            .build()?;
        for stranger in strangers {
            runtime.spawn(stranger.run());
        }
        Ok(Self { sent, runtime: Some(runtime) })
    }

    /// Requests that were answered so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Strangers {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A boot with a log that explains nothing and replays.
fn boot(tpm: &SoftTpm) {
    let mut log = EventLogBuilder::new();
    for number in 0..EVENTS {
        let data = format!("{number:0DATA$}");
        log.measure(PcrIndex::BOOT_MANAGER, EventKind::IPL, data.as_bytes());
        tpm.extend(PcrIndex::BOOT_MANAGER, &Sha256Digest::of(&data));
    }
    tpm.set_event_log(log.build());
}

impl Stranger {
    async fn run(self) {
        loop {
            if self.once().await.is_err() {
                tokio::time::sleep(REFUSED).await;
            }
        }
    }

    async fn once(&self) -> anyhow::Result<()> {
        let health = format!("{}/healthz", self.kbs.url);
        let reply = wire::get_with(&self.client, &health).await?;
        self.answered(reply.status)?;
        let open = || wire::Session::open_with(self.client.clone(), &self.kbs);
        // Most sessions are only opened.
        open().await?;
        self.answered(200)?;
        let session = open().await?;
        self.answered(200)?;
        let proof = session.prove(&self.node.tpm, wire::some_pubkey()).await?;
        let reply = session.attest(&proof).await?;
        self.answered(reply.status)
    }

    fn answered(&self, status: u16) -> anyhow::Result<()> {
        self.sent.fetch_add(1, Ordering::Relaxed);
        ensure!(status != 429, "too many requests");
        Ok(())
    }
}
