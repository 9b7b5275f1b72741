//! Joins of a fleet through one join service: nodes and service that attest to each other, against the same
//! calls over mutual TLS with certificates of a CA. On both sides, what a node does with its ticket, mainly
//! kubeadm, is done in memory; the TPMs are software.

mod plain;
mod service;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use async_trait::async_trait;
use bootstrapper::instance::authority::Authority;
use bootstrapper::instance::identity::Identity;
use bootstrapper::instance::node::endpoint;
use bootstrapper::instance::transport;
use tec_benches::load::Tally;
use tec_benches::mutual::Ca;
use tec_benches::{Figure, Suite, Unit, load};
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_core::port::{PortError, PortErrorKind};
use tec_node::atls::{AnyAk, Endpoint, LiveMeasurements, Variant, VtpmIssuer, VtpmValidator};
use tec_node::derive::DiskId;
use tec_node::drive::{JoinPorts, drive_join};
use tec_node::host::KubeletIdentity as _;
use tec_node::join::JoinOutcome;
use tec_node::lock::{MarkerState, NodeLock};
use tec_node::rpc::{Dial, Reached, TicketClient};
use tec_node::state::Role;
use tec_node::testing::MemoryNode;
use tec_node::ticket::NodeName;
use tec_support::{SystemClock, SystemEntropy};
use tec_tpm::testing::SoftTpm;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::plain::{Plain, PlainServer};
use crate::service::Service;

/// Nodes that join one cluster.
const NODES: usize = 100;
/// Concurrent joins; the service accepts 64 connections.
const AT_ONCE: usize = 32;
const NAME: &str = "join/hundred";

fn main() -> anyhow::Result<()> {
    let mut suite = Suite::new(env!("CARGO_TARGET_TMPDIR"));
    if suite.wants(NAME) {
        let runtime = load::runtime()?;
        measure(&mut suite, &runtime)?;
    }
    suite.finish();
    Ok(())
}

fn measure(suite: &mut Suite, runtime: &Runtime) -> anyhow::Result<()> {
    let pki = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let ca = plain::authority(pki.path())?;
    let fleet: Vec<_> =
        (0..NODES).map(|number| Node::new(number, &ca)).collect::<Result<_, _>>()?;
    let fleet: Arc<[Node]> = fleet.into();
    let service = || Service::new(pki.path());
    let (ours, plain) = (Tally::default(), Tally::default());
    let attested = async || attested_fleet(&fleet, &service(), &ours).await;
    let known = async || plain_fleet(&fleet, &service(), &ca, &plain).await;
    // Warms both up, and fails before anything is measured.
    runtime.block_on(attested())?;
    runtime.block_on(known())?;
    ours.clear();
    plain.clear();
    suite.ratio_timed(
        NAME,
        |ratio| {
            format!(
                "one of {NODES} joins, {AT_ONCE} at once, attested / mutual TLS; all of them in \
                 {:.2} s against {:.2} s",
                seconds(ratio.ours_ns),
                seconds(ratio.baseline_ns)
            )
        },
        |times| scaled(times, || runtime.block_on(attested())),
        |times| scaled(times, || runtime.block_on(known())),
    )?;
    let (ours, plain) = (ours.p99()?, plain.p99()?);
    let note = format!(
        "99 of 100 joins within {:.0} ms, and within {:.0} ms over mutual TLS",
        ours / 1e6,
        plain / 1e6
    );
    suite.figure(Figure::new("join/hundred_p99", ours / plain, Unit::Count, &note))
}

fn seconds(nanos_of_one: f64) -> f64 {
    // A hundred is exact as a float.
    nanos_of_one * f64::from(u32::try_from(NODES).unwrap_or_default()) / 1e9
}

/// Runs whole fleets, for at least `times` joins; the time is scaled to `times`.
fn scaled(times: u64, fleet: impl Fn() -> anyhow::Result<()>) -> Duration {
    let all = NODES as u64;
    let fleets = times.div_ceil(all);
    let begin = Instant::now();
    for _ in 0..fleets {
        if fleet().is_err() {
            return Duration::MAX;
        }
    }
    load::scaled(begin.elapsed(), times, fleets * all)
}

/// A node that has not joined yet; its properties are the same in each round.
struct Node {
    name: NodeName,
    disk: DiskId,
    request: Vec<u8>,
    tpm: Arc<SoftTpm>,
    endpoint: Endpoint,
    plain: Plain,
}

impl Node {
    fn new(number: usize, ca: &Ca) -> anyhow::Result<Self> {
        let name: NodeName = format!("node-{number}").parse()?;
        let tpm = Arc::new(SoftTpm::p256(number as u64 + 1));
        let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
        let authority = Authority::new("", clock, entropy);
        let address = format!("10.0.1.{number}").parse()?;
        let identity = Identity::generate(&name, address, authority)?;
        Ok(Self {
            disk: format!("00000000-0000-0000-0000-{number:012}").parse()?,
            request: identity.key().request.clone(),
            endpoint: mutual(&tpm)?,
            plain: Plain::new(ca)?,
            name,
            tpm,
        })
    }

