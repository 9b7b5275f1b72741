//! Five hundred machines while the operator, the API server and the key broker are killed, lose their state
//! and fail at random: in the end each machine has exactly one published key, and deleted machines are gone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt as _};
use tec_core::digest::Sha256Digest;
use tec_core::machine::{Machine as Known, RegisteredBy};
use tec_core::port::{Clock as _, Entropy as _};
use tec_core::testing::{SeededEntropy, sample};
use tec_e2e::kube::{Bench, Broker, Guarded, cluster, within};
use tec_k8s::api::{AttestationKey, Machine};
use tec_support::SystemClock;
use tokio::time::{Instant, sleep};

/// Total number of machines.
const MACHINES: u64 = 500;
/// Seconds of chaos, unless TEC_CHAOS_SECONDS is set.
const SECONDS: u64 = 45;
/// Deadline for the work that remains after the chaos.
const CALM: Duration = Duration::from_mins(4);

fn variable(name: &str, default: u64) -> u64 {
    let text = std::env::var_os(name).and_then(|text| text.into_string().ok());
    text.map_or(default, |text| text.parse().unwrap())
}

/// What happened, printed at the end.
#[derive(Debug, Default)]
struct Tally {
    operator_kills: u32,
    operator_ends: u32,
    api_server_kills: u32,
    broker_losses: u32,
    broker_outages: u32,
    deleted: BTreeSet<u64>,
}

struct Chaos {
    bench: Bench,
    broker: Broker,
    operator: Guarded,
    identities: u32,
    dice: SeededEntropy,
    created: u64,
    tally: Tally,
    /// Every disk key ever seen, by machine ID.
    keys: BTreeMap<String, BTreeSet<Sha256Digest>>,
}

impl Chaos {
    async fn new(seed: u64) -> Self {
        let bench = Bench::alone().await.unwrap();
        let broker = Broker::start(seed).await.unwrap();
        bench.create(&broker.admin_secret()).await.unwrap();
        bench.create(&cluster("cluster")).await.unwrap();
        broker.set_faults(30);
        let operator = bench.start_program("operator-0", &["--trustee-url", broker.url()]);
        Self {
            operator: operator.unwrap(),
            bench,
            broker,
            identities: 0,
            dice: SeededEntropy::new(seed),
            created: 0,
            tally: Tally::default(),
            keys: BTreeMap::new(),
        }
    }

    /// A random number below this one.
    fn roll(&self, below: u64) -> u64 {
        let mut random = [0; 8];
        self.dice.fill(&mut random);
        u64::from_le_bytes(random) % below
    }

