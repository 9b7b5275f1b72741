//! The state of a trust anchor, for `tec status` and its page.

use std::fs;
use std::path::Path;

use serde::Serialize;
use tec_core::ak::AkState;
use tec_core::attest::Attempt;
use tec_core::id::MachineId;
use tec_core::image::ExpectedPcrs;
use tec_core::machine::MachineState;
use tec_core::port::{AkRegistry, Clock as _};
use tec_core::time::Timestamp;
use tec_support::age::age;
use tec_support::{SystemClock, tls};

use crate::anchor::{Anchor, Place};
use crate::attempt::LastSeen;
use crate::image::{CoveredImage, UnpinnedImage};
use crate::kube;
use crate::kube::status::ClusterStatus;
use crate::state::{Endpoints, Running};

/// How many refusals are shown.
const REFUSALS: usize = 5;
/// How far back to look for refusals, in attempts.
const LOOK_BACK: usize = 200;
/// Certificates that expire within this time need you; the alert TecCertificateEnds has the same.
const CERTIFICATE_WARNING: i64 = 7 * 86_400;

#[derive(Serialize)]
pub(crate) struct Status {
    #[serde(flatten)]
    server: Server,
    pub(crate) machines: Counts,
    pub(crate) keys_waiting: usize,
    pub(crate) images_live: usize,
    /// Approved images of whose boot parts are not checked.
    pub(crate) unpinned: Vec<UnpinnedImage>,
    /// What each approved image covers.
    pub(crate) coverage: Vec<CoveredImage>,
    /// The latest refusals; a namespace keeps them by machine.
    pub(crate) refusals: Vec<Attempt>,
    /// Machines whose last attempt was refused: they are refused now.
    pub(crate) refused_now: usize,
    /// Machines whose last attempt had no usable event log; not known of a namespace.
    pub(crate) without_event_log: Vec<MachineId>,
    /// The machine that attested last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_seen: Option<SeenMachine>,
    pub(crate) needs_you: Vec<String>,
}

/// What serves nodes.
#[derive(Serialize)]
#[serde(untagged)]
enum Server {
    /// Whether `tec serve` runs on the state directory, where nodes reach it, and its certificates.
    Process { running: bool, endpoints: Option<Box<Endpoints>>, certificates: Vec<Certificate> },
    /// The cluster objects of a namespace, of which there must be one. The operator renews their certificates.
    Cluster { namespace: String, clusters: Vec<ClusterStatus> },
}

/// A certificate that clients check, and when it is valid.
#[derive(Serialize)]
struct Certificate {
    name: &'static str,
    not_before: Timestamp,
    not_after: Timestamp,
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
            coverage: CoveredImage::among(&images),
            refusals: refusals(anchor).await?,
            refused_now: seen.clone().filter(|(_, seen)| seen.is_refused).count(),
            without_event_log: seen
                .filter(|(_, seen)| seen.event_log_unused.is_some())
                .map(|(machine, _)| machine)
                .collect(),
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
            Server::Process { running, endpoints, certificates } => {
                let state = if *running { "running" } else { "stopped" };
                let mut lines = vec![format!("server        {state}")];
                if let Some(endpoints) = endpoints {
                    lines.push(format!("registration  {}", endpoints.register));
                    lines.push(format!("AK            {}", endpoints.ak));
                    let kbs = endpoints.kbs.iter();
                    lines.extend(kbs.map(|kbs| format!("key broker    {}", kbs.url)));
                }
                let until = |one: &Certificate| format!("{} until {}", one.name, one.not_after);
                let until: Vec<_> = certificates.iter().map(until).collect();
                if !until.is_empty() {
                    lines.push(format!("certificates  {}", until.join(", ")));
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
            Place::Directory(path, _) => {
                let endpoints = Endpoints::read(path).ok().map(Box::new);
                let certificates = endpoints.as_deref().map(|known| Certificate::all(path, known));
                let certificates = certificates.unwrap_or_default();
                Self::Process { running: Running::is(path), endpoints, certificates }
            }
            Place::Namespace(cluster) => Self::Cluster {
                namespace: cluster.namespace.clone(),
                clusters: kube::status::clusters(cluster).await?,
            },
        })
    }

    fn needs_you(&self) -> Vec<String> {
        match self {
            Self::Process { running, certificates, .. } => {
                let stopped = (!running).then(|| {
                    "the server is stopped, so no node registers or unlocks: tec serve".to_owned()
                });
                let now = SystemClock.now();
                let certificates = certificates.iter().filter_map(|one| one.needs_you(now));
                stopped.into_iter().chain(certificates).collect()
            }
            Self::Cluster { clusters, .. } => kube::status::needs_you(clusters),
        }
    }
}

