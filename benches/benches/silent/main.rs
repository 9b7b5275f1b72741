//! A node unlocks while a thousand connections to the same server send nothing, half a request, or one byte
//! per second: its time as a multiple of its time on the idle server, and the peak memory of `tec serve` and
//! of `kbs-guard`, which is put under the same load. Then the same with default limits and a small disk, while
//! 4, 10 and 100 networks send what they may.

mod crowd;
mod guard;
mod strangers;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use tec_benches::{Figure, Suite, Unit, load};
use tec_core::endpoint::Endpoint;
use tec_core::id::ResourcePath;
use tec_core::pcr::PcrIndex;
use tec_e2e::anchor::Anchor;
use tec_e2e::fleet::SoftNode;
use tec_e2e::process::Transcript;
use tec_e2e::settings::Settings;
use tec_e2e::{load as fleet, wire};

use self::crowd::Crowd;
use self::guard::Guard;
use self::strangers::{SmallDisk, Strangers};

/// Prefix of the figures' names.
const NAME: &str = "silent/";
/// How long the crowd stays.
const SIEGE: Duration = Duration::from_mins(1);
/// Unlocks on the idle server.
const IDLE_UNLOCKS: usize = 100;
/// Networks of strangers, and how long each of these crowds stays.
const NETWORKS: [u8; 3] = [4, 10, 100];
const STAY: Duration = Duration::from_mins(5);
/// How long the node unlocks before them, and after them.
const ALONE: Duration = Duration::from_mins(1);
/// Pause of a node between two unlocks.
const REST: Duration = Duration::from_millis(200);
/// Address of the node; the crowd uses the sixteen addresses before it.
const NODE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 18));
/// Rate limit: here one node sends more requests than a whole rack normally does.
const FLAGS: [&str; 4] = ["--kbs-rate", "100000", "--register-rate", "100000"];

fn main() -> anyhow::Result<()> {
    let suite = Suite::new(env!("CARGO_TARGET_TMPDIR"));
    let programs = std::env::var_os("TEC_BIN_DIR")
        .map_or_else(|| suite.target_dir().join("release"), PathBuf::from);
    let is_there = |name: &&str| programs.join(name).is_file();
    if suite.wants(NAME) && ["tec", "kbs-guard"].iter().all(is_there) {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(run(&suite, programs.clone()))?;
        runtime.block_on(among_strangers(&suite, programs))?;
    }
    suite.finish();
    Ok(())
}

async fn run(suite: &Suite, programs: PathBuf) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let settings = Settings::for_benches(programs.clone())?;
    let logs = Arc::new(Transcript::new(directory.path().join("logs"))?);
    let state = directory.path().join("state");
    let anchor = Anchor::start(&settings, &state, &logs, &FLAGS)?;
    let node = known_node(&settings, &anchor).await?;
    let kbs = anchor.kbs()?;
    let guard = Guard::start(&programs.join("kbs-guard"), directory.path())?;

    unlock(&node, &kbs, NODE).await?;
    let mut idle = Vec::new();
    for _ in 0..IDLE_UNLOCKS {
        idle.push(unlock(&node, &kbs, NODE).await?);
    }

    let crowds = [
        Crowd::around(address(&kbs)?, Some(kbs.cert.as_str()))?,
        Crowd::around(guard.address, None)?,
    ];
    let (end, mut beset) = (Instant::now() + SIEGE, Vec::new());
    while Instant::now() < end {
        beset.push(unlock(&node, &kbs, NODE).await?);
        tokio::time::sleep(REST).await;
    }
    let crowds_opened: u64 = crowds.iter().map(Crowd::opened).sum();
    drop(crowds);
    let (idle, beset) = (median(idle)?, median(beset)?);
    let (opened, seconds) = (crowds_opened, SIEGE.as_secs());
    let note =
        format!("unlock of a node / on the idle server; {opened} connections in {seconds} s");
    let figure = |name: &str, value, unit, note: &str| {
        suite.figure(Figure::new(&format!("{NAME}{name}"), value, unit, note))
    };
    for (name, time) in [("idle", idle), ("beset", beset)] {
        let name = format!("unlock/{name}");
        figure(&name, time, Unit::Nanoseconds, "unlock of a node")?;
    }
    figure("ratio", beset / idle, Unit::Count, &note)?;
    for (name, pid) in [("tec", anchor.pid()), ("kbs-guard", guard.pid())] {
        figure(name, load::peak_memory(pid)?, Unit::Bytes, "peak of all memory of the process")?;
    }
    Ok(())
}

