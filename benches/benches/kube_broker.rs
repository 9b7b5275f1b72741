//! Unlocks by three replicas of the embedded broker, over a Kubernetes API server and with shared sessions,
//! against the broker over the embedded store, as `tec serve` runs it: processor time of the brokers, without
//! clients and API server, and the number of requests to the API server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{fs, io};

use anyhow::Context as _;
use kube::Client;
use serde_json::{Value, json};
use tec_benches::load::float;
use tec_benches::{Figure, Ratio, Suite, Unit};
use tec_core::ak::{AkCandidate, ManualMatcher};
use tec_core::attest::{PinnedPcrs, Tee};
use tec_core::digest::Sha256Digest;
use tec_core::flow;
use tec_core::flow::{AkPorts, ClaimLimits, ProvisionPorts};
use tec_core::id::{MachineId, ResourcePath};
use tec_core::image::{ApprovedImage, ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::luks::CompatLuksKey;
use tec_core::machine::{Machine, RegisteredBy};
use tec_core::pcr::PcrIndex;
use tec_core::port::{Clock, EntropyRng, MachineRegistry, UnclaimedLimit};
use tec_core::secret::SecretArray;
use tec_core::store::Store;
use tec_core::testing::{ManualClock, MemoryRegistry, SeededEntropy};
use tec_core::time::Timestamp;
use tec_e2e::kube::{ControlPlane, Link, Traffic};
use tec_k8s::client::KubeRegistry;
use tec_k8s::server::WatchedImages;
use tec_tpm::testing::SoftTpm;
use tec_tpm::verifier::TpmVerifier;
use tec_trustee::jwe::{Curve, EcPrivateKey};
use tec_trustee::kbs::{Kbs, KbsConfig, LiveBackend, LivePorts};
use tec_trustee::policy::PolicyIntent;
use tec_trustee::report_data::{HashAlgorithm, primary};
use tec_trustee::token::TokenSigner;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

/// Machines that unlock at the same time.
const NODES: u64 = 16;
const REPLICAS: u64 = 3;
/// Unlocks per machine in one round, and pairs of rounds; odd, so that the median is one of them.
const UNLOCKS: u64 = 20;
const PAIRS: usize = 7;
/// Approved images, and events of each.
const IMAGES: u64 = 8;
const EVENTS: u64 = 40;

/// Processor time of the brokers; its inverse is the ratio of unlocks per processor second.
const PROCESSOR: &str = "kube_broker/processor";
/// Replicas in memory with shared sessions against the same with their own sessions.
const SEALED: &str = "kube_broker/sealed";
const REQUESTS: &str = "kube_broker/requests";
const BYTES: &str = "kube_broker/bytes";
const NAMES: [&str; 4] = [PROCESSOR, SEALED, REQUESTS, BYTES];

/// Name of the threads that do not work for a broker.
const CLIENT: &str = "client";

fn main() -> anyhow::Result<()> {
    let suite = Suite::new(env!("CARGO_TARGET_TMPDIR"));
    if !NAMES.iter().any(|name| suite.wants(name)) {
        return Ok(());
    }
    let bench = Bench { clients: runtime(CLIENT)?, brokers: runtime("broker")? };
    let nodes: Arc<Vec<Node>> = Arc::new((1..=NODES).map(Node::new).collect::<Result<_, _>>()?);
    let plane = bench.clients.block_on(ControlPlane::start())?;
    let namespace = bench.clients.block_on(async {
        plane.install_resources().await?;
        plane.namespace("bench").await
    })?;
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let store = Arc::new(Store::open(&directory.path().join("store"), &SeededEntropy::new(3))?);
    let stored = LivePorts::of(store.clone(), clock());
    bench.clients.block_on(enroll(&*store, &stored, &nodes))?;
    let registry = |client: Client| KubeRegistry::new(client, &namespace, clock());
    bench.clients.block_on(async {
        let objects = registry(plane.admin()?);
        enroll(&objects, &over(&objects), &nodes).await
    })?;
    let alone = bench.serve(1, Sessions::Own, async || Ok(stored.clone()))?;
    let link = bench.clients.block_on(async { Link::new(plane.admin()?).await })?;
    for (images, suffix) in [(Images::Watched, ""), (Images::Listed, "/unwatched")] {
        let replicas =
            async || Ok(images.of(over(&registry(plane.admin()?)), registry(plane.admin()?)));
        let direct = bench.serve(REPLICAS, Sessions::Shared, replicas)?;
        let pairs = bench.pairs(&nodes, &direct, &alone)?;
        let what = "three replicas over an API server / one over the store";
        report(&suite, &format!("{PROCESSOR}{suffix}"), what, &pairs)?;
        let replicas =
            async || Ok(images.of(over(&registry(link.client()?)), registry(link.client()?)));
        let counted = bench.serve(REPLICAS, Sessions::Shared, replicas)?;
        bench.storm(&nodes, &counted, 2)?;
        link.take_traffic();
        bench.storm(&nodes, &counted, UNLOCKS)?;
        traffic(&suite, suffix, &link.take_traffic())?;
    }

    let registry = Arc::new(MemoryRegistry::new());
    let memory = LivePorts::of(registry.clone(), clock());
    bench.clients.block_on(enroll(&*registry, &memory, &nodes))?;
    let shared = bench.serve(REPLICAS, Sessions::Shared, async || Ok(memory.clone()))?;
    let own = bench.serve(1, Sessions::Own, async || Ok(memory.clone()))?;
    let pairs = bench.pairs(&nodes, &shared, &own)?;
    report(&suite, SEALED, "over memory: sessions that are sealed / that one process has", &pairs)?;
    suite.finish();
    Ok(())
}

/// Where a broker gets the images from.
#[derive(Clone, Copy)]
enum Images {
    /// From the API server at each use.
    Listed,
    /// From a watch.
    Watched,
}

impl Images {
    fn of(self, ports: LivePorts, registry: KubeRegistry) -> LivePorts {
        if let Self::Listed = self {
            return ports;
        }
        let images = Arc::new(WatchedImages::new(registry));
        let watch = images.clone();
        #[expect(clippy::disallowed_methods, reason = "the watch ends with the program")]
        tokio::spawn(async move { watch.run().await });
        let mut ports = ports;
        ports.images = images;
        ports
    }
}

fn traffic(suite: &Suite, suffix: &str, traffic: &Traffic) -> anyhow::Result<()> {
    let each = |count: u64| float(count) / float(NODES * UNLOCKS);
    let kinds = traffic.requests.iter();
    let kinds: Vec<_> = kinds.map(|(name, count)| format!("{:.2} {name}", each(*count))).collect();
    let note = format!("of the API server for each unlock: {}", kinds.join(", "));
    let count = each(traffic.total());
    suite.figure(Figure::new(&format!("{REQUESTS}{suffix}"), count, Unit::Count, &note))?;
    let note = format!("of bodies for each unlock, with {IMAGES} images of {EVENTS} events");
    let bytes = each(traffic.bytes);
    suite.figure(Figure::new(&format!("{BYTES}{suffix}"), bytes, Unit::Bytes, &note))
}

fn report(suite: &Suite, name: &str, what: &str, pairs: &[(f64, f64)]) -> anyhow::Result<()> {
    let ratio = Ratio::of_rounds(name, pairs);
    let note = format!(
        "times the processor time of an unlock, {what}; unlocks per second of a processor: {}",
        ratio.per_second()
    );
    suite.figure(Figure::new(name, ratio.ratio, Unit::Count, &note))
}

fn runtime(name: &str) -> io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(2).thread_name(name).enable_all().build()
}

