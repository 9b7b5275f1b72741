//! Registrations over HTTP against the minimum for a registration: one `create` of the same object by one
//! client with the same permissions, at the same API server, in alternation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use kube::api::{ListParams, ObjectMeta, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde::de::DeserializeOwned;
use serde_json::json;
use tec_benches::load::Tally;
use tec_benches::{Figure, Ratio, Suite, Unit, load};
use tec_core::ak::AkRecord;
use tec_core::id::MachineId;
use tec_core::machine::{Machine, RegisteredBy};
use tec_core::port::EntropyRng;
use tec_core::testing::{ManualClock, SeededEntropy, sample};
use tec_e2e::kube::{ControlPlane, Server, program};
use tec_k8s::api;
use tec_k8s::api::TrustedExecutionCluster;
use tec_k8s::client::KubeRegistry;
use tec_k8s::render::Component;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// Deadline for a server to know its cluster.
const SETTLED: Duration = Duration::from_secs(30);
/// Concurrent requests: enough to keep the API server busy in both cases, although a registration waits for
/// it twice.
const CALLERS: u64 = 64;
/// Minimum number of requests in a round, so that its start and end, with fewer in flight, matter little.
const LEAST: u64 = 8 * CALLERS;
/// Numbers of existing keys when a submission is measured; they must not matter. The environment may set the
/// larger one.
const FEW: u64 = 100;
const MANY: u64 = 10_000;
const MANY_VARIABLE: &str = "TEC_BENCH_KEYS";
/// Maximum number of keys that the rounds use, besides those that should exist.
const SPENT: u64 = 80_000;
/// Pairs of rounds at each of the two numbers; odd, so that the median is one of them.
const PAIRS: usize = 9;
/// Keys that are accepted for one machine.
const KEYS_OF_A_MACHINE: u64 = 4;

/// The measurements; the 99th percentile of each is reported too.
const NAMES: [&str; 3] = [MACHINE, KEY, KEY_GROWTH];
const MACHINE: &str = "kube_registration/machine";
const KEY: &str = "kube_registration/key";
const KEY_GROWTH: &str = "kube_registration/key_growth";

fn main() -> anyhow::Result<()> {
    let suite = Suite::new(env!("CARGO_TARGET_TMPDIR"));
    if !NAMES.iter().any(|name| suite.wants(name)) {
        return Ok(());
    }
    program("register-server")?;
    let runtime = load::runtime()?;
    let world = runtime.block_on(World::start())?;
    machines(&suite, &runtime, &world)?;
    keys(&suite, &runtime, &world)?;
    suite.finish();
    Ok(())
}

/// A cluster with both servers.
struct World {
    // Servers stop before what they talk to.
    register: Server,
    keys: Server,
    client: Client,
    /// Clients with the service accounts of the two servers.
    as_register: Client,
    as_keys: Client,
    namespace: String,
    http: reqwest::Client,
    _plane: ControlPlane,
}

impl World {
    async fn start() -> anyhow::Result<Self> {
        let plane = ControlPlane::start().await?;
        plane.install_resources().await?;
        let namespace = plane.namespace("bench").await?;
        let client = plane.admin()?;
        let clusters: Api<TrustedExecutionCluster> = Api::namespaced(client.clone(), &namespace);
        let cluster = serde_json::from_value(json!({
            "apiVersion": "trusted-execution-clusters.io/v1alpha1",
            "kind": "TrustedExecutionCluster",
            "metadata": { "name": "c" },
            "spec": {
                "publicTrusteeAddr": "kbs.example:8080",
                "dangerousPlainHttp": true,
                "registration": { "mode": "Open", "maxUnclaimed": 4_000_000 },
            },
        }))?;
        clusters.create(&PostParams::default(), &cluster).await?;
        // As the operator does.
        let clock = Arc::new(ManualClock::new(sample::time(0)));
        KubeRegistry::new(client.clone(), &namespace, clock).remember_again().await?;
        let start = async |component| Server::start(&plane, component, &namespace, &[]).await;
        let account = async |component| {
            let file = plane.component(component, &namespace).await?;
            let config = Kubeconfig::read_from(file)?;
            let context = KubeConfigOptions::default();
            let config = Config::from_custom_kubeconfig(config, &context).await?;
            anyhow::Ok(Client::try_from(config)?)
        };
        let world = Self {
            register: start(Component::RegisterServer).await?,
            keys: start(Component::AttestationKeyRegister).await?,
            as_register: account(Component::RegisterServer).await?,
            as_keys: account(Component::AttestationKeyRegister).await?,
            client,
            http: reqwest::Client::builder().no_proxy().build()?,
            namespace,
            _plane: plane,
        };
        world.settle().await?;
        Ok(world)
    }