/// With default limits on a small disk.
async fn among_strangers(suite: &Suite, programs: PathBuf) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let settings = Settings::for_benches(programs)?;
    let logs = Arc::new(Transcript::new(directory.path().join("logs"))?);
    let disk = SmallDisk::mount(directory.path().join("disk"))?;
    let anchor = Anchor::start(&settings, &disk.path().join("state"), &logs, &[])?;
    let node = known_node(&settings, &anchor).await?;
    let kbs = anchor.kbs()?;
    let idle = unlocks(&node, &kbs, ALONE).await?;
    for networks in NETWORKS {
        let strangers = Strangers::begin(&anchor, networks).await?;
        let beset = unlocks(&node, &kbs, STAY).await?;
        let (sent, seconds) = (strangers.sent(), STAY.as_secs());
        let note =
            format!("unlock / on the idle server; {sent} answers to strangers in {seconds} s");
        let name = format!("{NAME}strangers/{networks}");
        suite.figure(Figure::new(&name, beset / idle, Unit::Count, &note))?;
    }
    let after = unlocks(&node, &kbs, ALONE).await?;
    let note = "unlock after them / before them";
    suite.figure(Figure::new(
        &format!("{NAME}strangers/after"),
        after / idle,
        Unit::Count,
        note,
    ))?;
    let (memory, note) = (load::peak_memory(anchor.pid())?, "peak of all memory of the process");
    suite.figure(Figure::new(&format!("{NAME}strangers_memory"), memory, Unit::Bytes, note))
}

/// The median of unlocks for a while, each from an address of its own.
async fn unlocks(node: &SoftNode, kbs: &Endpoint, stay: Duration) -> anyhow::Result<f64> {
    let (end, mut times) = (Instant::now() + stay, Vec::new());
    for last in (1..=u8::MAX).cycle() {
        if Instant::now() >= end {
            break;
        }
        let address = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 9, last));
        times.push(unlock(node, kbs, address).await?);
        tokio::time::sleep(REST).await;
    }
    median(times)
}

async fn known_node(settings: &Settings, anchor: &Anchor) -> anyhow::Result<SoftNode> {
    let image = settings.image("current");
    let image = image.to_str().context("the path of the image is not UTF-8")?;
    let approved = anchor.tec(&["image", "approve", "debian", image, "--accept-unpinned"])?;
    let node = fleet::register(anchor, 1).await?;
    for digest in fleet::boot_digests(&approved)? {
        node.tpm.extend(PcrIndex::BOOT_MANAGER, &digest);
    }
    Ok(node)
}

/// A client with its own connections, from this address.
fn client(kbs: &Endpoint, address: IpAddr) -> anyhow::Result<reqwest::Client> {
    let client = reqwest::Client::builder().timeout(Duration::from_mins(1)).local_address(address);
    let ca = reqwest::Certificate::from_pem_bundle(kbs.cert.as_bytes())?;
    Ok(client.tls_certs_only(ca).build()?)
}

/// Attests over its own connection and fetches the key; returns nanoseconds.
async fn unlock(node: &SoftNode, kbs: &Endpoint, address: IpAddr) -> anyhow::Result<f64> {
    let begin = Instant::now();
    let session = wire::Session::open_with(client(kbs, address)?, kbs).await?;
    let proof = session.prove(&node.tpm, wire::some_pubkey()).await?;
    let reply = session.attest(&proof).await?;
    ensure!(reply.status == 200, "attest: {}", reply.body);
    let path = ResourcePath::luks_root(&node.machine);
    let reply = session.resource(path.as_str()).await?;
    ensure!(reply.status == 200, "resource: {}", reply.body);
    Ok(begin.elapsed().as_secs_f64() * 1e9)
}

fn address(kbs: &Endpoint) -> anyhow::Result<SocketAddr> {
    let (_, address) = kbs.url.as_str().split_once("://").context("no URL")?;
    Ok(address.parse()?)
}

fn median(mut times: Vec<f64>) -> anyhow::Result<f64> {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().context("no unlock")
}