/// A clock that stands still, like that of a software TPM: a TPM whose clock falls behind counts as a copy.
fn clock() -> Arc<dyn Clock> {
    Arc::new(ManualClock::new(Timestamp::from_unix_seconds(1_800_000_000)))
}

/// The ports of a broker over an API server. Attempts are kept in memory: in a cluster they are written in
/// parallel with the unlocks.
fn over(registry: &KubeRegistry) -> LivePorts {
    let registry = Arc::new(registry.clone());
    LivePorts::new(
        registry.clone(),
        registry.clone(),
        registry.clone(),
        registry.clone(),
        (registry.clone(), registry),
        Arc::new(MemoryRegistry::new()),
        clock(),
    )
}

/// A machine after its approved boot.
struct Node {
    id: MachineId,
    tpm: SoftTpm,
    key: Value,
}

impl Node {
    fn new(number: u64) -> anyhow::Result<Self> {
        let tpm = SoftTpm::rsa(number);
        tpm.extend(PcrIndex::BOOT_MANAGER, &Sha256Digest::of("shim"));
        let entropy = SeededEntropy::new(number);
        let mut rng = EntropyRng::new(&entropy);
        let id = MachineId::random(&mut rng);
        let key = serde_json::to_value(EcPrivateKey::generate(Curve::P256, &mut rng).public())?;
        Ok(Self { id, tpm, key })
    }

