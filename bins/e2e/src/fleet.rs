//! Nodes that reboot in a loop while something happens to their servers, with a record of which server
//! answered each boot.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, ensure};
use futures::future::join_all;
use tec_core::digest::Sha256Digest;
use tec_core::endpoint::Endpoint;
use tec_core::id::{MachineId, ResourcePath};
use tec_core::pcr::PcrIndex;
use tec_tpm::testing::SoftTpm;

use crate::process::wait_for;
use crate::wire;

/// Time for a few boots to finish between two steps of the test, on a machine that is also busy otherwise.
const STEP: Duration = Duration::from_mins(3);
/// Rounds over the servers if none answers; a machine that is also busy otherwise may be slow.
const ROUNDS: u32 = 3;
/// Pause of a node between two boots, so that many nodes leave some processor time to others.
const REST: Duration = Duration::from_millis(20);

/// A node that really attests, but has no disk.
#[derive(Debug)]
pub struct SoftNode {
    /// Its TPM.
    pub tpm: SoftTpm,
    /// Its machine ID.
    pub machine: MachineId,
    /// Digests that its boot measures into the boot manager's register.
    pub boot: Vec<Sha256Digest>,
    /// Servers to ask, in order.
    pub servers: Vec<Endpoint>,
}

impl SoftNode {
    /// Boots and asks the servers in order, repeating if none of them answered in time, as the pin does: a
    /// gateway that reports an unreachable backend does not count as an answer. A server that refuses is not
    /// asked again. Returns the index of the server that released the key, or the answer of each.
    pub async fn boot(&self) -> Result<usize, Vec<String>> {
        self.tpm.reboot();
        for digest in &self.boot {
            self.tpm.extend(PcrIndex::BOOT_MANAGER, digest);
        }
        let mut rounds = ROUNDS;
        loop {
            let (mut said, mut refused) = (Vec::new(), false);
            for (number, server) in self.servers.iter().enumerate() {
                match self.key_from(server).await {
                    Ok(reply) if reply.status == 200 => return Ok(number),
                    Ok(reply) => {
                        refused |= reply.status < 500;
                        said.push(reply.code());
                    }
                    Err(error) => said.push(format!("{error:#}")),
                }
            }
            rounds -= 1;
            if refused || rounds == 0 {
                return Err(said);
            }
        }
    }

    async fn key_from(&self, server: &Endpoint) -> anyhow::Result<wire::Reply> {
        let session = wire::Session::open(server).await?;
        let proof = session.prove(&self.tpm, wire::some_pubkey()).await?;
        let reply = session.attest(&proof).await?;
        if reply.status != 200 {
            return Ok(reply);
        }
        let path = ResourcePath::luks_root(&self.machine);
        session.resource(path.as_str()).await
    }
}

/// One boot.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Boot {
    /// Index of the node.
    pub node: usize,
    /// When it ended, relative to the start of the fleet.
    pub at: Duration,
    /// The index of the server that released the key, or the answer of each.
    pub by: Result<usize, Vec<String>>,
}