    fn objects<K>(&self, client: &Client) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(client.clone(), &self.namespace)
    }

    /// What a server writes into the metadata of its objects: owner and annotations. Bare objects get the
    /// same.
    fn written<K>(&self, runtime: &Runtime) -> anyhow::Result<ObjectMeta>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned,
        K::DynamicType: Default,
    {
        let objects = self.objects::<K>(&self.client);
        let some = ListParams::default().limit(1);
        let list = runtime.block_on(objects.list(&some))?;
        let object = list.items.first().context("the server created none")?;
        Ok(ObjectMeta {
            annotations: object.meta().annotations.clone(),
            labels: object.meta().labels.clone(),
            owner_references: object.meta().owner_references.clone(),
            ..ObjectMeta::default()
        })
    }

    /// Requests a config until the server returns one.
    async fn settle(&self) -> anyhow::Result<()> {
        let url = self.config();
        let begin = Instant::now();
        loop {
            let answer = self.http.get(&url).send().await?;
            if answer.status() == 200 {
                return Ok(());
            }
            let answer = answer.text().await?;
            anyhow::ensure!(begin.elapsed() < SETTLED, "no config after {SETTLED:?}: {answer}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn config(&self) -> String {
        format!("http://{}/ignition-clevis-pin-trustee", self.register.address)
    }
}

/// Does `times` operations, some concurrently; the time is scaled to `times`.
fn storm<F>(runtime: &Runtime, times: u64, operation: impl Fn() -> F) -> Duration
where
    F: Future<Output = ()> + Send + 'static,
{
    let done = times.next_multiple_of(LEAST);
    let begin = Instant::now();
    runtime.block_on(async {
        let mut tasks = JoinSet::new();
        for _ in 0..done {
            if tasks.len() as u64 >= CALLERS {
                tasks.join_next().await;
            }
            tasks.spawn(operation());
        }
        tasks.join_all().await;
    });
    load::scaled(begin.elapsed(), times, done)
}

async fn answered(answer: reqwest::Response, status: u16) -> anyhow::Result<()> {
    anyhow::ensure!(answer.status() == status, "{}", answer.text().await?);
    answer.bytes().await?;
    Ok(())
}

fn machines(suite: &Suite, runtime: &Runtime, world: &World) -> anyhow::Result<()> {
    let (ours, bare) = (Tally::default(), Tally::default());
    let register = || {
        let (http, url) = (world.http.clone(), world.config());
        ours.clone().time(async move { answered(http.get(url).send().await?, 200).await })
    };
    let entropy = SeededEntropy::new(1);
    let written = world.written::<api::Machine>(runtime)?;
    let create = || {
        let id = MachineId::random(&mut EntropyRng::new(&entropy));
        let object = like(machine_object(id), &written);
        bare.clone().time(create(world.objects(&world.as_register), object))
    };
    suite.ratio_timed(
        MACHINE,
        |ratio| note("GET of a config / create of a Machine", ratio),
        |times| storm(runtime, times, register),
        |times| storm(runtime, times, create),
    )?;
    report_p99(suite, "kube_registration/machine_p99", &ours, &bare)
}

async fn create<K>(objects: Api<K>, object: K) -> anyhow::Result<()>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::Serialize + DeserializeOwned,
{
    objects.create(&PostParams::default(), &object).await?;
    Ok(())
}

/// Adds the metadata that the server writes.
fn like<K: kube::Resource>(mut object: K, written: &ObjectMeta) -> K {
    *object.meta_mut() = ObjectMeta { name: object.meta().name.clone(), ..written.clone() };
    object
}

fn machine_object(id: MachineId) -> api::Machine {
    api::Machine::from_core(&Machine::unclaimed(id, RegisteredBy::FirstBoot, sample::time(0)))
}

fn note(what: &str, ratio: &Ratio) -> String {
    let (ours, bare) = (1e9 / ratio.ours_ns, 1e9 / ratio.baseline_ns);
    format!("{what}, {CALLERS} in flight: {ours:.0} and {bare:.0} a second")
}

/// The 99th percentile: ours as a multiple of that of bare requests.
fn report_p99(suite: &Suite, name: &str, ours: &Tally, bare: &Tally) -> anyhow::Result<()> {
    if !suite.wants(name) {
        return Ok(());
    }
    let (ours, bare) = (ours.p99()?, bare.p99()?);
    let note = format!("times {:.1} ms, the same of a bare create", bare / 1e6);
    suite.figure(Figure::new(name, ours / bare, Unit::Count, &note))
}

/// Keys that nobody has yet, with machines that have room for them.
struct Keys {
    records: Vec<AkRecord>,
    next: AtomicU64,
}

impl Keys {
    /// Creates keys and machines beforehand, so that creating them is not measured.
    fn prepare(runtime: &Runtime, world: &World, number: u64) -> anyhow::Result<Self> {
        let machine = |number: u64| sample::machine_id(number / KEYS_OF_A_MACHINE + 1);
        let numbers = AtomicU64::new(0);
        let made = Tally::default();
        storm(runtime, number / KEYS_OF_A_MACHINE + 1, || {
            let number = numbers.fetch_add(KEYS_OF_A_MACHINE, Ordering::Relaxed);
            made.clone().time(create(world.objects(&world.client), machine_object(machine(number))))
        });
        made.p99()?;
        let record = |number| {
            let public = sample::public_key(number + 1);
            AkRecord::pending(public, machine(number), None, sample::time(0))
        };
        Ok(Self { records: (0..number).map(record).collect(), next: AtomicU64::new(0) })
    }

    fn next(&self) -> Option<&AkRecord> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.records.get(usize::try_from(number).ok()?)
    }
}

