//! Init and join over ports that fail, lose answers, and kill the process or cut the machine's
//! power at any call: the node ends up bootstrapped or unchanged, and the next attempt succeeds.

use std::fmt;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use async_trait::async_trait;
use proptest::prelude::*;
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng as _;
use tec_core::digest::Sha256Digest;
use tec_core::secret::SecretArray;
use tec_core::testing::block_on;

use super::super::*;
use crate::derive::{ClusterId, MasterSecret, MeasurementSalt};
use crate::init::{InitOutcome, InitRequest, KubeProxy};
use crate::join::JoinOutcome;
use crate::journal::Phase;
use crate::lock::{BootstrapMarker, LockedNode, MarkerState};
use crate::port::{ClusterInitializer, ClusterJoiner, KeyUris, Pause, TicketSource};
use crate::recover::RecoverOutcome;
use crate::state::{NodeState, Role};
use crate::testing::MemoryNode;
use crate::ticket::{CaPin, JoinTicket, PkiFile};
use crate::uri::KmsUri;

/// Maximum number of calls in a test: more mean that it does not converge.
const LIMIT: usize = 2000;
/// Master key 40..5f, salt 60..7f (Constellation).
const KMS: &str = "kms://cluster-kms?key=QEFCQ0RFRkdISUpLTE1OT1BRUlNUVVZXWFlaW1xdXl8=\
                   &salt=YGFiY2RlZmdoaWprbG1ub3BxcnN0dXZ3eHl6e3x9fn8=";

/// What happens at one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mishap {
    None,
    Fails,
    LostAck,
    /// The process, or the whole machine, dies before or after the call.
    Dies(Death, When),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    Process,
    Power,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Before,
    After,
}

const MISHAPS: [Mishap; 6] = [
    Mishap::Fails,
    Mishap::LostAck,
    Mishap::Dies(Death::Process, When::Before),
    Mishap::Dies(Death::Process, When::After),
    Mishap::Dies(Death::Power, When::Before),
    Mishap::Dies(Death::Power, When::After),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Procedure {
    Init,
    Join,
}

/// A node whose calls suffer the mishaps of a schedule.
struct Peril {
    node: Arc<MemoryNode>,
    schedule: Mutex<Box<dyn FnMut(usize) -> Mishap + Send>>,
    calls: Mutex<Vec<&'static str>>,
    death: Mutex<Option<Death>>,
}

impl fmt::Debug for Peril {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Peril")
    }
}

impl Peril {
    fn new(schedule: impl FnMut(usize) -> Mishap + Send + 'static) -> Arc<Self> {
        let disk = "00000000-0000-0000-0000-0000000000aa".parse().unwrap();
        Arc::new(Self {
            node: Arc::new(MemoryNode::new(disk)),
            schedule: Mutex::new(Box::new(schedule)),
            calls: Mutex::default(),
            death: Mutex::default(),
        })
    }

    /// Only a dead process waits here.
    async fn call<R>(
        &self,
        name: &'static str,
        call: impl Future<Output = Result<R, PortError>>,
    ) -> Result<R, PortError> {
        let number = {
            let mut calls = self.calls.lock().unwrap();
            calls.push(name);
            assert!(calls.len() <= LIMIT, "no end: {:?}", &calls[LIMIT - 8..]);
            calls.len() - 1
        };
        let mishap = (self.schedule.lock().unwrap())(number);
        let lost = || PortError::new(PortErrorKind::Unavailable, name);
        match mishap {
            Mishap::None => call.await,
            Mishap::Fails => Err(lost()),
            Mishap::LostAck => call.await.and_then(|_| Err(lost())),
            Mishap::Dies(death, when) => {
                if when == When::After {
                    let _ = call.await;
                }
                *self.death.lock().unwrap() = Some(death);
                std::future::pending().await
            }
        }
    }
}

#[async_trait]
impl BootstrapMarker for Peril {
    async fn read(&self) -> Result<MarkerState, PortError> {
        self.call("marker: read", BootstrapMarker::read(&*self.node)).await
    }

    async fn set(&self, cluster: &ClusterId) -> Result<(), PortError> {
        self.call("marker: set", self.node.set(cluster)).await
    }
}