    fn evidence(&self, nonce: &str) -> anyhow::Result<Value> {
        let report_data = primary(nonce, &self.key, "", HashAlgorithm::Sha384)?;
        let quoted = report_data.get(..32).context("48 bytes")?;
        Ok(json!({
            "init-data": null,
            "runtime-data": {"nonce": nonce, "tee-pubkey": self.key},
            "tee-evidence": {
                "primary_evidence": self.tpm.quote(quoted).to_value(), "additional_evidence": "",
            },
        }))
    }

    /// Sends each request to the next of the brokers.
    async fn unlock(&self, http: &reqwest::Client, brokers: &Brokers) -> anyhow::Result<()> {
        let auth = json!({"version": "0.4.0", "tee": "tpm", "extra-params": {}});
        let answer = http.post(brokers.next("auth")?).body(auth.to_string()).send().await?;
        let cookie = cookie(&answer)?;
        let challenge: Value = serde_json::from_str(&answer.error_for_status()?.text().await?)?;
        let nonce = challenge.get("nonce").and_then(Value::as_str).context("a nonce")?;
        let attest = http.post(brokers.next("attest")?).header("cookie", cookie);
        let attest = attest.body(self.evidence(nonce)?.to_string());
        let answer = attest.send().await?.error_for_status()?;
        let cookie = self::cookie(&answer)?;
        answer.bytes().await?;
        let path = format!("resource/{}", ResourcePath::luks_root(&self.id));
        let get = http.get(brokers.next(&path)?).header("cookie", cookie);
        get.send().await?.error_for_status()?.bytes().await?;
        Ok(())
    }
}

fn cookie(answer: &reqwest::Response) -> anyhow::Result<String> {
    let header = answer.headers().get("set-cookie").context("a cookie")?.to_str()?;
    Ok(header.split(';').next().unwrap_or_default().to_owned())
}