fn keys(suite: &Suite, runtime: &Runtime, world: &World) -> anyhow::Result<()> {
    let many = load::number(MANY_VARIABLE, MANY)?;
    let keys = Keys::prepare(runtime, world, many + SPENT)?;
    let (ours, bare) = (Tally::default(), Tally::default());
    let submit = || {
        let body = keys.next().map(|key| {
            json!({ "public_key": key.public.to_pem(), "uuid": key.machine.to_string() })
                .to_string()
        });
        let put = world.http.put(format!("http://{}/register-ak", world.keys.address));
        let put = put.header("content-type", "application/json");
        ours.clone().time(async move {
            let body = body.context("there are too few keys")?;
            answered(put.body(body).send().await?, 201).await
        })
    };
    storm(runtime, 1, submit);
    let written = world.written::<api::AttestationKey>(runtime)?;
    let create = || {
        let object = keys.next().map(api::AttestationKey::from_core);
        let object = object.map(|object| like(object, &written));
        let objects: Api<api::AttestationKey> = world.objects(&world.as_keys);
        bare.clone()
            .time(async move { create(objects, object.context("there are too few keys")?).await })
    };
    let submits = || storm(runtime, LEAST, submit);
    let creates = || storm(runtime, LEAST, create);
    storm(runtime, FEW, create);
    let at_few = median_ratio(submits, creates);
    suite.ratio_timed(
        KEY,
        |ratio| note("PUT of a key / create of an AttestationKey", ratio),
        |times| storm(runtime, times, submit),
        |times| storm(runtime, times, create),
    )?;
    report_p99(suite, "kube_registration/key_p99", &ours, &bare)?;
    let there = keys.next.load(Ordering::Relaxed);
    if there < many {
        storm(runtime, many - there, create);
    }
    let at_many = median_ratio(submits, creates);
    // Creations get slower too as the API server holds more.
    let note = format!("times the ratio at {FEW} keys, at {many}");
    suite.figure(Figure::new(KEY_GROWTH, at_many / at_few, Unit::Count, &note))
}

/// Our time as a multiple of the baseline's, in alternating rounds.
fn median_ratio(ours: impl Fn() -> Duration, baseline: impl Fn() -> Duration) -> f64 {
    let pairs: Vec<_> =
        (0..PAIRS).map(|_| (ours().as_secs_f64(), baseline().as_secs_f64())).collect();
    Ratio::of_rounds("", &pairs).ratio
}