#[async_trait]
impl StateDisk for Peril {
    async fn id(&self) -> Result<DiskId, PortError> {
        self.call("disk: id", self.node.id()).await
    }

    async fn opens_with(&self, key: &SecretBytes) -> Result<bool, PortError> {
        self.call("disk: try a key", self.node.opens_with(key)).await
    }

    async fn is_new(&self) -> Result<bool, PortError> {
        self.call("disk: is it new", self.node.is_new()).await
    }

    async fn rekey(&self, node: &LockedNode, key: &SecretBytes) -> Result<(), PortError> {
        self.call("disk: re-key", self.node.rekey(node, key)).await
    }
}

#[async_trait]
impl NodeStore for Peril {
    async fn read_intent(&self) -> Result<Option<Intent>, PortError> {
        self.call("journal: read", self.node.read_intent()).await
    }

    async fn write_intent(&self, intent: &Intent) -> Result<(), PortError> {
        let name = match intent.phase {
            Phase::Intended => "journal: intend",
            Phase::Done => "journal: done",
        };
        self.call(name, self.node.write_intent(intent)).await
    }

    async fn write_state(&self, node: &LockedNode, state: &NodeState) -> Result<(), PortError> {
        self.call("state: write", self.node.write_state(node, state)).await
    }
}

#[async_trait]
impl ClusterInitializer for Peril {
    async fn prepare(&self, request: &InitRequest) -> Result<(), PortError> {
        let call = ClusterInitializer::prepare(&*self.node, request);
        self.call("kubeadm: prepare", call).await
    }

    async fn keep_key_uris(&self, node: &LockedNode, uris: &KeyUris) -> Result<(), PortError> {
        self.call("key URIs: write", self.node.keep_key_uris(node, uris)).await
    }

    async fn init(&self, node: &LockedNode, request: &InitRequest) -> Result<(), PortError> {
        self.call("kubeadm: init", self.node.init(node, request)).await
    }

    async fn kubeconfig(&self) -> Result<SecretBytes, PortError> {
        self.node.kubeconfig().await
    }
}

#[async_trait]
impl ClusterJoiner for Peril {
    async fn prepare(&self, ticket: &JoinTicket) -> Result<(), PortError> {
        let call = ClusterJoiner::prepare(&*self.node, ticket);
        self.call("kubeadm: prepare", call).await
    }

    async fn write_files(&self, node: &LockedNode, ticket: &JoinTicket) -> Result<(), PortError> {
        let is_rekeyed = self.node.record().disk_key.is_some();
        assert!(is_rekeyed, "no file of the cluster on a disk that opens for all");
        self.call("files: write", self.node.write_files(node, ticket)).await
    }

    async fn join(&self, node: &LockedNode, ticket: &JoinTicket) -> Result<(), PortError> {
        self.call("kubeadm: join", self.node.join(node, ticket)).await
    }
}

#[async_trait]
impl TicketSource for Peril {
    async fn fetch(&self) -> Result<JoinTicket, PortError> {
        let ticket = JoinTicket {
            state_disk_key: SecretArray::new([1; 32]),
            measurement_salt: MeasurementSalt::new([2; 32]),
            measurement_secret: MeasurementSecret::new([3; 32]),
            kubelet_certificate: String::new(),
            api_server: "10.0.0.1:6443".to_owned(),
            ca_pin: CaPin::new(Sha256Digest::of("ca")),
            files: vec![(PkiFile::CA, SecretBytes::new(b"ca".to_vec()))],
            components: Vec::new(),
            kubernetes_version: "v1.34.3".to_owned(),
        };
        self.call("ticket: fetch", async { Ok(ticket) }).await
    }
}

#[async_trait]
impl DataKeys for Peril {
    async fn data_key(&self, id: &DataKeyId, length: usize) -> Result<SecretBytes, PortError> {
        let master = master();
        self.call("keys: derive", DataKeys::data_key(&master, id, length)).await
    }

    async fn existing_data_key(
        &self,
        id: &DataKeyId,
        length: usize,
    ) -> Result<SecretBytes, PortError> {
        self.data_key(id, length).await
    }
}

#[async_trait]
impl Pause for Peril {
    fn failed(&self, _step: &dyn fmt::Debug, _error: &PortError) {}