/// Registers the machines, and approves images; the machines booted the last one.
async fn enroll(
    machines: &dyn MachineRegistry,
    ports: &LivePorts,
    nodes: &[Node],
) -> anyhow::Result<()> {
    let now = ports.clock.now();
    for node in nodes {
        let fresh = Machine::unclaimed(node.id, RegisteredBy::Admin, now);
        machines.create(&fresh, UnclaimedLimit::Unlimited).await?;
        let (aks, audit) = (&*ports.aks, &*ports.audit);
        let approval = AkPorts::new(machines, aks, &ManualMatcher, audit, &*ports.clock);
        let key = AkCandidate::from_admin(node.tpm.public_key(), None);
        flow::approve(approval.with_claims(ClaimLimits::NONE), node.id, key).await?;
        let entropy = SeededEntropy::new(2);
        let key = ProvisionPorts::new(&*ports.secrets, &CompatLuksKey, &*ports.clock, &entropy);
        flow::provision(key, node.id).await?;
    }
    for number in 1..=IMAGES {
        let pcr = PcrIndex::BOOT_MANAGER;
        let event = |digest| ImageEvent::new("EV_IPL", pcr, digest, "shim");
        let shim = Sha256Digest::of("shim");
        let others = (1..EVENTS).map(|n| event(Sha256Digest::of(format!("{number} {n}"))));
        let events: Vec<_> = match number {
            IMAGES => vec![event(shim)],
            _ => others.collect(),
        };
        let expected = ExpectedPcrs::new(vec![ExpectedPcr::from_events(pcr, events)]);
        let name = format!("image-{number}").parse()?;
        let image = ApprovedImage::new(name, "registry.example/os", expected, now);
        ports.images.put(&image).await?;
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Sessions {
    Own,
    Shared,
}

/// Brokers that a balancer uses in turn.
struct Brokers {
    addresses: Vec<SocketAddr>,
    next: AtomicUsize,
}

impl Brokers {
    fn next(&self, place: &str) -> anyhow::Result<String> {
        let number = self.next.fetch_add(1, Ordering::Relaxed) % self.addresses.len().max(1);
        let address = self.addresses.get(number).context("there is no such broker")?;
        Ok(format!("http://{address}/kbs/v0/{place}"))
    }
}

fn broker(ports: LivePorts, number: u64, sessions: Sessions) -> anyhow::Result<Kbs> {
    let intent = PolicyIntent::new(PinnedPcrs::boot_manager(), [Tee::Tpm])?;
    let clock = ports.clock.clone();
    let backend = Arc::new(LiveBackend::new(ports, &intent));
    let signer = TokenSigner::random(&mut EntropyRng::new(&SeededEntropy::new(1)));
    let entropy = Arc::new(SeededEntropy::new(number));
    let verifier = Arc::new(TpmVerifier::new());
    let config = KbsConfig::new(backend, verifier, signer, clock, entropy);
    Ok(Kbs::new(match sessions {
        Sessions::Own => config,
        Sessions::Shared => config.with_shared_sessions(SecretArray::new([7; 32])),
    }))
}

struct Bench {
    clients: Runtime,
    brokers: Runtime,
}

impl Bench {
    fn serve(
        &self,
        count: u64,
        sessions: Sessions,
        ports: impl AsyncFn() -> anyhow::Result<LivePorts>,
    ) -> anyhow::Result<Arc<Brokers>> {
        let addresses = self.brokers.block_on(async {
            let mut addresses = Vec::new();
            for number in 0..count {
                let router = broker(ports().await?, number, sessions)?.router();
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
                addresses.push(listener.local_addr()?);
                #[expect(clippy::disallowed_methods, reason = "the broker ends with the program")]
                tokio::spawn(async move { axum::serve(listener, router).await });
            }
            anyhow::Ok(addresses)
        })?;
        Ok(Arc::new(Brokers { addresses, next: AtomicUsize::new(0) }))
    }

    /// This many unlocks per machine, all machines concurrently.
    fn storm(
        &self,
        nodes: &Arc<Vec<Node>>,
        brokers: &Arc<Brokers>,
        times: u64,
    ) -> anyhow::Result<()> {
        self.clients.block_on(async {
            let http = reqwest::Client::builder().no_proxy().build()?;
            let mut tasks = JoinSet::new();
            for number in 0..nodes.len() {
                let (http, nodes, brokers) = (http.clone(), nodes.clone(), brokers.clone());
                tasks.spawn(async move {
                    let node = nodes.get(number).context("a machine")?;
                    for _ in 0..times {
                        node.unlock(&http, &brokers).await?;
                    }
                    anyhow::Ok(())
                });
            }
            for done in tasks.join_all().await {
                done.context("an unlock failed")?;
            }
            Ok(())
        })
    }

    /// Processor time of the brokers in nanoseconds per unlock, in alternating rounds.
    fn pairs(
        &self,
        nodes: &Arc<Vec<Node>>,
        ours: &Arc<Brokers>,
        baseline: &Arc<Brokers>,
    ) -> anyhow::Result<Vec<(f64, f64)>> {
        let round = |brokers: &Arc<Brokers>| {
            let before = brokers_time()?;
            self.storm(nodes, brokers, UNLOCKS)?;
            let took = brokers_time()?.saturating_sub(before);
            anyhow::Ok(took.as_secs_f64() * 1e9 / float(NODES * UNLOCKS))
        };
        for brokers in [ours, baseline] {
            self.storm(nodes, brokers, 2)?;
        }
        (0..PAIRS).map(|_| Ok((round(ours)?, round(baseline)?))).collect()
    }
}

/// Processor time of all threads of this process, except its main thread and the clients (Linux,
/// proc_pid_stat(5): fields 14 and 15, in hundredths of a second).
fn brokers_time() -> anyhow::Result<Duration> {
    let main = std::process::id().to_string();
    let mut ticks = 0;
    for task in fs::read_dir("/proc/self/task")? {
        let task = task?;
        // A thread that has ended in the meantime has no file.
        let Ok(stat) = fs::read_to_string(task.path().join("stat")) else {
            continue;
        };
        let (head, tail) = stat.rsplit_once(") ").context("the process status has no name")?;
        if task.file_name().to_string_lossy() == main || head.contains(CLIENT) {
            continue;
        }
        let times = tail.split(' ').skip(11).take(2).map(str::parse::<u64>);
        ticks += times.sum::<Result<u64, _>>()?;
    }
    Ok(Duration::from_millis(10 * ticks))
}