impl Certificate {
    /// The CA that nodes receive, as of the last start of the server, and the certificate below it.
    fn all(directory: &Path, endpoints: &Endpoints) -> Vec<Self> {
        if endpoints.ca.is_empty() {
            return Vec::new(); // plain HTTP
        }
        let served = endpoints.certificate.clone();
        let served = fs::read_to_string(served.unwrap_or_else(|| tls::built_in_leaf(directory)));
        let all = [("CA", &endpoints.ca), ("server certificate", &served.unwrap_or_default())];
        let read = |(name, pem): (_, &String)| {
            let (not_before, not_after) = tls::validity(pem).ok()?;
            Some(Self { name, not_before, not_after })
        };
        all.into_iter().filter_map(read).collect()
    }

    fn needs_you(&self, now: Timestamp) -> Option<String> {
        let Self { name, not_before, not_after } = self;
        let what = if now < *not_before {
            format!(
                "is not valid before {not_before}, because the clock was ahead when it was issued, \
                 or is behind now"
            )
        } else if *not_after < now {
            format!("expired at {not_after}")
        } else if *not_after < now.plus_seconds(CERTIFICATE_WARNING) {
            format!("expires in {}", age(*not_after, now))
        } else {
            return None;
        };
        Some(format!(
            "the {name} {what}: check the clock, renew the files of --tls-cert and --tls-ca if you use \
             them, and restart tec serve"
        ))
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

#[cfg(test)]
mod tests {
    use tec_core::testing::ManualClock;
    use tec_support::tls::{LiveCertificate, Source, built_in_ca, ca_pem};

    use super::*;
    use crate::page;

    const DAY: i64 = 86_400;

    /// A state directory whose server started when its clock was off by `seconds`.
    fn started(path: &Path, seconds: i64) -> Anchor {
        let store = crate::state::open(path).unwrap();
        let clock = ManualClock::new(SystemClock.now().plus_seconds(seconds));
        let names = vec!["localhost".to_owned()];
        LiveCertificate::load(Source::BuiltIn { directory: path.to_owned(), names }, &clock)
            .unwrap();
        let url = || "https://tec.example:8081".parse().unwrap();
        let endpoints = Endpoints {
            register: url(),
            ak: url(),
            kbs: Vec::new(),
            ca: ca_pem(&built_in_ca(path)).unwrap(),
            certificate: None,
            root_device: String::new(),
        };
        endpoints.write(path).unwrap();
        Anchor::directory(path, store)
    }

    #[tokio::test]
    async fn certificates_that_are_not_valid_need_you_in_every_form() {
        for (off, needs) in [
            (0, [None, None]),
            (300 * DAY, [Some("the CA is not valid before"), Some("certificate is not valid")]),
            (-85 * DAY - 60, [None, Some("the server certificate expires in 4d")]),
            (-91 * DAY, [None, Some("the server certificate expired at")]),
            (-3651 * DAY, [Some("the CA expired at"), Some("the server certificate expired at")]),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let anchor = started(&dir.path().join("state"), off);
            let status = Status::of(&anchor).await.unwrap();
            let lines = status.server();
            assert!(
                lines.iter().any(|line| line.starts_with("certificates  CA until")),
                "{lines:?}"
            );
            let json = serde_json::to_value(&status).unwrap();
            assert_eq!(json["certificates"].as_array().unwrap().len(), 2);
            let said = status.needs_you.iter().filter(|one| one.contains("check the clock"));
            assert_eq!(said.count(), needs.iter().flatten().count(), "{:?}", status.needs_you);
            let page = page::page(&anchor, status).await.unwrap();
            for need in needs.into_iter().flatten() {
                assert!(page.needs_you.iter().any(|one| one.contains(need)), "{need}");
                assert!(json["needs_you"].to_string().contains(need), "{need}");
            }
        }
    }

    #[tokio::test]
    async fn the_certificate_that_the_server_shows_counts_not_a_built_in_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let anchor = started(&path, -91 * DAY);
        let mut endpoints = Endpoints::read(&path).unwrap();
        endpoints.certificate = Some(built_in_ca(&path));
        endpoints.write(&path).unwrap();
        let needs_you = Status::of(&anchor).await.unwrap().needs_you;
        assert!(!needs_you.iter().any(|one| one.contains("check the clock")), "{needs_you:?}");
    }
}