    async fn pause(&self, _doublings: u32) {}
}

/// Recovery over ports without mishaps: it never has to wait.
#[derive(Debug)]
struct Impatient;

#[async_trait]
impl Pause for Impatient {
    fn failed(&self, step: &dyn fmt::Debug, error: &PortError) {
        panic!("bricked: {step:?} fails: {error}");
    }

    async fn pause(&self, _doublings: u32) {}
}

fn master() -> MasterSecret {
    match KmsUri::parse(KMS).unwrap() {
        KmsUri::Cluster(master) => master,
        other => unreachable!("{other:?}"),
    }
}

fn request() -> InitRequest {
    InitRequest {
        digest: Sha256Digest::of("request"),
        kubernetes_version: "v1.34.3".to_owned(),
        components: Vec::new(),
        proxy: KubeProxy::Replaced,
    }
}

impl Procedure {
    /// What a node of its cluster has: the cluster ID, and the key of the node's disk.
    fn secrets(self) -> (ClusterId, OfferedKeys) {
        match self {
            Self::Init => {
                let disk = "00000000-0000-0000-0000-0000000000aa".parse().unwrap();
                let secret = block_on(measurement_secret(&master())).unwrap();
                let cluster = secret.cluster_id(&request().measurement_salt());
                let key = block_on(disk_key(&master(), disk)).unwrap();
                let keys = OfferedKeys { state_disk_key: key, measurement_secret: secret };
                (cluster, keys)
            }
            Self::Join => {
                let secret = MeasurementSecret::new([3; 32]);
                let cluster = secret.cluster_id(&MeasurementSalt::new([2; 32]));
                let keys = OfferedKeys {
                    state_disk_key: SecretBytes::new(vec![1; 32]),
                    measurement_secret: secret,
                };
                (cluster, keys)
            }
        }
    }