    fn objects<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        self.bench.objects().unwrap()
    }

    async fn step(&mut self) {
        match self.roll(100) {
            0..45 => self.create(1 + self.roll(12)).await,
            45..60 => self.delete(1 + self.roll(3)).await,
            60..72 => self.kill_operator(),
            72..77 => self.kill_api_server().await,
            77..80 => {
                self.tally.broker_losses += 1;
                self.broker.lose_everything().unwrap();
            }
            80..85 => {
                self.tally.broker_outages += 1;
                self.broker.set_down(true);
                sleep(Duration::from_millis(self.roll(1500))).await;
                self.broker.set_down(false);
            }
            _ => sleep(Duration::from_millis(self.roll(400))).await,
        }
        self.tend().await;
    }

    async fn create(&mut self, count: u64) {
        for number in self.created..(self.created + count).min(MACHINES) {
            let (id, now) = (sample::machine_id(number), SystemClock.now());
            let machine = Machine::from_core(&Known::unclaimed(id, RegisteredBy::FirstBoot, now));
            self.bench.create(&machine).await.unwrap();
            if number % 2 == 0 {
                let key = AttestationKey::from_core(&sample::ak(number, number));
                self.bench.create(&key).await.unwrap();
            }
            self.created = number + 1;
        }
    }

    async fn delete(&mut self, count: u64) {
        for _ in 0..count.min(self.created) {
            let number = self.roll(self.created);
            if self.tally.deleted.insert(number) {
                let name = Machine::name_of(&sample::machine_id(number));
                let machines = self.objects::<Machine>();
                machines.delete(&name, &DeleteParams::default()).await.unwrap();
            }
        }
    }

    fn kill_operator(&mut self) {
        self.operator.kill();
        self.tally.operator_kills += 1;
        // Either a container restart in its pod, or a new pod.
        self.identities += u32::from(self.roll(4) == 0);
        self.start_operator();
    }

    fn start_operator(&mut self) {
        let identity = format!("operator-{}", self.identities);
        let arguments = ["--trustee-url", self.broker.url()];
        self.operator = self.bench.start_program(&identity, &arguments).unwrap();
    }

    async fn kill_api_server(&mut self) {
        self.tally.api_server_kills += 1;
        let pause = Duration::from_millis(self.roll(2000));
        let plane = self.bench.plane_mut().unwrap();
        plane.stop_api_server();
        sleep(pause).await;
        plane.start_api_server().await.unwrap();
    }

    /// Plays the kubelet, and records all keys.
    async fn tend(&mut self) {
        if !self.operator.is_running() {
            self.tally.operator_ends += 1;
            self.start_operator();
        }
        for secret in self.secrets().await {
            self.see(&secret);
        }
        for (path, digests) in self.broker.take_sent().keys {
            let id = path.split('/').nth(1).unwrap().to_owned();
            // A broker that fails to delete a key gets an empty one instead.
            let digests = digests.into_iter().filter(|digest| *digest != Sha256Digest::of("{}"));
            self.keys.entry(id).or_default().extend(digests);
        }
    }

    /// Secrets that hold disk keys.
    async fn secrets(&self) -> Vec<Secret> {
        let all = self.objects::<Secret>().list(&ListParams::default()).await;
        let mut all = all.unwrap().items;
        all.retain(|secret| secret.immutable == Some(true));
        all
    }

    fn see(&mut self, secret: &Secret) {
        let key = secret.data.as_ref().and_then(|data| data.get("root")).unwrap();
        let digests = self.keys.entry(secret.name_any()).or_default();
        digests.insert(Sha256Digest::of(&key.0));
    }

    /// Machines that are not in their final state yet, out of all.
    async fn open(&mut self) -> Vec<String> {
        self.tend().await;
        let machines = self.objects::<Machine>().list(&ListParams::default()).await;
        let machines: BTreeSet<String> =
            machines.unwrap().iter().map(kube::ResourceExt::name_any).collect();
        let secrets = self.secrets().await;
        let secrets: BTreeMap<String, &Secret> =
            secrets.iter().map(|secret| (secret.name_any(), secret)).collect();
        let mut open = Vec::new();
        for number in 0..MACHINES {
            let id = sample::machine_id(number);
            let is_there = machines.contains(&Machine::name_of(&id));
            let secret = secrets.get(&id.to_string()).and_then(|secret| secret.data.as_ref());
            let key = secret.and_then(|data| data.get("root")).map(|key| key.0.clone());
            let held = self.broker.key(&id).await;
            let is_deleted = self.tally.deleted.contains(&number);
            let is_good = if is_deleted {
                !is_there && key.is_none() && held.is_none()
            } else {
                is_there && key.is_some() && key == held
            };
            if !is_good {
                let (key, held) = (key.is_some(), held.is_some());
                open.push(format!("{number}: {is_deleted} {is_there} {key} {held}"));
            }
        }
        open
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_killed_each_machine_ends_with_one_key_and_the_deleted_are_gone() {
    let mut chaos = Chaos::new(variable("TEC_CHAOS_SEED", 1)).await;
    let end = Instant::now() + Duration::from_secs(variable("TEC_CHAOS_SECONDS", SECONDS));
    while Instant::now() < end {
        chaos.step().await;
    }
    chaos.broker.set_faults(0);
    chaos.create(MACHINES).await;
    let calm = Instant::now();
    let mut open = Vec::new();
    let outcome = within(CALM, "everything settles", async || {
        open = chaos.open().await;
        sleep(Duration::from_millis(500)).await;
        Ok(open.is_empty())
    })
    .await;
    let log = || chaos.operator.log().unwrap();
    assert!(outcome.is_ok(), "{outcome:?}: {open:#?}\n{}", log());
    // One key per machine, among all that were ever seen or sent.
    let several = chaos.keys.iter().filter(|(_, digests)| digests.len() > 1);
    let several: Vec<_> = several.collect();
    assert!(several.is_empty(), "{several:?}, {:?}", chaos.tally);
    assert_eq!(
        chaos.broker.paths().await.len() as u64,
        MACHINES - chaos.tally.deleted.len() as u64
    );
    println!("{:#?}, settled in {:?}", chaos.tally, calm.elapsed());
}
