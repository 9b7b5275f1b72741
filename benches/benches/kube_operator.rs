//! The operator as a process between a real API server and a key broker: the time from the creation of a
//! machine until the broker holds its key, the cost at 100 machines and at many, memory, and a restart.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;
use tec_benches::load::float;
use tec_benches::{Figure, Suite, Unit, load};
use tec_core::machine::{Machine as Known, RegisteredBy};
use tec_core::testing::sample;
use tec_e2e::kube::{Bench, Broker, Guarded, Link, cluster, within};
use tec_e2e::settings::own_program;
use tec_k8s::api::Machine;

/// Number of machines in a small fleet.
const FEW: u64 = 100;
/// Machines in total, unless TEC_BENCH_MACHINES sets another number.
const MANY: u64 = 500;
/// Machines in one round of the comparison, created concurrently.
const BATCH: u64 = 8;
const AT_ONCE: usize = 16;
/// Deadline for everything.
const LONG: Duration = Duration::from_hours(1);

fn main() -> anyhow::Result<()> {
    let suite = Suite::new(env!("CARGO_TARGET_TMPDIR"));
    // Without the programs there is nothing to measure; `cargo xtask bench` builds them.
    if suite.wants("kube_operator/") && own_program("operator").is_ok() {
        let runtime = load::runtime()?;
        let world = runtime.block_on(World::new())?;
        runtime.block_on(world.fleet(&suite))?;
        let ours = || runtime.block_on(world.publish(BATCH));
        let bare = || runtime.block_on(world.write(BATCH));
        let note = "create 8 machines until the broker holds their keys / create 8 machines and \
                    Secrets and write each status once, where there is no operator";
        suite.ratio_timed(
            "kube_operator/published",
            |_| note.to_owned(),
            |times| timed(times, ours),
            |times| timed(times, bare),
        )?;
        // What failed was not measured.
        ours()?;
        bare()?;
    }
    suite.finish();
    Ok(())
}

fn timed(times: u64, work: impl Fn() -> anyhow::Result<()>) -> Duration {
    let begin = Instant::now();
    for _ in 0..times {
        let _ = work();
    }
    begin.elapsed()
}

/// An API server, an operator, and a broker.
struct World {
    bench: Bench,
    /// The namespace without an operator.
    quiet: String,
    broker: Broker,
    link: Link,
    /// Number of machines so far, and of those in the namespace without an operator.
    next: AtomicU64,
    bare: AtomicU64,
    operator: std::sync::Mutex<Guarded>,
}

impl World {
    async fn new() -> anyhow::Result<Self> {
        let bench = Bench::alone().await?;
        let broker = Broker::start(1).await?;
        bench.create(&broker.admin_secret()).await?;
        bench.create(&cluster("cluster")).await?;
        let link = Link::new(bench.client()?).await?;
        let quiet = bench.plane.namespace("quiet").await?;
        let operator = start(&bench, &link, &broker)?;
        Ok(Self {
            bench,
            quiet,
            broker,
            link,
            next: AtomicU64::new(0),
            bare: AtomicU64::new(0),
            operator: std::sync::Mutex::new(operator),
        })
    }

    /// Figures with few and with many machines, and for a restart.
    async fn fleet(&self, suite: &Suite) -> anyhow::Result<()> {
        let many = load::number("TEC_BENCH_MACHINES", MANY)?.max(2 * FEW);
        for (name, count) in [("few", FEW), ("many", many - FEW)] {
            let before = self.broker.paths().await.len();
            self.link.take_traffic();
            let begin = Instant::now();
            self.publish(count).await?;
            let took = begin.elapsed();
            self.settled().await?;
            let traffic = self.link.take_traffic();
            let machines = float(count);
            let note = format!("for each of {count} machines where there were {before}");
            let figure = |what: &str, value: f64, unit| {
                let name = format!("kube_operator/{what}/{name}");
                suite.figure(Figure::new(&name, value, unit, &note))
            };
            figure("requests", float(traffic.total()) / machines, Unit::Count)?;
            figure("bytes", float(traffic.bytes) / machines, Unit::Bytes)?;
            let nanoseconds = took.as_secs_f64() * 1e9;
            figure("time", nanoseconds / machines, Unit::Nanoseconds)?;
        }
        let note = format!("most memory of the operator's process with {many} machines");
        let memory = self.peak_memory()?;
        suite.figure(Figure::new("kube_operator/memory", memory, Unit::Bytes, &note))?;
        self.restart(suite, many).await
    }