    /// One process; `None` if it died.
    fn process(self, peril: &Arc<Peril>) -> Option<End> {
        let lock = NodeLock::new(Arc::clone(peril) as _);
        let (request, name) = (request(), "node-1".parse().unwrap());
        let run = async {
            match self {
                Self::Init => {
                    let uris = super::uris();
                    let ports = InitPorts {
                        lock: &lock,
                        disk: &**peril,
                        store: &**peril,
                        cluster: &**peril,
                        uris: &uris,
                        pause: &**peril,
                    };
                    match drive_init(ports, &**peril, &request).await.outcome {
                        Some(InitOutcome::Initialized(_)) => End::Bootstrapped,
                        Some(InitOutcome::Retry(_)) => End::Untouched,
                        other => panic!("{other:?}"),
                    }
                }
                Self::Join => {
                    let ports = JoinPorts {
                        lock: &lock,
                        disk: &**peril,
                        store: &**peril,
                        tickets: &**peril,
                        cluster: &**peril,
                        pause: &**peril,
                    };
                    match drive_join(ports, &name, Role::Worker).await {
                        Some(JoinOutcome::Joined(_) | JoinOutcome::AlreadyMember) => {
                            End::Bootstrapped
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
        };
        match std::pin::pin!(run).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(end) => Some(end),
            Poll::Pending => None,
        }
    }

    /// What the programs do after a boot: a disk that is no longer new is recovered first.
    fn boot(self, peril: &Peril) {
        peril.node.reboot();
        if peril.node.record().disk_key.is_none() {
            return;
        }
        let lock = NodeLock::new(Arc::clone(&peril.node) as _);
        let ports = RecoverPorts {
            lock: &lock,
            disk: &*peril.node,
            mapped: &*peril.node,
            store: &*peril.node,
            pause: &Impatient,
        };
        let (cluster, keys) = self.secrets();
        let recovered = block_on(drive_recover(ports, &keys));
        assert_eq!(recovered, Some(RecoverOutcome::Recovered(cluster)), "bricked");
    }

    /// One process, and whatever must happen before the next may begin.
    fn attempt(self, peril: &Arc<Peril>) -> End {
        let end = self.process(peril);
        let death = peril.death.lock().unwrap().take();
        if let Some(end) = end {
            return end;
        }
        let begun = peril.node.record().register != Sha256Digest::ZERO;
        if death == Some(Death::Power) {
            self.boot(peril);
        }
        if begun { End::Begun } else { End::Untouched }
    }

    /// Repeats attempts until the node is bootstrapped. Returns what the first one left, and the
    /// number of attempts.
    fn run(self, peril: &Arc<Peril>) -> (End, usize) {
        let first = self.attempt(peril);
        self.assert_left(peril, first);
        let mut end = first;
        let mut attempts = 1;
        while end != End::Bootstrapped {
            end = self.attempt(peril);
            attempts += 1;
        }
        self.assert_bootstrapped(peril);
        (first, attempts)
    }

    /// An untouched node has at most an intent, which binds no node.
    fn assert_left(self, peril: &Peril, end: End) {
        let record = peril.node.record();
        if end == End::Untouched {
            assert_eq!(record.extensions, 0);
            assert_eq!((record.disk_key, record.state), (None, None));
            assert_eq!(record.initialized + record.joined, 0, "{self:?}");
        }
    }

    fn assert_bootstrapped(self, peril: &Peril) {
        let (cluster, keys) = self.secrets();
        let record = peril.node.record();
        let key = Sha256Digest::of(keys.state_disk_key.expose("compare"));
        assert_eq!(record.disk_key, Some(key));
        assert_eq!(record.register, cluster.marker(), "extended once in this boot");
        assert!(record.state.is_some());
        assert_eq!(record.intent.unwrap().phase, Phase::Done);
        match self {
            Self::Init => assert!(record.initialized >= 1 && record.joined == 0),
            Self::Join => {
                assert!(record.joined >= 1 && record.initialized == 0);
                assert_eq!(record.files, [PkiFile::CA.as_str()]);
            }
        }
    }
}

/// The state in which a process left its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Unchanged; anyone may request anything.
    Untouched,
    /// After the lock: the next process continues by itself, or with the same request.
    Begun,
    Bootstrapped,
}

/// A row for each call of a run without mishaps, a column for each mishap.
fn table(procedure: Procedure) -> String {
    let plain = Peril::new(|_| Mishap::None);
    assert_eq!(procedure.run(&plain), (End::Bootstrapped, 1));
    let calls = plain.calls.lock().unwrap().clone();
    let mut text = format!("{procedure:?}: how the process leaves the node, and attempts in all\n");
    let _ = writeln!(
        text,
        "{:<18} {:<16} {:<16} {:<16} {:<16} {:<16} {:<16}",
        "call", "fails", "answer lost", "dies before", "dies after", "power before", "power after"
    );
    for (number, call) in calls.iter().enumerate() {
        let _ = write!(text, "{call:<18}");
        for mishap in MISHAPS {
            let peril = Peril::new(move |at| if at == number { mishap } else { Mishap::None });
            let (left, attempts) = procedure.run(&peril);
            let _ = write!(text, " {:<16}", format!("{left:?} {attempts}"));
        }
        text.push('\n');
    }
    text
}

#[test]
fn whatever_dies_at_any_call_of_init_the_node_ends_bootstrapped_or_is_as_it_was() {
    let table = table(Procedure::Init);
    println!("{table}");
    assert!(table.lines().count() > 12);
}

#[test]
fn whatever_dies_at_any_call_of_join_the_node_ends_bootstrapped_or_is_as_it_was() {
    let table = table(Procedure::Join);
    println!("{table}");
    assert!(table.lines().count() > 12);
}

/// Mishaps for about `per_mille` of 1000 calls, and none beyond `until`.
fn seeded(seed: u64, per_mille: u32, until: usize) -> impl FnMut(usize) -> Mishap + Send {
    let mut rng = ChaCha20Rng::seed_from_u64(seed);
    move |number| {
        let (draw, sort) = (rng.next_u32() % 1000, rng.next_u32() as usize % MISHAPS.len());
        match MISHAPS.get(sort) {
            Some(mishap) if number < until && draw < per_mille => *mishap,
            _ => Mishap::None,
        }
    }
}

proptest! {
    #[test]
    fn any_series_of_mishaps_ends_bootstrapped(seed: u64, per_mille in 0_u32..500, join: bool) {
        let procedure = if join { Procedure::Join } else { Procedure::Init };
        let peril = Peril::new(seeded(seed, per_mille, 300));
        procedure.run(&peril);
    }
}
