//! The state of a trust anchor, for `tec status` and its page.

use serde::Serialize;
use tec_core::ak::AkState;
use tec_core::attest::Attempt;
use tec_core::id::MachineId;
use tec_core::image::ExpectedPcrs;
use tec_core::machine::MachineState;
use tec_core::port::AkRegistry;

use crate::anchor::{Anchor, Place};
use crate::attempt::LastSeen;
use crate::image::UnpinnedImage;
use crate::kube;
use crate::kube::status::ClusterStatus;
use crate::state::{Endpoints, Running};

/// How many refusals are shown.
const REFUSALS: usize = 5;
/// How far back to look for refusals, in attempts.
const LOOK_BACK: usize = 200;

#[derive(Serialize)]
pub(crate) struct Status {
    #[serde(flatten)]
    server: Server,
    pub(crate) machines: Counts,
    pub(crate) keys_waiting: usize,
    pub(crate) images_live: usize,
    /// Approved images of whose boot parts are not checked.
    pub(crate) unpinned: Vec<UnpinnedImage>,
    /// The latest refusals; a namespace keeps them by machine.
    pub(crate) refusals: Vec<Attempt>,
    /// Machines whose last attempt was refused: they are refused now.
    pub(crate) refused_now: usize,
    /// The machine that attested last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_seen: Option<SeenMachine>,
    pub(crate) needs_you: Vec<String>,
}

/// What serves nodes.
#[derive(Serialize)]
#[serde(untagged)]
enum Server {
    /// Whether `tec serve` runs on the state directory, and where nodes reach it.
    Process { running: bool, endpoints: Option<Box<Endpoints>> },
    /// The cluster objects of a namespace, of which there must be one.
    Cluster { namespace: String, clusters: Vec<ClusterStatus> },
}

#[derive(Serialize)]
pub(crate) struct SeenMachine {
    pub(crate) machine: MachineId,
    #[serde(flatten)]
    pub(crate) seen: LastSeen,
}

#[derive(Serialize)]
pub(crate) struct Counts {
    pub(crate) unclaimed: usize,
    pub(crate) active: usize,
    pub(crate) quarantined: usize,
    pub(crate) revoked: usize,
    pub(crate) retired: usize,
}

impl Status {
    pub(crate) async fn of(anchor: &Anchor) -> anyhow::Result<Self> {
        let known = anchor.known().await?;
        let count = |state| known.iter().filter(|known| known.machine.state == state).count();
        let keys = AkRegistry::list(&*anchor.ports, None).await;
        let keys = keys.map_err(anchor.failed("list the attestation keys"))?;
        let images = anchor.approvals().await?;
        let seen =
            known.iter().filter_map(|known| Some((known.machine.id, known.last_seen.as_ref()?)));
        let last = seen.clone().max_by_key(|(_, seen)| seen.at);
        let mut status = Self {
            server: Server::of(anchor).await?,
            machines: Counts {
                unclaimed: count(MachineState::Unclaimed),
                active: count(MachineState::Active),
                quarantined: count(MachineState::Quarantined),
                revoked: count(MachineState::Revoked),
                retired: count(MachineState::Retired),
            },
            keys_waiting: keys.iter().filter(|key| key.state == AkState::Pending).count(),
            images_live: images.iter().filter(|image| image.is_live()).count(),
            unpinned: UnpinnedImage::among(&images),
            refusals: refusals(anchor).await?,
            refused_now: seen.filter(|(_, seen)| seen.is_refused).count(),
            last_seen: last.map(|(machine, seen)| SeenMachine { machine, seen: seen.clone() }),
            needs_you: Vec::new(),
        };
        status.needs_you = needs_you(&status, anchor.program());
        Ok(status)
    }

    /// Whether nodes are served, and an image is approved.
    pub(crate) fn is_ready(&self) -> bool {
        let is_served = match &self.server {
            Server::Process { running, .. } => *running,
            Server::Cluster { clusters, .. } => matches!(&clusters[..], [only] if only.ready),
        };
        is_served && self.images_live > 0
    }

    /// What serves nodes, and where.
    pub(crate) fn server(&self) -> Vec<String> {
        match &self.server {
            Server::Process { running, endpoints } => {
                let state = if *running { "running" } else { "stopped" };
                let mut lines = vec![format!("server        {state}")];
                if let Some(endpoints) = endpoints {
                    lines.push(format!("registration  {}", endpoints.register));
                    lines.push(format!("AK            {}", endpoints.ak));
                    let kbs = endpoints.kbs.iter();
                    lines.extend(kbs.map(|kbs| format!("key broker    {}", kbs.url)));
                }
                lines
            }
            Server::Cluster { namespace, clusters } => {
                let namespace = format!("namespace     {namespace}");
                let clusters = clusters.iter().flat_map(ClusterStatus::lines);
                std::iter::once(namespace).chain(clusters).collect()
            }
        }
    }
}

impl Server {
    async fn of(anchor: &Anchor) -> anyhow::Result<Self> {
        Ok(match &anchor.place {
            Place::Directory(path, _) => Self::Process {
                running: Running::is(path),
                endpoints: Endpoints::read(path).ok().map(Box::new),
            },
            Place::Namespace(cluster) => Self::Cluster {
                namespace: cluster.namespace.clone(),
                clusters: kube::status::clusters(cluster).await?,
            },
        })
    }

    fn needs_you(&self) -> Vec<String> {
        match self {
            Self::Process { running: true, .. } => Vec::new(),
            Self::Process { .. } => {
                vec!["the server is stopped, so no node registers or unlocks: tec serve".to_owned()]
            }
            Self::Cluster { clusters, .. } => kube::status::needs_you(clusters),
        }
    }
}

/// The latest refusals. Of a namespace they are not read: its records are large, and one for each machine.
async fn refusals(anchor: &Anchor) -> anyhow::Result<Vec<Attempt>> {
    let Place::Directory(..) = anchor.place else { return Ok(Vec::new()) };
    let latest = anchor.attempts.latest(None, LOOK_BACK).await;
    let mut refusals = latest.map_err(anchor.failed("read the latest attempts"))?;
    refusals.retain(|attempt| attempt.ladder.code.is_some());
    refusals.truncate(REFUSALS);
    // Long, and shown for a single attempt only.
    for attempt in &mut refusals {
        attempt.measured = ExpectedPcrs::default();
    }
    Ok(refusals)
}

fn needs_you(status: &Status, program: &str) -> Vec<String> {
    let mut list = status.server.needs_you();
    if status.images_live == 0 {
        list.push(format!("no image is approved, so no node gets a key: {program} image approve"));
    }
    if status.keys_waiting > 0 {
        list.push(format!("{} keys wait for approval: {program} ak list", status.keys_waiting));
    }
    if !status.refusals.is_empty() {
        list.push(format!("boots were refused: {program} explain <attempt>"));
    } else if status.refused_now > 0 {
        list.push(format!(
            "{} machines were refused last: {program} explain <machine>",
            status.refused_now
        ));
    }
    list
}
