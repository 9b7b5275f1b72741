//! Machines that move from one namespace to another over a real API server, against bare calls that create
//! the same objects in the same run; also memory, and a pass that is interrupted and resumed.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use async_trait::async_trait;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;
use tec_benches::load::float;
use tec_benches::{Figure, Suite, Unit, load};
use tec_core::ak::AkState;
use tec_core::migrate;
use tec_core::migrate::{
    AdoptPage, CopyReport, MachineUnit, Observer, Quiet, Transition, TrustAnchor, TrustUnit,
};
use tec_core::port::Clock as _;
use tec_core::testing::sample;
use tec_e2e::kube::ControlPlane;
use tec_k8s::api::{AttestationKey, BoundKey, Machine};
use tec_k8s::client::KubeRegistry;
use tec_support::SystemClock;
use tokio::sync::{Mutex, Notify};

/// Machines, unless TEC_BENCH_MACHINES sets another number, such as 10000.
const MACHINES: u64 = 1000;
/// Concurrent requests, the same as in the anchor.
const AT_ONCE: usize = 24;
/// Objects of one machine: itself, its attestation key, its disk key.
const OBJECTS: f64 = 3.0;

fn main() -> anyhow::Result<()> {
    let suite = Suite::new(env!("CARGO_TARGET_TMPDIR"));
    if suite.wants("kube_migrate/") {
        let runtime = load::runtime()?;
        runtime.block_on(measure(&suite))?;
    }
    suite.finish();
    Ok(())
}

async fn measure(suite: &Suite) -> anyhow::Result<()> {
    let many = load::number("TEC_BENCH_MACHINES", MACHINES)?;
    let plane = ControlPlane::start().await?;
    plane.install_resources().await?;
    let anchor = async |word: &str| -> anyhow::Result<KubeRegistry> {
        let namespace = plane.namespace(word).await?;
        Ok(KubeRegistry::new(plane.admin()?, namespace, Arc::new(SystemClock)))
    };
    let source = anchor("source").await?;
    fill(&source, many).await?;

    let before = load::peak_memory("self")?;
    let target = anchor("target").await?;
    let in_turn = InTurn {
        namespace: plane.namespace("bare").await?,
        plane: &plane,
        done: Mutex::new(Ok(Bare::default())),
    };
    let begin = Instant::now();
    let report = copy(&source, &target, &in_turn).await?;
    let both = begin.elapsed();
    let bare = in_turn.done.into_inner()?;
    anyhow::ensure!(report.created == many && bare.machines == many, "{report:?}");
    let ours = both.saturating_sub(bare.took).as_secs_f64();
    let baseline = bare.took.as_secs_f64();
    let memory = load::peak_memory("self")? - before;
    let objects = float(many) * OBJECTS;
    let note = format!("{many} machines from namespace to namespace");
    let figure = |name: &str, value: f64, unit: Unit, what: &str| {
        let note = format!("{what}; {note}");
        suite.figure(Figure::new(&format!("kube_migrate/{name}"), value, unit, &note))
    };
    figure("objects_per_second", objects / ours, Unit::Count, "objects adopted in a second")?;
    figure("bare_per_second", objects / baseline, Unit::Count, "objects in bare calls")?;
    figure("ratio", baseline / ours, Unit::Count, "ours against bare calls, 1 is as fast")?;
    figure("memory", memory, Unit::Bytes, "by how much the peak of memory grew")?;
    let resumed = resume(&source, &anchor("resumed").await?).await?;
    let what = "share of the units that a broken pass had and the next did not touch";
    figure("resumed", 1.0 - float(resumed) / float(many), Unit::Count, what)
}

async fn swap(anchor: &dyn TrustAnchor, change: &Transition) -> anyhow::Result<()> {
    anchor.swap(change, &sample::line()).await?;
    Ok(())
}

/// One pass.
async fn copy(
    from: &KubeRegistry,
    to: &KubeRegistry,
    observer: &dyn Observer,
) -> anyhow::Result<CopyReport> {
    let source = from.authority().await?;
    if to.authority().await?.is_alone() {
        swap(to, &to.authority().await?.stand_by(&source)?).await?;
    }
    swap(to, &to.authority().await?.listen(&source)?).await?;
    let intake = to.authority().await?.intake().context("it listens")?;
    Ok(migrate::copy(from, to, intake, &SystemClock, observer).await?)
}