    /// The first round ends once every machine has been reconciled; the publication of one more machine shows
    /// that the round has ended.
    async fn restart(&self, suite: &Suite, many: u64) -> anyhow::Result<()> {
        let begin = Instant::now();
        {
            let mut operator = self.operator.lock().map_err(|_| anyhow::anyhow!("poisoned"))?;
            operator.kill();
            self.broker.take_sent();
            self.link.take_traffic();
            *operator = start(&self.bench, &self.link, &self.broker)?;
        }
        self.publish(1).await?;
        let took = begin.elapsed().as_secs_f64() * 1e9;
        let (sent, traffic) = (self.broker.take_sent(), self.link.take_traffic());
        let often = traffic.requests.iter().filter(|(_, count)| **count * 100 > many);
        let often: Vec<_> = often.map(|(name, count)| format!("{count} {name}")).collect();
        let note = format!(
            "a restart of the operator with {many} machines, and one more machine; most often: {}",
            often.join(", ")
        );
        let keys = float(sent.keys.len() as u64);
        let written = float(traffic.writes("secrets"));
        for (what, value, unit) in [
            ("time", took, Unit::Nanoseconds),
            ("keys_sent", keys, Unit::Count),
            ("secrets_written", written, Unit::Count),
            ("requests", float(traffic.total()), Unit::Count),
            ("requests_to_broker", float(sent.requests), Unit::Count),
        ] {
            let name = format!("kube_operator/restart/{what}");
            suite.figure(Figure::new(&name, value, unit, &note))?;
        }
        Ok(())
    }

    /// Creates machines, and waits until the broker holds their keys.
    async fn publish(&self, count: u64) -> anyhow::Result<()> {
        let first = self.next.fetch_add(count, Ordering::Relaxed);
        let machines: Api<Machine> = self.bench.objects()?;
        create(&machines, first..first + count).await?;
        let all = first + count;
        within(LONG, "the broker holds all keys", async || {
            tokio::time::sleep(Duration::from_millis(10)).await;
            Ok(self.broker.paths().await.len() as u64 == all)
        })
        .await
    }

    /// Waits until every machine reports that its key is published.
    async fn settled(&self) -> anyhow::Result<()> {
        let machines: Api<Machine> = self.bench.objects()?;
        within(LONG, "every machine says so", async || {
            // Listing everything takes the API server's time, which is being measured.
            tokio::time::sleep(Duration::from_secs(5)).await;
            let all = machines.list(&kube::api::ListParams::default()).await?;
            let is_told = |machine: &Machine| {
                let status = machine.status.as_ref();
                status.is_some_and(|status| !status.published_to.is_empty())
            };
            Ok(all.items.iter().all(is_told))
        })
        .await
    }

    /// The same objects, with nobody reconciling them.
    async fn write(&self, count: u64) -> anyhow::Result<()> {
        let offset = self.bare.fetch_add(count, Ordering::Relaxed);
        let admin = self.bench.admin()?;
        let machines: Api<Machine> = Api::namespaced(admin.clone(), &self.quiet);
        let secrets: Api<Secret> = Api::namespaced(admin, &self.quiet);
        create(&machines, offset..offset + count).await?;
        futures::stream::iter(offset..offset + count)
            .map(anyhow::Ok)
            .try_for_each_concurrent(AT_ONCE, async |number| {
                let id = sample::machine_id(number);
                let entry = ("root".to_owned(), ByteString(vec![0; 64]));
                let secret = Secret {
                    metadata: ObjectMeta { name: Some(id.to_string()), ..ObjectMeta::default() },
                    data: Some([entry].into()),
                    ..Secret::default()
                };
                secrets.create(&PostParams::default(), &secret).await?;
                let status = Patch::Merge(json!({"status": {"keySecret": id.to_string()}}));
                let name = Machine::name_of(&id);
                let params = PatchParams::default();
                machines.patch_status(&name, &params, &status).await?;
                Ok(())
            })
            .await
    }

    /// Peak memory of the operator, in KiB.
    fn peak_memory(&self) -> anyhow::Result<f64> {
        let operator = self.operator.lock().map_err(|_| anyhow::anyhow!("poisoned"))?;
        load::peak_memory(operator.pid()?)
    }
}

fn start(bench: &Bench, link: &Link, broker: &Broker) -> anyhow::Result<Guarded> {
    bench.start_program_at(link.url(), "one", &["--trustee-url", broker.url()])
}

async fn create(machines: &Api<Machine>, numbers: std::ops::Range<u64>) -> anyhow::Result<()> {
    let clock: Arc<dyn tec_core::port::Clock> = Arc::new(tec_support::SystemClock);
    futures::stream::iter(numbers)
        .map(anyhow::Ok)
        .try_for_each_concurrent(AT_ONCE, async |number| {
            let id = sample::machine_id(number);
            let known = Known::unclaimed(id, RegisteredBy::FirstBoot, clock.now());
            let machine = Machine::from_core(&known);
            machines.create(&PostParams::default(), &machine).await?;
            Ok(())
        })
        .await
}
