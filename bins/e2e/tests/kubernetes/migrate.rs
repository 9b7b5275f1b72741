//! Trust moves into a cluster, from another cluster and from `tec serve`, between real API servers with
//! operators as processes and live key brokers, while nodes boot continuously.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tec_core::ak::AkRecord;
use tec_core::endpoint::Endpoint;
use tec_core::id::ImageName;
use tec_core::ignition::PinConfig;
use tec_core::image::{ApprovedImage, ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::machine::{Machine as Known, RegisteredBy};
use tec_core::pcr::PcrIndex;
use tec_core::port::{AkRegistry, Clock as _, ImageRegistry as _, SecretStore as _};
use tec_core::testing::sample;
use tec_e2e::anchor::Anchor;
use tec_e2e::fleet::{Fleet, SoftNode};
use tec_e2e::kube::{Bench, Broker, Guarded, Server, open, plain_cluster, within};
use tec_e2e::process::Transcript;
use tec_e2e::runbook::commands;
use tec_e2e::settings::{Settings, own_program, picture};
use tec_e2e::{load, wire};
use tec_k8s::api::{AttestationKey, Machine, TrustedExecutionCluster};
use tec_k8s::client::KubeRegistry;
use tec_k8s::render::Component;
use tec_support::SystemClock;
use tec_tpm::testing::SoftTpm;
use tempfile::TempDir;

/// Number of nodes that boot in a loop, unless `TEC_NODES` is set.
const NODES: u64 = 12;
/// Deadline for the operator, on a machine that is also busy otherwise.
const LONG: Duration = Duration::from_mins(2);
/// How long a command runs before it is killed.
const KILLS: [Duration; 4] = [
    Duration::from_millis(60),
    Duration::from_millis(120),
    Duration::from_millis(250),
    Duration::from_millis(500),
];

pub(crate) fn nodes() -> u64 {
    let said = std::env::var_os("TEC_NODES");
    said.map_or(NODES, |said| said.to_str().unwrap().parse().unwrap())
}

/// A cluster with an operator and the broker it feeds.
struct Side {
    bench: Bench,
    broker: Broker,
    operator: Option<Guarded>,
    registration: Server,
}

impl Side {
    async fn start() -> Self {
        let bench = Bench::alone().await.unwrap();
        let broker = Broker::start(1).await.unwrap();
        bench.create(&broker.admin_secret()).await.unwrap();
        let mut object = open(plain_cluster("cluster"));
        object.spec.public_trustee_addr = Some(address(&broker).to_owned());
        bench.create(&object).await.unwrap();
        let flags = ["--trustee-url", broker.url(), "--pcrs", "4"];
        let operator = bench.start_program("one", &flags).unwrap();
        let component = Component::RegisterServer;
        let registration = Server::start(&bench.plane, component, &bench.namespace, &[]);
        Self { registration: registration.await.unwrap(), operator: Some(operator), bench, broker }
    }

    fn registry(&self) -> KubeRegistry {
        let client = self.bench.admin().unwrap();
        KubeRegistry::new(client, &self.bench.namespace, Arc::new(SystemClock))
    }

    fn kbs(&self) -> Endpoint {
        Endpoint::new(self.broker.url().parse().unwrap(), String::new())
    }

    /// Flags of `tec migrate` that name this cluster.
    fn flags(&self, side: &str) -> Vec<String> {
        let kubeconfig = self.bench.plane.admin_kubeconfig().unwrap();
        vec![
            format!("--{side}-namespace={}", self.bench.namespace),
            format!("--{side}-kubeconfig={}", kubeconfig.display()),
        ]
    }

    /// A machine with its key, as created by the registration servers.
    async fn register(&self, number: u64) -> SoftNode {
        let tpm = SoftTpm::p256(number);
        let (id, now) = (sample::machine_id(number), SystemClock.now());
        let machine = Known::unclaimed(id, RegisteredBy::FirstBoot, now);
        self.bench.create(&Machine::from_core(&machine)).await.unwrap();
        let key = AkRecord::pending(tpm.public_key().clone(), id, None, now);
        let key = AttestationKey::from_core(&key);
        self.bench.create(&key).await.unwrap();
        SoftNode { tpm, machine: id, boot: vec![event().hash], servers: Vec::new() }
    }

    /// Makes new nodes try the other side's broker after this one.
    async fn also(&self, other: &Self) {
        let trustee = json!({"address": address(&other.broker), "dangerousPlainHttp": true});
        let patch = Patch::Merge(json!({"spec": {"additionalTrustees": [trustee]}}));
        let clusters = self.bench.objects::<TrustedExecutionCluster>().unwrap();
        clusters.patch("cluster", &PatchParams::default(), &patch).await.unwrap();
        within(LONG, "nodes get two key brokers", async || {
            Ok(self.pin().await.is_some_and(|pin| pin.servers.len() == 2))
        })
        .await
        .unwrap();
    }

    /// The pin that the registration server issues for a first boot.
    async fn pin(&self) -> Option<PinConfig> {
        let reply = wire::get("", &self.first_boot()).await.unwrap();
        let pin = reply.body.pointer("/storage/luks/0/clevis/custom/config")?;
        Some(PinConfig::parse(pin.as_str()?).unwrap())
    }

    /// A node that knows only what the registration server sent.
    async fn first_boot_of(&self, number: u64) -> SoftNode {
        let pin = self.pin().await.unwrap();
        let (tpm, machine) = (SoftTpm::p256(number), pin.path.machine().unwrap());
        let key = AkRecord::pending(tpm.public_key().clone(), machine, None, SystemClock.now());
        self.bench.create(&AttestationKey::from_core(&key)).await.unwrap();
        SoftNode { tpm, machine, boot: vec![event().hash], servers: pin.servers }
    }

    fn first_boot(&self) -> String {
        format!("http://{}/ignition-clevis-pin-trustee", self.registration.address)
    }

    /// Waits until this many machines have their keys in the broker.
    async fn publishes(&self, count: usize) {
        within(LONG, "all keys are published", async || {
            let machines = self.bench.objects::<Machine>()?;
            let all = machines.list(&ListParams::default()).await?.items;
            let bound = all.iter().filter(|machine| machine.bound_key().is_some());
            Ok(bound.count() == count && self.registry().unpublished().await? == 0)
        })
        .await
        .unwrap();
    }

    /// The registration server's answer to a first boot.
    async fn answer(&self) -> String {
        let reply = wire::get("", &self.first_boot()).await.unwrap();
        if reply.status == 200 { "registered".to_owned() } else { reply.code() }
    }

    async fn says(&self, expected: &str) {
        let what = format!("the registration server says {expected}");
        within(LONG, &what, async || Ok(self.answer().await == expected)).await.unwrap();
    }

    /// Stops everything that nodes could reach.
    fn switch_off(&mut self) {
        self.operator = None;
        self.broker.set_down(true);
    }
}

/// Host and port of a broker.
fn address(broker: &Broker) -> &str {
    broker.url().strip_prefix("http://").unwrap()
}

fn event() -> ImageEvent {
    let digest = tec_core::digest::Sha256Digest::of("shim");
    ImageEvent::new("EV_IPL", PcrIndex::BOOT_MANAGER, digest, "shim")
}

fn image() -> ApprovedImage {
    let pcr = ExpectedPcr::from_events(PcrIndex::BOOT_MANAGER, [event()]);
    let expected = ExpectedPcrs::new(vec![pcr]);
    let name: ImageName = "current".parse().unwrap();
    let reference = format!("registry.example/os@sha256:{:064x}", 1);
    ApprovedImage::new(name, reference, expected, SystemClock.now())
}

/// `tec migrate` between two anchors.
struct Tool {
    program: PathBuf,
    way: Vec<String>,
    state_dir: PathBuf,
    logs: Transcript,
    _directory: TempDir,
}

impl Tool {
    fn new(way: Vec<String>, state_dir: Option<PathBuf>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self {
            program: own_program("tec").unwrap(),
            way,
            state_dir: state_dir.unwrap_or_else(|| directory.path().join("none")),
            logs: Transcript::new(directory.path().join("logs")).unwrap(),
            _directory: directory,
        }
    }

    fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["--output=json", "--log=warn", "--state-dir"]);
        command.arg(&self.state_dir).args(["migrate", verb]);
        command.args(&self.way).args((verb == "retire").then_some("--yes"));
        command
    }

    fn migrate(&self, verb: &str) -> anyhow::Result<Value> {
        let printed = self.logs.must(&mut self.command(verb))?;
        Ok(serde_json::from_str(&printed)?)
    }

    fn must(&self, verb: &str) -> Value {
        self.migrate(verb).unwrap()
    }

    fn roles(&self) -> [String; 2] {
        let status = self.must("status");
        ["source", "target"].map(|side| status[side]["role"].as_str().unwrap().to_owned())
    }

    /// Kills the command several times at different moments, then lets it finish.
    async fn despite_kills(&self, verb: &str) -> Value {
        for after in KILLS {
            let mut command = self.command(verb);
            let command = command.stdin(Stdio::null()).stdout(Stdio::null());
            let mut child = command.stderr(Stdio::null()).spawn().unwrap();
            tokio::time::sleep(after).await;
            let _ = child.kill();
            child.wait().unwrap();
        }
        self.must(verb)
    }

    /// Retires the source as soon as the target's operator has published all keys to its broker.
    async fn retire(&self) {
        within(LONG, "the source is retired", async || match self.migrate("retire") {
            Ok(_) => Ok(true),
            Err(error) if format!("{error:#}").contains("TEC-M422") => Ok(false),
            Err(error) => Err(error),
        })
        .await
        .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_boot_fails_while_trust_moves_from_cluster_to_cluster() {
    let sides = Box::pin(futures::future::join(Side::start(), Side::start()));
    let (mut source, target) = sides.await;
    source.registry().put(&image()).await.unwrap();
    let count = nodes();
    source.also(&target).await;
    let mut fleet = Vec::new();
    for number in 1..=count {
        fleet.push(source.first_boot_of(number).await);
    }
    let expected = [source.kbs(), target.kbs()];
    assert!(fleet.iter().all(|node| node.servers == expected), "from the server, in this order");
    let known = machines(&source).await;
    let size = fleet.len();
    source.publishes(size).await;
    let tool = Tool::new([source.flags("from"), target.flags("to")].concat(), None);
    let first_machine = fleet[0].machine;
    let fleet = Fleet::start(fleet);
    fleet.go_on("before").unwrap();
    let planned = tool.must("plan");
    assert_eq!(planned["copy"]["created"], known + 1, "{planned}");
    assert_eq!(tool.roles(), ["active", "active"], "a plan changes nothing");

    tool.despite_kills("apply").await;
    assert_eq!(tool.roles(), ["active", "standby"]);
    target.says("TEC-M504").await;
    assert!(target.broker.paths().await.is_empty(), "it serves nobody");
    fleet.go_on("copied").unwrap();
    assert_eq!(tool.must("verify")["outcome"], "reached");

    tool.despite_kills("cutover").await;
    assert_eq!(tool.roles(), ["serve-only", "active"]);
    source.says("TEC-M503").await;
    target.says("registered").await;
    fleet.go_on("cut over").unwrap();

    tool.despite_kills("rollback").await;
    assert_eq!(tool.roles()[0], "active");
    source.says("registered").await;
    fleet.go_on("rolled back").unwrap();
    tool.must("cutover");
    fleet.go_on("cut over again").unwrap();
    // The brokers in the new cluster run on nodes that need them: the old anchor helps.
    target.broker.set_down(true);
    fleet.go_on("all of the new cluster is down").unwrap();
    target.broker.set_down(false);

    // The old anchor no longer binds keys, the new one does.
    let (stray, late) = (source.register(900).await, target.register(901).await);
    target.publishes(size + 1).await;
    let refused = source.registry().bound_to(&stray.machine).await.unwrap();
    assert_eq!(refused, None, "the old anchor approves nothing");
    let asked = vec![source.kbs(), target.kbs()];
    let late = SoftNode { servers: asked, ..late };
    assert_eq!(late.boot().await, Ok(1), "known at the new one only");

    tool.retire().await;
    assert_eq!(tool.roles(), ["retired", "active"]);
    source.says("TEC-M410").await;
    let path = tec_core::id::ResourcePath::luks_root(&first_machine);
    assert!(!source.registry().exists(&path).await.unwrap(), "shredded");
    within(LONG, "the old broker is empty", async || Ok(source.broker.paths().await.is_empty()))
        .await
        .unwrap();
    fleet.go_on("retired").unwrap();
    source.switch_off();
    fleet.go_on("switched off").unwrap();
    let first = fleet.latest().into_iter().find(|boot| boot.node == 0);
    assert_eq!(first.unwrap().by, Ok(1), "the node that was first");
    owners_are_of_the_target(&target).await;
    let picture = picture("from-cluster-to-cluster").unwrap();
    let servers = ["the cluster outside", "the new cluster"];
    let by = fleet.end(&picture, "From cluster to cluster", &servers).unwrap();
    println!("no failed boot of {count} nodes: {by:?} by the cluster that answered");
    assert!(by.iter().all(|count| *count > 0), "both answered: {by:?}");
}

/// The number of machines, including those that requested a config and never registered a key.
async fn machines(side: &Side) -> usize {
    let machines = side.bench.objects::<Machine>().unwrap();
    machines.list(&ListParams::default()).await.unwrap().items.len()
}

/// Every disk key belongs to its machine in this cluster.
async fn owners_are_of_the_target(target: &Side) {
    let machines = target.bench.objects::<Machine>().unwrap();
    let machines = machines.list(&ListParams::default()).await.unwrap().items;
    let secrets = target.bench.objects::<Secret>().unwrap();
    for machine in machines.iter().filter(|machine| machine.bound_key().is_some()) {
        let secret = secrets.get(&machine.spec.id).await.unwrap();
        let owners = secret.metadata.owner_references.unwrap_or_default();
        assert_eq!(owners.len(), 1, "{}", machine.spec.id);
        assert_eq!(Some(&owners[0].uid), machine.metadata.uid.as_ref());
        assert_eq!(secret.immutable, Some(true));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_boot_fails_while_trust_moves_from_a_laptop_into_the_cluster() {
    let target = Side::start().await;
    let directory = tempfile::tempdir().unwrap();
    let settings = Settings::for_tests(&directory.path().join("unused.html")).unwrap();
    let logs = Arc::new(Transcript::new(directory.path().join("logs")).unwrap());
    let state_dir = directory.path().join("laptop");
    let rates = ["--register-rate=100000", "--kbs-rate=100000", "--pcrs=4"];
    let mut laptop = Anchor::start(&settings, &state_dir, &logs, &rates).unwrap();
    let root = settings.image("current");
    let approval = ["image", "approve", "debian", root.to_str().unwrap(), "--accept-unpinned"];
    let boot = load::boot_digests(&laptop.tec(&approval).unwrap()).unwrap();
    let mut fleet = Vec::new();
    for seed in 1..=nodes() {
        fleet.push(SoftNode {
            boot: boot.clone(),
            servers: vec![laptop.kbs().unwrap(), target.kbs()],
            ..load::register(&laptop, seed).await.unwrap()
        });
    }
    let tool = Tool::new(target.flags("to"), Some(state_dir));
    let fleet = Fleet::start(fleet);
    fleet.go_on("before").unwrap();
    tool.despite_kills("apply").await;
    target.says("TEC-M504").await;
    let again = tool.must("apply");
    assert_eq!(again["copy"]["created"], 0, "{again}");
    let (kubeconfig, own) =
        (target.bench.plane.admin_kubeconfig().unwrap(), tool.state_dir.clone());
    let names = [
        ("/srv/outside", own.to_str().unwrap()),
        ("tec-system", &target.bench.namespace),
        ("new.yaml", kubeconfig.to_str().unwrap()),
    ];
    let page = "how-to/move-trust-to-another-anchor.md";
    for words in commands(page, "Move into a cluster", &names).unwrap() {
        let mut command = Command::new(&tool.program);
        tool.logs.must(command.args(&words[1..])).unwrap();
    }
    assert_eq!(tool.roles(), ["serve-only", "active"]);
    fleet.go_on("cut over").unwrap();
    tool.retire().await;
    fleet.go_on("retired").unwrap();
    laptop.kill().unwrap();
    fleet.go_on("switched off").unwrap();
    let first = fleet.latest().into_iter().find(|boot| boot.node == 0);
    assert_eq!(first.unwrap().by, Ok(1), "the node that was first");
    owners_are_of_the_target(&target).await;
    let picture = picture("from-laptop-to-cluster").unwrap();
    let title = "From a laptop into the cluster";
    let by = fleet.end(&picture, title, &["the laptop", "the cluster"]).unwrap();
    println!("no failed boot of {} nodes: {by:?} by the anchor that answered", nodes());
    assert!(by.iter().all(|count| *count > 0), "both answered: {by:?}");
}