    /// Joins, with everything in memory except for the calls.
    async fn join(&self, dial: Arc<dyn Dial>) -> anyhow::Result<Duration> {
        let begin = Instant::now();
        let node = Arc::new(MemoryNode::new(self.disk));
        let lock = NodeLock::new(Arc::clone(&node) as _);
        let tickets = TicketClient::new(dial, self.disk, Role::Worker, self.request.clone());
        let ports = JoinPorts {
            lock: &lock,
            disk: &*node,
            store: &*node,
            tickets: &tickets,
            cluster: &*node,
            pause: &*node,
        };
        let outcome = drive_join(ports, &self.name, Role::Worker).await;
        let joined = matches!(outcome, Some(JoinOutcome::Joined(_)));
        anyhow::ensure!(joined && node.record().joined == 1, "{outcome:?}");
        Ok(begin.elapsed())
    }
}

/// An end that attests with this TPM, and accepts any peer that attests.
fn mutual(tpm: &Arc<SoftTpm>) -> anyhow::Result<Endpoint> {
    let measurements = Arc::new(LiveMeasurements::default());
    let validator = VtpmValidator::new(Variant::QemuVtpm, Arc::new(AnyAk), measurements);
    let issuer = VtpmIssuer::new(Variant::QemuVtpm, Arc::clone(tpm) as _);
    Ok(endpoint().with_issuer(Arc::new(issuer)).with_validator(Arc::new(validator)).build()?)
}

/// Connects to one service, attested or not.
#[derive(Debug)]
struct One<E> {
    address: String,
    end: E,
}

#[async_trait]
impl Dial for One<Endpoint> {
    async fn addresses(&self) -> Result<Vec<String>, PortError> {
        Ok(vec![self.address.clone()])
    }

    async fn dial(&self, address: &str) -> Result<Reached, PortError> {
        transport::reach(&self.end, address).await
    }
}

#[async_trait]
impl Dial for One<Plain> {
    async fn addresses(&self) -> Result<Vec<String>, PortError> {
        Ok(vec![self.address.clone()])
    }

    /// Proves nothing: the peer is trusted.
    async fn dial(&self, address: &str) -> Result<Reached, PortError> {
        let cluster = service::cluster().await.map_err(|error| {
            PortError::new(PortErrorKind::Internal, "derive the cluster").because(error)
        })?;
        Ok(Reached {
            channel: self.end.dial(address).await?,
            marker: MarkerState::Set(cluster.marker()),
        })
    }
}

/// Joins all nodes, some of them concurrently.
async fn all(
    fleet: &Arc<[Node]>,
    tally: &Tally,
    dial: impl Fn(&Node) -> Arc<dyn Dial>,
) -> anyhow::Result<()> {
    let mut joins: JoinSet<anyhow::Result<Duration>> = JoinSet::new();
    for number in 0..fleet.len() {
        if joins.len() >= AT_ONCE
            && let Some(joined) = joins.join_next().await
        {
            tally.add(joined??);
        }
        let fleet = Arc::clone(fleet);
        let dial = fleet.get(number).map(&dial).context("a node")?;
        joins.spawn(async move { fleet.get(number).context("a node")?.join(dial).await });
    }
    while let Some(joined) = joins.join_next().await {
        tally.add(joined??);
    }
    Ok(())
}

async fn attested_fleet(
    fleet: &Arc<[Node]>,
    service: &Service,
    tally: &Tally,
) -> anyhow::Result<()> {
    let member = Arc::new(SoftTpm::p256(0));
    let cluster = service::cluster().await?;
    member.extend(PcrIndex::CLUSTER, &Sha256Digest::of(cluster.as_bytes()));
    let served = service.attested(mutual(&member)?).await?;
    all(fleet, tally, |node| {
        Arc::new(One { address: served.address.clone(), end: node.endpoint.clone() })
    })
    .await?;
    served.stop().await
}

async fn plain_fleet(
    fleet: &Arc<[Node]>,
    service: &Service,
    ca: &Ca,
    tally: &Tally,
) -> anyhow::Result<()> {
    // A certificate identifies the calling node, as evidence otherwise does.
    let callers = fleet.iter().map(|node| (node.plain.certificate(), node.tpm.public_key()));
    let server = PlainServer::new(ca, callers.collect())?;
    let served = service.plain(server).await?;
    all(fleet, tally, |node| {
        Arc::new(One { address: served.address.clone(), end: node.plain.clone() })
    })
    .await?;
    served.stop().await
}
