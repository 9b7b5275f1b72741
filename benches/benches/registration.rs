//! Durable registrations on the embedded store against one synced insert per call.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rusqlite::Connection;
use tec_benches::{Suite, load};
use tec_core::endpoint::Endpoint;
use tec_core::flow::{RegisterPorts, register};
use tec_core::id::MachineId;
use tec_core::ignition::ClevisPinGenerator;
use tec_core::port::{Entropy, EntropyRng, MachineRegistry as _, UnclaimedLimit};
use tec_core::store::Store;
use tec_core::testing::{ManualClock, SeededEntropy, sample};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// Concurrent registrations, as when a rack is switched on.
const CALLERS: u64 = 64;
/// Number of writes before anything is measured. SQLite's write-ahead log grows to 1000 pages, some two per
/// insert, before it is overwritten from the beginning (sqlite.org/wal.html, section 3.1); while a file
/// grows, each sync costs the file system a commit of its own.
const WARM_UP: u64 = 2000;

fn main() -> anyhow::Result<()> {
    // Beside the build results, so that both sides write to that disk and not to one in memory.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let service = Service::open(&dir.path().join("store"))?;
    let baseline = Baseline::open(&dir.path().join("baseline.db"))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?;
    check(&runtime, &service, &baseline)?;

    let mut suite = Suite::new(env!("CARGO_TARGET_TMPDIR"));
    for (name, callers) in [("registration", CALLERS), ("registration_alone", 1)] {
        suite.compare_timed(
            name,
            |ratio| {
                let rates = ratio.per_second();
                format!("flow::register, {callers} in flight / one synced insert per call; {rates}")
            },
            |times| service.storm(&runtime, callers, times),
            |times| baseline.insert(times),
        )?;
    }
    suite.finish();
    // What failed was not measured, so the numbers would mean something else.
    service.verdict(&runtime)?;
    baseline.verdict()
}

#[derive(Clone)]
struct Service {
    store: Arc<Store>,
    entropy: Arc<SeededEntropy>,
    clock: Arc<ManualClock>,
    pins: Arc<ClevisPinGenerator>,
    acknowledged: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
}

impl Service {
    fn open(dir: &Path) -> anyhow::Result<Self> {
        let entropy = Arc::new(SeededEntropy::new(1));
        let kbs = Endpoint::new("https://kbs.example.org:8080".parse()?, "PEM");
        let aks = Endpoint::new("https://ak.example.org:8001".parse()?, "PEM");
        Ok(Self {
            store: Arc::new(Store::open(dir, &*entropy)?),
            entropy,
            clock: Arc::new(ManualClock::new(sample::time(0))),
            pins: Arc::new(ClevisPinGenerator::new(kbs).register_ak_at(aks)),
            acknowledged: Arc::default(),
            failed: Arc::default(),
        })
    }

    async fn register(&self, times: u64) {
        let ports = RegisterPorts::new(
            &*self.store,
            &*self.store,
            &*self.pins,
            &*self.clock,
            &*self.entropy,
        );
        for _ in 0..times {
            let count = match register(ports, UnclaimedLimit::AtMost(u64::MAX)).await {
                Ok(_) => &self.acknowledged,
                Err(_) => &self.failed,
            };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// `times` registrations by several concurrent callers. Each caller does the same number, so there may be
    /// more; the time is scaled down to `times`.
    fn storm(&self, runtime: &Runtime, callers: u64, times: u64) -> Duration {
        let each = times.div_ceil(callers);
        let begin = Instant::now();
        runtime.block_on(async {
            let mut tasks = JoinSet::new();
            for _ in 0..callers {
                let service = self.clone();
                tasks.spawn(async move { service.register(each).await });
            }
            tasks.join_all().await;
        });
        load::scaled(begin.elapsed(), times, each * callers)
    }

    /// Checks that exactly what was acknowledged is there.
    fn verdict(&self, runtime: &Runtime) -> anyhow::Result<()> {
        let machines = runtime.block_on(self.store.list(None, usize::MAX))?;
        let ids: BTreeSet<MachineId> = machines.iter().map(|machine| machine.id).collect();
        let acknowledged = self.acknowledged.load(Ordering::Relaxed);
        anyhow::ensure!(
            ids.len() as u64 == acknowledged && self.failed.load(Ordering::Relaxed) == 0,
            "{} machines are stored, {acknowledged} were acknowledged",
            ids.len()
        );
        Ok(())
    }
}

/// The minimum that makes a registration durable: one row, one transaction, one sync.
struct Baseline {
    db: Connection,
    entropy: Box<dyn Entropy>,
    inserted: AtomicU64,
}

impl Baseline {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let db = Connection::open(path)?;
        db.pragma_update(None, "synchronous", "FULL")?;
        let mode: String = db.query_row("PRAGMA journal_mode = WAL", (), |row| row.get(0))?;
        anyhow::ensure!(mode == "wal", "the journal mode is {mode}");
        db.execute_batch(
            "CREATE TABLE machine (id TEXT PRIMARY KEY, registered_by TEXT NOT NULL,
             registered_at INTEGER NOT NULL, state TEXT NOT NULL) STRICT, WITHOUT ROWID",
        )?;
        Ok(Self { db, entropy: Box::new(SeededEntropy::new(2)), inserted: AtomicU64::new(0) })
    }

    fn insert(&self, times: u64) -> Duration {
        let begin = Instant::now();
        for _ in 0..times {
            if self.insert_one().is_ok() {
                self.inserted.fetch_add(1, Ordering::Relaxed);
            }
        }
        begin.elapsed()
    }

    fn insert_one(&self) -> Result<usize, rusqlite::Error> {
        let id = MachineId::random(&mut EntropyRng::new(&*self.entropy)).to_string();
        self.db
            .prepare_cached("INSERT INTO machine VALUES (?1, 'first-boot', ?2, 'unclaimed')")?
            .execute((id, sample::time(0).unix_seconds()))
    }

    fn verdict(&self) -> anyhow::Result<()> {
        let rows: i64 = self.db.query_row("SELECT count(*) FROM machine", (), |row| row.get(0))?;
        let inserted = self.inserted.load(Ordering::Relaxed);
        anyhow::ensure!(rows.unsigned_abs() == inserted, "{rows} rows of {inserted}");
        Ok(())
    }
}

/// Checks the results of both sides; also warms them up.
fn check(runtime: &Runtime, service: &Service, baseline: &Baseline) -> anyhow::Result<()> {
    service.storm(runtime, CALLERS, WARM_UP);
    service.storm(runtime, 1, WARM_UP);
    service.verdict(runtime)?;
    baseline.insert(WARM_UP);
    baseline.verdict()?;
    let first =
        runtime.block_on(service.store.list(None, 1))?.pop().context("no machine is stored")?;
    let found = runtime.block_on(service.store.find(&first.id))?;
    anyhow::ensure!(found == Some(first), "a stored machine was not found");
    Ok(())
}