#[derive(Debug)]
struct Shared {
    begin: Instant,
    stop: AtomicBool,
    boots: Mutex<Vec<Boot>>,
    /// What happened, and when.
    marks: Mutex<Vec<(Duration, String)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nodes that boot repeatedly; stopped on drop.
#[derive(Debug)]
pub struct Fleet {
    count: usize,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Fleet {
    /// Starts all of them, in a separate thread.
    pub fn start(nodes: Vec<SoftNode>) -> Self {
        let shared = Arc::new(Shared {
            begin: Instant::now(),
            stop: AtomicBool::new(false),
            boots: Mutex::default(),
            marks: Mutex::default(),
        });
        let (count, inside) = (nodes.len(), Arc::clone(&shared));
        let thread = std::thread::spawn(move || run(&nodes, &inside));
        Self { count, shared, thread: Some(thread) }
    }

    /// Records the next event, and waits until every node has booted twice more without a failure.
    pub fn go_on(&self, what: &str) -> anyhow::Result<()> {
        let now = self.shared.begin.elapsed();
        lock(&self.shared.marks).push((now, what.to_owned()));
        let from = lock(&self.shared.boots).len();
        wait_for(&format!("boots while: {what}"), STEP, || {
            let boots = lock(&self.shared.boots);
            let mut counts = vec![0_u32; self.count];
            for boot in boots.iter().skip(from) {
                if let Err(refusals) = &boot.by {
                    return Err(anyhow!("{what}: node {} is refused: {refusals:?}", boot.node));
                }
                if let Some(count) = counts.get_mut(boot.node) {
                    *count += 1;
                }
            }
            Ok(counts.iter().all(|count| *count >= 2))
        })
    }

    /// The boots since the last recorded event.
    pub fn latest(&self) -> Vec<Boot> {
        let since = lock(&self.shared.marks).last().map(|mark| mark.0);
        let boots = lock(&self.shared.boots);
        let is_late = |boot: &&Boot| since.is_none_or(|since| boot.at >= since);
        boots.iter().filter(is_late).cloned().collect()
    }

    /// Stops the nodes, writes a page with a picture of which server answered each boot, and returns how many
    /// each of them answered.
    pub fn end(
        mut self,
        picture: &Path,
        title: &str,
        servers: &[&str],
    ) -> anyhow::Result<Vec<usize>> {
        self.shared.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.join().map_err(|_| anyhow!("the thread of the nodes panicked"))??;
        }
        let boots = std::mem::take(&mut *lock(&self.shared.boots));
        let marks = std::mem::take(&mut *lock(&self.shared.marks));
        let page = crate::report::page(title, &timeline(self.count, &boots, &marks, servers));
        std::fs::write(picture, page)
            .with_context(|| format!("cannot write {}", picture.display()))?;
        let failed: Vec<_> = boots.iter().filter(|boot| boot.by.is_err()).collect();
        ensure!(failed.is_empty(), "failed boots: {failed:?}");
        let by = |server| boots.iter().filter(move |boot| boot.by == Ok(server)).count();
        Ok((0..servers.len()).map(by).collect())
    }
}

fn run(nodes: &[SoftNode], shared: &Shared) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let node = async |(number, node): (usize, &SoftNode)| {
        while !shared.stop.load(Ordering::SeqCst) {
            let by = node.boot().await;
            let at = shared.begin.elapsed();
            lock(&shared.boots).push(Boot { node: number, at, by });
            tokio::time::sleep(REST).await;
        }
    };
    runtime.block_on(join_all(nodes.iter().enumerate().map(node)));
    Ok(())
}

/// One row per node and one dot per boot, in the color of the server that answered, with a line for each
/// event.
fn timeline(
    count: usize,
    boots: &[Boot],
    marks: &[(Duration, String)],
    servers: &[&str],
) -> String {
    const COLORS: [&str; 2] = ["#4477aa", "#228833"];
    let total = boots.iter().map(|boot| boot.at).max();
    let total = total.unwrap_or_default().as_secs_f64().max(0.001);
    let x = |at: Duration| 10.0 + at.as_secs_f64() / total * 980.0;
    let (top, row) = (16 * marks.len() + 24, 7);
    let height = top + row * count + 24;
    let mut svg = format!(
        "<svg viewBox=\"0 0 1000 {height}\" role=\"img\" aria-label=\"Which server answered which boot\">"
    );
    for (number, (at, what)) in marks.iter().enumerate() {
        let (at, y) = (x(*at), 16 * number + 12);
        let _ = write!(
            svg,
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{}\" y2=\"{}\" stroke=\"currentColor\" \
             stroke-dasharray=\"2 3\"/><text x=\"{:.1}\" y=\"{y}\" fill=\"currentColor\">{what}</text>",
            y - 8,
            height - 20,
            (at + 3.0).min(760.0),
        );
    }
    for boot in boots {
        let color = match &boot.by {
            Ok(server) => COLORS.get(*server).copied().unwrap_or("#999999"),
            Err(_) => "#cc3311",
        };
        let _ = write!(
            svg,
            "<circle cx=\"{:.1}\" cy=\"{}\" r=\"2.2\" fill=\"{color}\"/>",
            x(boot.at),
            top + row * boot.node
        );
    }
    for (number, (server, color)) in servers.iter().zip(COLORS).enumerate() {
        let (x, y) = (10 + 240 * number, height - 6);
        let _ = write!(svg, "<text x=\"{x}\" y=\"{y}\" fill=\"{color}\">● {server}</text>");
    }
    svg + "</svg>"
}