/// Interrupts a pass halfway, and returns how many units the next one processed.
async fn resume(from: &KubeRegistry, to: &KubeRegistry) -> anyhow::Result<u64> {
    let half = Half { pages: AtomicU64::new(0), reached: Notify::new() };
    tokio::select! {
        ended = copy(from, to, &half) => anyhow::bail!("the copy ended before half of the pages: {ended:?}"),
        () = half.reached.notified() => {}
    }
    Ok(copy(from, to, &Quiet).await?.units())
}

/// Stops at the second page.
#[derive(Debug)]
struct Half {
    pages: AtomicU64,
    reached: Notify,
}

#[async_trait]
impl Observer for Half {
    async fn page(&self, _so_far: &CopyReport) {
        if self.pages.fetch_add(1, Ordering::Relaxed) == 1 {
            self.reached.notify_one();
            std::future::pending::<()>().await;
        }
    }
}

/// The machine with this number, with its key bound and its disk key generated.
fn unit(number: u64) -> MachineUnit {
    let mut key = sample::ak(number, number);
    key.state = AkState::Bound;
    let mut machine = sample::machine(number);
    machine.state = tec_core::machine::MachineState::Active;
    MachineUnit::new(machine, vec![key], Some(sample::secret(number)))
}

/// Fills a namespace as fast as possible, by adopting without a source.
async fn fill(anchor: &KubeRegistry, many: u64) -> anyhow::Result<()> {
    let nobody = tec_core::testing::MemoryRegistry::new();
    let giver = nobody.authority().await?;
    swap(anchor, &anchor.authority().await?.stand_by(&giver)?).await?;
    swap(anchor, &anchor.authority().await?.listen(&giver)?).await?;
    let intake = anchor.authority().await?.intake().context("it listens")?;
    let units = (1..=many).map(unit).map(TrustUnit::Machine).collect();
    let page = AdoptPage { intake, after: None, units, more: false, at: SystemClock.now() };
    anchor.adopt(&page).await?;
    // Nobody else has the authority: it is its own from now on.
    let seized = anchor.authority().await?.dangerous_seize()?;
    swap(anchor, &seized).await
}

/// The same objects, created by bare calls.
async fn bare(
    plane: &ControlPlane,
    namespace: &str,
    numbers: RangeInclusive<u64>,
) -> anyhow::Result<()> {
    let admin = plane.admin()?;
    let machines: Api<Machine> = Api::namespaced(admin.clone(), namespace);
    let keys: Api<AttestationKey> = Api::namespaced(admin.clone(), namespace);
    let secrets: Api<Secret> = Api::namespaced(admin, namespace);
    let (create, patch) = (PostParams::default(), PatchParams::default());
    futures::stream::iter(numbers)
        .map(anyhow::Ok)
        .try_for_each_concurrent(AT_ONCE, async |number| {
            let unit = unit(number);
            let id = unit.machine.id;
            machines.create(&create, &Machine::from_core(&unit.machine)).await?;
            let key = AttestationKey::from_core(&sample::ak(number, number));
            keys.create(&create, &key).await?;
            let secret = Secret {
                metadata: ObjectMeta { name: Some(id.to_string()), ..ObjectMeta::default() },
                data: Some([("root".to_owned(), ByteString(vec![0; 32]))].into()),
                ..Secret::default()
            };
            secrets.create(&create, &secret).await?;
            let print = sample::ak(number, number).fingerprint();
            let bound = BoundKey::new(AttestationKey::name_of(&print), print, sample::time(1));
            let status = json!({"attestationKey": bound, "keySecret": id.to_string()});
            let status = Patch::Merge(json!({ "status": status }));
            let name = Machine::name_of(&id);
            machines.patch_status(&name, &patch, &status).await?;
            Ok(())
        })
        .await
}

/// Number of machines that the bare calls have created so far.
#[derive(Debug, Default)]
struct Bare {
    machines: u64,
    took: Duration,
}

/// After each page, creates as many machines by bare calls as the page had: other load on the host then
/// affects both equally.
struct InTurn<'a> {
    plane: &'a ControlPlane,
    namespace: String,
    done: Mutex<anyhow::Result<Bare>>,
}

#[async_trait]
impl Observer for InTurn<'_> {
    async fn page(&self, so_far: &CopyReport) {
        let mut done = self.done.lock().await;
        let Ok(bare_calls) = done.as_mut() else {
            return;
        };
        let (next, last) = (bare_calls.machines + 1, so_far.created);
        let begin = Instant::now();
        match bare(self.plane, &self.namespace, next..=last).await {
            Ok(()) => {
                bare_calls.machines = last;
                bare_calls.took += begin.elapsed();
            }
            Err(error) => *done = Err(error),
        }
    }
}
